"""Operations whose value is a single number, and products with a vector of weights."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import slicing
from nnslicer_tf.instrument import Ablation

PRODUCTS = {
    "matmul": lambda x, w: ops.matmul(x, w),
    "dot": lambda x, w: ops.dot(x, w),
    "tensordot": lambda x, w: ops.tensordot(x, w, 1),
    "einsum": lambda x, w: ops.einsum("bi,i->b", x, w),
    "sum": lambda x, w: ops.sum(x * w, axis=-1),
    "constant first": lambda x, w: ops.matmul(w, ops.stack([x, x], axis=-1))[:, 1],
}
X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


class Product(layers.Layer):
    """tanh of relu(x) · w, a single number."""

    def __init__(self, name: str) -> None:
        super().__init__(name="product")
        self.function = PRODUCTS[name]

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="random_normal", name="w")

    def call(self, x):
        return ops.expand_dims(ops.tanh(self.function(ops.relu(x), self.w)), -1)


@pytest.fixture(params=[*PRODUCTS])
def model(request):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,))
    hidden = layers.Dense(6, name="hidden")(inputs)
    both = layers.Concatenate()([hidden, Product(request.param)(hidden)])
    return keras.Model(inputs, layers.Dense(2, name="out")(both))


def test_amounts_add_up_and_every_level_has_units(model, tmp_path):
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(X), model.predict(X, verbose=0), atol=1e-6)
    profile = nns.Profile.from_data(im, X, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, contribution="amount", progress=False)
    amounts = slicer.slice(X[:1], outputs=[0]).neurons
    mean = profile.means[im.input_operation].astype(np.float32)
    change = np.subtract(*model.predict(np.stack([X[0], mean]), verbose=0)[:, 0])
    assert amounts[im.input_operation].sum() == pytest.approx(change, abs=1e-5)
    for level in ("neuron", "channel", "head"):
        values = Ablation(im, profile, level).outputs({}, X)
        np.testing.assert_allclose(values, model.predict(X, verbose=0), atol=1e-5)
    assert len(nns.Slicer(im, profile, 0.1, progress=False).slice_each(X[:3]))
    patched = slicing.patch(im, X[0], X[1], target=0, sweep="channel")
    assert np.isfinite(patched.to_frame()["effect"]).all()
    page = nns.explore(slicer.slice_each(X[:2]), im, X[:2], profile=profile)
    page.save(tmp_path / "page.html")
