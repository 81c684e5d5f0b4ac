"""A mask for each sample: the same as one sample after another, for every kind of kernel."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import instrument
from nnslicer_tf.instrument import upstream

LAYERS = {
    "dense": ((5,), lambda x: layers.Dense(3)(x)),
    "dense of positions": ((4, 5), lambda x: layers.Dense(3)(x)),
    "causal, dilated": (
        (9, 3),
        lambda x: layers.Conv1D(4, 3, 1, "causal", dilation_rate=2)(x),
    ),
    "dilated signal, same": (
        (9, 3),
        lambda x: layers.Conv1D(4, 4, padding="same", dilation_rate=3)(x),
    ),
    "dilated groups, same": (
        (7, 6, 4),
        lambda x: layers.Conv2D(6, 3, padding="same", dilation_rate=(2, 1), groups=2)(x),
    ),
    "dilated volume, same": (
        (4, 5, 4, 2),
        lambda x: layers.Conv3D(3, 2, padding="same", dilation_rate=2)(x),
    ),
    "depthwise, dilated, same": (
        (7, 6, 3),
        lambda x: layers.DepthwiseConv2D(3, padding="same", dilation_rate=2)(x),
    ),
    "depthwise, dilated": (
        (9, 8, 3),
        lambda x: layers.DepthwiseConv2D(3, dilation_rate=(1, 2), depth_multiplier=2)(x),
    ),
    "depthwise, dilated, strided, same": (
        (9, 9, 3),
        lambda x: layers.DepthwiseConv2D(3, 2, "same", dilation_rate=2)(x),
    ),
    "separable, dilated, same": (
        (8, 3),
        lambda x: layers.SeparableConv1D(4, 3, padding="same", dilation_rate=2)(x),
    ),
    "strided, same": ((7, 6, 3), lambda x: layers.Conv2D(4, 3, 2, padding="same")(x)),
    "groups": ((6, 6, 4), lambda x: layers.Conv2D(6, 3, groups=2)(x)),
    "size 1": ((5, 5, 3), lambda x: layers.Conv2D(4, 1)(x)),
    "size 1 of groups": ((5, 5, 4), lambda x: layers.Conv2D(4, 1, groups=2)(x)),
    "size 1, strided": ((5, 5, 3), lambda x: layers.Conv2D(4, 1, 2)(x)),
    "stride above size": ((9, 3), lambda x: layers.Conv1D(4, 2, 3)(x)),
    "volume": ((4, 5, 4, 2), lambda x: layers.Conv3D(3, 2)(x)),
    "depthwise": ((6, 6, 3), lambda x: layers.DepthwiseConv2D(3, 2, depth_multiplier=2)(x)),
    "depthwise of a signal": ((8, 3), lambda x: layers.DepthwiseConv1D(3)(x)),
    "separable": ((8, 3), lambda x: layers.SeparableConv1D(4, 3, depth_multiplier=2)(x)),
    "transposed": ((4, 4, 3), lambda x: layers.Conv2DTranspose(2, 3, 2)(x)),
    "einsum": ((3, 4, 2), lambda x: layers.EinsumDense("abcd,dce->abe", (3, 5))(x)),
    "einsum of groups": ((3, 4, 2), lambda x: layers.EinsumDense("abcd,cde->abce", (3, 4, 5))(x)),
    "attention": ((4, 6), lambda x: layers.MultiHeadAttention(2, 3)(x, x)),
    "each time": ((3, 5, 2), lambda x: layers.TimeDistributed(layers.Conv1D(2, 3))(x)),
    "recurrent": ((4, 3), lambda x: layers.GRU(3)(x)),
    "convolution in time": ((3, 4, 4, 2), lambda x: layers.ConvLSTM2D(2, 2)(x)),
}


WEEKLY = {"volume", "size 1 of groups", "depthwise of a signal", "each time", "recurrent"}
WEEKLY |= {"convolution in time", "stride above size", "dense", "einsum", "size 1, strided"}
# What these have, dilation, groups or depthwise kernels, others have with strides or alone.
WEEKLY |= {"dilated groups, same", "dilated volume, same", "dilated signal, same", "separable"}
WEEKLY |= {"depthwise, dilated", "depthwise, dilated, same"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in WEEKLY else n for n in LAYERS]
)
def test_rows_are_those_of_single_samples(name):
    shape, layer = LAYERS[name]
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape)
    h = keras.layers.Activation("relu")(layer(inputs))
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, *shape)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    ablation = instrument.Ablation(model, profile, target=1)
    masks = (rng.random((4, ablation.units)) < 0.6).astype(np.float32)
    together = ablation.outputs(masks, x)
    scores, effects = ablation.effects(masks, x)
    for row in range(4):
        one = x[row : row + 1]
        np.testing.assert_allclose(together[row], ablation.outputs(masks[row], one)[0], atol=1e-5)
        score, effect = ablation.effects(masks[row], one)
        np.testing.assert_allclose(scores[row], score[0], atol=1e-5)
        np.testing.assert_allclose(effects[row], effect, atol=1e-4)
    assert np.abs(effects).max() > 0.01


def test_a_backend_without_gradients_of_groups(monkeypatch):
    """One row after another, with the same results."""
    monkeypatch.setattr(upstream, "_has_grouped_gradients", lambda rank: False)
    model = keras.Sequential([keras.Input((5, 5, 2)), layers.Conv2D(3, 2), layers.Flatten()])
    im = nns.InstrumentedModel(model)
    assert next(iter(im.kernels.values())).by_rows is None
    x = np.random.default_rng(0).normal(size=(2, 5, 5, 2)).astype(np.float32)
    masks = np.eye(2, len(next(iter(im.kernels.values())).kernel().ravel()), dtype=np.float32)
    ablation = instrument.Ablation(im, "zero")
    for row in range(2):
        mine = ablation.outputs(masks, x)[row]
        np.testing.assert_allclose(mine, ablation.outputs(masks[row], x[row : row + 1])[0], 1e-5)
