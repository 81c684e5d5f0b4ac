"""Masked models without building them: their logits, their normalisations, their training."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf.instrument import Ablation


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def normalised_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, name="conv"),
            layers.BatchNormalization(epsilon=1e-3, name="norm"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(3, name="logits"),
        ]
    )
    rng = np.random.default_rng(3)
    norm = model.get_layer("norm")
    norm.set_weights([rng.uniform(0.5, 1, w.shape) for w in norm.get_weights()])
    return model


class Backwards(keras.Model):
    """Layers of equal shapes, declared in the opposite order to that of their calls."""

    def __init__(self, **options):
        super().__init__(**options)
        self.logits = layers.Dense(8, name="logits")
        self.norm = layers.BatchNormalization(name="norm")
        self.second = layers.Dense(8, name="second")
        self.first = layers.Dense(8, name="first")

    def call(self, x, training=False):
        x = self.norm(self.first(x), training=training)
        return self.logits(keras.ops.relu(self.second(keras.ops.relu(x))))


def predictor(im):
    """Return a function of masks of kernels and samples: the logits of the pruned model."""
    ablation = Ablation(im, "zero", "weight")

    def predict(keep, x, **options):
        return ablation.outputs(pruning.weight_masks(im, keep), x, **options)

    return predict


@pytest.fixture
def backwards():
    """A subclassed model with random weights, and samples."""
    rng = np.random.default_rng(6)
    model = Backwards()
    model(np.zeros((1, 8), np.float32))
    for variable in model.variables:
        variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return model, (3 * rng.normal(size=(200, 8)) + 1).astype(np.float32)


def test_weights_of_a_subclassed_model_stay_in_their_layers(backwards):
    model, x = backwards
    im = nns.InstrumentedModel(model)
    predict = predictor(im)
    np.testing.assert_allclose(predict({}, x), outputs(model, x), rtol=1e-5)
    keep = pruning.keep_masks(pruning.scores(im, "random", rng=0), 0.4)
    kernels = {name: np.where(keep[name], k.kernel(), 0) for name, k in im.kernels.items()}
    norm = model.norm
    sums = x @ kernels["first"] + model.first.bias.numpy()

    def by_hand(mean, variance):
        scaled = (sums - mean) / np.sqrt(variance + norm.epsilon) * norm.gamma + norm.beta
        hidden = np.maximum(np.maximum(scaled, 0) @ kernels["second"] + model.second.bias, 0)
        return hidden @ kernels["logits"] + model.logits.bias

    expected = by_hand(norm.moving_mean, norm.moving_variance)
    np.testing.assert_allclose(predict(keep, x), expected, rtol=1e-4)
    found = pruning.renormalise(pruning.apply_masks(model, keep), x)
    expected = by_hand(sums.mean(0), sums.var(0))
    np.testing.assert_allclose(outputs(found, x), expected, rtol=1e-3)


def test_a_subclassed_model_gets_the_statistics_of_the_samples(backwards):
    model, x = backwards
    found = pruning.renormalise(model, x)
    sums = x @ model.first.kernel.numpy() + model.first.bias.numpy()
    norm = found.get_layer("norm")
    np.testing.assert_allclose(norm.moving_mean, sums.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(norm.moving_variance, sums.var(axis=0), rtol=1e-3)
    for layer in (model.first, model.second, model.logits):
        for a, b in zip(layer.get_weights(), found.get_layer(layer.name).get_weights()):
            np.testing.assert_array_equal(a, b)


def test_several_inputs_are_refused():
    first, second = keras.Input((4,)), keras.Input((4,))
    model = keras.Model([first, second], layers.Dense(3)(layers.Add()([first, second])))
    with pytest.raises(nns.errors.SeveralInputsError, match="has 2 inputs"):
        pruning.renormalise(model, [np.ones((5, 4)), np.ones((5, 4))])


def test_a_predictor_follows_the_weights_of_its_model():
    model = normalised_model()
    x = np.random.default_rng(4).normal(size=(9, 6, 6, 2)).astype(np.float32)
    predict = predictor(nns.InstrumentedModel(model))
    model.get_layer("conv").kernel.assign(np.ones((3, 3, 2, 4)))
    np.testing.assert_allclose(predict({}, x), outputs(model, x), rtol=1e-5)


def test_normalisations_get_the_statistics_of_the_samples():
    model = normalised_model()
    x = np.random.default_rng(4).normal(size=(40, 6, 6, 2)).astype(np.float32)
    sums = nns.InstrumentedModel(model).capture(x, of=["conv"])["conv"]
    found = pruning.renormalise(model, x).get_layer("norm")
    np.testing.assert_allclose(found.moving_mean, sums.mean(axis=(0, 1, 2)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.moving_variance, sums.var(axis=(0, 1, 2)), rtol=1e-4)
    assert found.momentum == model.get_layer("norm").momentum == 0.99
    with pytest.raises(nns.errors.InvalidArgumentError, match="two samples or more"):
        pruning.renormalise(model, x[:1])


def test_a_predictor_gives_what_pruned_models_give():
    model = normalised_model()
    im = nns.InstrumentedModel(model)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 6, 6, 2)).astype(np.float32)
    predict = predictor(im)
    for seed in range(3):
        keep = pruning.keep_masks(pruning.scores(im, "random", rng=seed), 0.6)
        keep["conv"][..., seed] = False
        pruned = pruning.apply_masks(model, keep)
        np.testing.assert_allclose(predict(keep, x), outputs(pruned, x), rtol=1e-5)
    np.testing.assert_allclose(predict({}, x), outputs(model, x), rtol=1e-6)


def test_fine_tuning_keeps_the_masks_and_brings_accuracy_back():
    model = zoo.load("digits_cnn")
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    im = nns.InstrumentedModel(model)
    pruned = pruning.prune(model, pruning.scores(im, "weight"), 0.85)
    before = zoo.accuracy(pruned, test)
    tuned = pruning.fine_tune(pruned, train.x, train.y, 4, batch_size=32, rng=1, progress=False)
    assert tuned is pruned
    assert zoo.accuracy(tuned, test) > max(0.8, before + 0.15)
    for name, mask in pruning.masks(tuned).items():
        assert not nns.InstrumentedModel(tuned).kernels[name].kernel()[~mask].any()
    with pytest.raises(nns.errors.InvalidArgumentError, match="each of 3 samples"):
        pruning.fine_tune(tuned, train.x[:3], train.y[:2])
