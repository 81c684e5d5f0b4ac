"""Models whose input has no fixed size, instrumented for a given one, where copies are made."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import protection, pruning, semantic
from nnslicer_tf.pruning.costs import Costs
from nnslicer_tf.pruning.removal import mask_units

SHAPE = (6, 6, 2)
X = np.random.default_rng(0).normal(size=(24, *SHAPE)).astype(np.float32)
Y = np.arange(24) % 3
CRITICAL = {"first": np.array([True, False, True, True]), "second": np.arange(5) < 3}


def model(shape):
    """A small network with the same weights for all shapes."""
    inputs = keras.Input(shape)
    x = layers.Conv2D(4, 3, name="first")(inputs)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    x = layers.Conv2D(5, 3, padding="same", activation="relu", name="second")(x)
    made = keras.Model(inputs, layers.Dense(3, name="logits")(layers.GlobalMaxPooling2D()(x)))
    rng = np.random.default_rng(1)
    made.set_weights([rng.uniform(0.1, 1, w.shape) for w in made.get_weights()])
    return made


def weight_masks(im):
    return pruning.keep_masks(pruning.scores(im, "weight"), 0.5)


CALLS = {
    "apply_masks": lambda im: pruning.apply_masks(im, weight_masks(im)),
    "prune": lambda im: pruning.prune(im, pruning.scores(im, "weight"), 0.5),
    "without_masks": lambda im: pruning.without_masks(im),
    "renormalise": lambda im: pruning.renormalise(im, X),
    "compact": lambda im: pruning.compact(im),
    "mask_units": lambda im: mask_units(im, CRITICAL),
    "remove_units": lambda im: pruning.remove_units(im, CRITICAL),
    "restructure": lambda im: semantic.restructure(im, CRITICAL),
    "masked": lambda im: semantic.masked(im, CRITICAL),
    "train_neurons": lambda im: semantic.train_neurons(im, CRITICAL, X, Y, epochs=1),
    "readapt": lambda im: semantic.readapt(im, CRITICAL, X, Y, X + 0.1, epochs=1),
    "develop": lambda im: semantic.develop(im, CRITICAL, X, Y, [0], epochs=1),
    "hide": lambda im: protection.hide(im, weight_masks(im)),
    "steal": lambda im: protection.steal(
        im, weight_masks(im), (X, Y), 20, protection.Attacker(progress=False)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_copy_is_that_of_the_model_with_a_fixed_size(name):
    call = CALLS[name]
    free = nns.InstrumentedModel(model((None, None, 2)), SHAPE)
    found, expected = call(free), call(nns.InstrumentedModel(model(SHAPE)))
    for mine, theirs in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    assert found(np.zeros((1, 8, 8, 2))).shape == (1, 3)


def test_numbers_of_the_model_with_a_fixed_size():
    free = nns.InstrumentedModel(model((None, None, 2)), SHAPE)
    fixed = nns.InstrumentedModel(model(SHAPE))
    for count in (
        lambda im: semantic.parameter_share(im, CRITICAL),
        lambda im: Costs(im, X[0]).multiply_adds,
    ):
        assert count(free) == count(fixed) > 0
    assert pruning.masks(free) == {}
    with pytest.raises(nns.errors.InputShapeError, match=r"InstrumentedModel\(model, input_shape"):
        pruning.compact(model((None, None, 2)))
