"""Retraining on inputs that were found."""

import keras
import numpy as np
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.deepxplore import Blackout, generate
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.deepxplore.retraining import majority_of, retrain
from support.known_models import identity_model


def test_retraining_mends_what_was_found(models, digits):
    train = datasets.load("digits", "train")
    found = generate(models, train.x[:300], Blackout((3, 3)), progress=False)
    wrong = found.generated & (found.predictions[:, 0] != train.y[found.seed_index])
    x, y = found.inputs[wrong], train.y[found.seed_index][wrong]
    assert len(x) > 10
    before = models[0].get_weights()
    both = np.concatenate([train.x, x]), np.concatenate([train.y, y])
    better = retrain(models[0], *both, epochs=10, learning_rate=1e-3)
    assert np.mean(better(x).numpy().argmax(axis=1) == y) > 0.4  # it was 0
    assert zoo.accuracy(better, digits) > zoo.accuracy(models[0], digits) - 0.02
    for weights, kept in zip(models[0].get_weights(), before, strict=True):
        np.testing.assert_array_equal(weights, kept)


def test_the_majority_of_answers():
    answers = np.array([[3, 1, 3], [1, 1, 1], [0, 1, 2], [2, 0, 0]])
    assert majority_of(answers).tolist() == [3, 1, -1, 0]


def test_retraining_with_dropout_is_determined_by_its_seed(digits):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )
    first, again, other = (
        retrain(model, digits.x, digits.y, epochs=1, learning_rate=0.01, rng=rng)
        for rng in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.get_weights()[0], again.get_weights()[0])
    assert not np.array_equal(first.get_weights()[0], other.get_weights()[0])


@pytest.mark.parametrize("activation", ["softmax", "log_softmax"])
def test_heads_are_retrained_as_their_logits(digits, activation):
    """The loss of a head is that of the logits before it, so that the weights become the same."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    logits = keras.layers.Dense(10, name="logits")(keras.layers.Flatten()(inputs))
    plain = keras.Model(inputs, logits)
    head = keras.Model(inputs, keras.layers.Activation(activation)(logits))
    options = {"epochs": 2, "learning_rate": 0.01}
    expected = retrain(plain, digits.x, digits.y, **options).get_weights()
    found = retrain(head, digits.x, digits.y, **options).get_weights()
    np.testing.assert_allclose(found[0], expected[0], atol=1e-4)


def test_labels_that_are_refused():
    x = np.zeros((3, 3), np.float32)
    with pytest.raises(InvalidArgumentError, match="leave out samples without a class"):
        retrain(identity_model(3), x, np.array([1, -1, 2]))
    with pytest.raises(InvalidArgumentError, match="one class index for each of 3"):
        retrain(identity_model(3), x, np.array([1, 2]))
