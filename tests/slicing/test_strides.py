"""Convolutions whose stride exceeds their kernel: the walk at θ = 0 against the one with θ."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns

CONVOLUTIONS = {
    "1 by 2": (layers.Conv2D(16, 1, strides=2), (30, 30, 8)),
    "same": (layers.Conv2D(4, 1, strides=2, padding="same"), (9, 8, 3)),
    "2 by 3": (layers.Conv2D(4, 2, strides=3, padding="same"), (10, 8, 3)),
    "valid": (layers.Conv2D(4, 2, strides=3), (10, 9, 3)),
    "one axis": (layers.Conv2D(4, (1, 3), strides=(2, 2), padding="same"), (9, 8, 3)),
    "1-D": (layers.Conv1D(4, 1, strides=3), (20, 3)),
    "causal": (layers.Conv1D(4, 2, strides=3, padding="causal"), (20, 3)),
    "3-D": (layers.Conv3D(4, 1, strides=2), (5, 6, 7, 2)),
    "transposed 1-D": (layers.Conv1DTranspose(4, 1, strides=3), (5, 3)),
    "transposed": (layers.Conv2DTranspose(8, 1, strides=2), (7, 7, 4)),
    "transposed same": (layers.Conv2DTranspose(4, 2, strides=3, padding="same"), (5, 4, 3)),
    "transposed one axis": (
        layers.Conv2DTranspose(4, (1, 3), strides=2, padding="same"),
        (5, 4, 3),
    ),
    "output padding": (
        layers.Conv2DTranspose(4, (2, 3), strides=(3, 2), output_padding=1),
        (5, 4, 3),
    ),
    "transposed 3-D": (layers.Conv3DTranspose(4, 1, strides=2), (3, 2, 3, 2)),
    "groups": (layers.Conv2D(4, 1, strides=2, groups=2), (8, 8, 4)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_synapses_equal_those_of_a_walk_that_excludes_nothing(name):
    convolution, shape = CONVOLUTIONS[name]
    keras.utils.set_random_seed(0)
    convolution = type(convolution).from_config(convolution.get_config())
    model = keras.Sequential(
        [keras.Input(shape), convolution, layers.ReLU(), layers.Flatten(), layers.Dense(3)]
    )
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    np.testing.assert_allclose(im.predict(x), model(x).numpy(), atol=1e-5)
    sums = im.kernels[convolution.name].apply(x, convolution.kernel)
    np.testing.assert_allclose(sums, convolution(x) - convolution.bias, atol=1e-5)
    profile = nns.Profile.from_data(im, x)
    nns.Slicer(im, profile, theta=0, contribution="amount", progress=False).slice(x, outputs=[1])
    slices = [
        nns.Slicer(im, profile, theta=theta, progress=False, workers=0).slice(x, outputs=[1])
        for theta in (0.0, 1e-30)
    ]
    for kernel in slices[0].synapses:
        np.testing.assert_array_equal(slices[0].synapses[kernel], slices[1].synapses[kernel])
