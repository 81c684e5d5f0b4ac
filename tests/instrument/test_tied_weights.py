"""Weights that are read in two places, as by an autoencoder that decodes with its encoder's kernel.

The truth is NumPy's: every use of the kernel follows it.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import pruning
from nnslicer_tf.instrument import Ablation

X = np.random.default_rng(0).normal(size=(64, 10)).astype(np.float32)


def _decoded(self, x):
    hidden = self.middle(self.encoder(x))
    return ops.matmul(hidden, ops.transpose(self.encoder.kernel))


def _decoded_by_the_kernel_itself(self, x):
    hidden = self.middle(self.encoder(x))
    return ops.einsum("bj,ij->bi", hidden, self.encoder.kernel)


def _built(self, **options):
    super(type(self), self).__init__(**options)
    self.encoder = layers.Dense(6, activation="tanh", name="encoder")
    self.middle = layers.Dense(6, activation="relu", name="middle")


register = keras.saving.register_keras_serializable("tests")
TiedModel = register(type("TiedModel", (keras.Model,), {"__init__": _built, "call": _decoded}))
TiedLayer = register(type("TiedLayer", (layers.Layer,), {"__init__": _built, "call": _decoded}))
Direct = register(
    type("Direct", (layers.Layer,), {"__init__": _built, "call": _decoded_by_the_kernel_itself})
)
LAYERS = {"layer": TiedLayer, "kernel itself": Direct}
KINDS = ("model", *LAYERS)


def _model(kind: str) -> keras.Model:
    keras.utils.set_random_seed(0)
    if kind == "model":
        model = TiedModel(name="tied")
        model(X)
        return model
    inputs = keras.Input((10,))
    return keras.Model(inputs, LAYERS[kind](name="tied")(inputs))


def _computed(model: keras.Model, kernel: np.ndarray) -> np.ndarray:
    part = model if isinstance(model, TiedModel) else model.get_layer("tied")
    hidden = np.tanh(X @ kernel + np.asarray(part.encoder.bias))
    middle = np.maximum(hidden @ np.asarray(part.middle.kernel) + np.asarray(part.middle.bias), 0)
    return middle @ kernel.T


def _encoder(model: keras.Model) -> np.ndarray:
    (kernel,) = (v for v in model.trainable_variables if v.shape == (10, 6))
    return kernel


@pytest.mark.parametrize("kind", KINDS)
def test_all_uses_follow_the_weights(kind):
    model = _model(kind)
    im = nns.InstrumentedModel(model, task="regression")
    kernel = _encoder(model)
    kernel.assign(kernel * -2.0)  # as training would, after wrapping
    expected = _computed(model, np.asarray(kernel))
    np.testing.assert_allclose(im.predict(X), expected, atol=1e-5)
    values = im.graph.run(ops.convert_to_tensor(X), im.output_operations)
    np.testing.assert_allclose(values[im.output_operations[0]], expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_is_zero_is_zero_wherever_it_is_read(kind):
    model = _model(kind)
    im = nns.InstrumentedModel(model, task="regression")
    keep = np.random.default_rng(1).random((10, 6)) > 0.3
    expected = _computed(model, np.asarray(_encoder(model)) * keep)
    name = "tied/encoder"
    ablation = Ablation(im, "zero")
    mask = {name: keep.astype(np.float32)}
    np.testing.assert_allclose(ablation.outputs(mask, X), expected, atol=1e-5)
    each = {name: np.broadcast_to(keep, (len(X), 10, 6))}
    np.testing.assert_allclose(ablation.outputs(each, X), expected, atol=1e-5)
    np.testing.assert_allclose(ablation.model(mask).predict(X, verbose=0), expected, atol=1e-5)
    pruned = pruning.apply_masks(model, {name: keep})
    np.testing.assert_allclose(pruned.predict(X, verbose=0), expected, atol=1e-5)
    np.testing.assert_array_equal(pruning.masks(pruned)[name], keep)


def test_a_number_that_is_computed_from_a_kernel_follows_its_mask():
    def call(self, x):
        return self.middle(self.encoder(x)) * ops.mean(self.encoder.kernel)

    keras.utils.set_random_seed(0)
    model = type("Scaled", (keras.Model,), {"__init__": _built, "call": call})()
    model(X)
    im = nns.InstrumentedModel(model, task="regression")
    (name,) = (name for name in im.kernels if name.endswith("encoder"))
    keep = np.random.default_rng(1).random((10, 6)) > 0.3
    found = Ablation(im, "zero").outputs({name: keep.astype(np.float32)}, X)
    model.encoder.kernel.assign(model.encoder.kernel * keep)
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_weights_inside_stay_zero_in_training(kind):
    model = _model(kind)
    keep = np.random.default_rng(1).random((10, 6)) > 0.3
    pruned = pruning.apply_masks(model, {"tied/encoder": keep})
    again = pruning.apply_masks(pruned, {"tied/encoder": np.roll(keep, 1)})
    again.compile("adam", "mse")
    again.fit(X, X, verbose=0)
    assert not np.asarray(_encoder(again))[~(keep & np.roll(keep, 1))].any()


def test_masks_of_two_kernels_that_share_a_variable_add_up():
    model = _model("kernel itself")
    names = [k for k in nns.InstrumentedModel(model).kernels if k != "tied/middle"]
    assert len(names) == 2
    keeps = [np.random.default_rng(i).random((10, 6)) > 0.3 for i in range(2)]
    pruned = pruning.apply_masks(model, dict(zip(names, keeps, strict=True)))
    kernel = np.asarray(_encoder(model)) * keeps[0] * keeps[1]
    np.testing.assert_allclose(pruned.predict(X, verbose=0), _computed(model, kernel), atol=1e-5)
    pruned.compile("adam", "mse")
    pruned.fit(X, X, verbose=0)
    assert not np.asarray(_encoder(pruned))[~(keeps[0] & keeps[1])].any()
