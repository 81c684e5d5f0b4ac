"""The exclusion as tensor operations: the same integers as the kernels, the same amounts."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.kinds import tensor_exclusion
from nnslicer_tf.slicing import slicer as slicer_module
from support import sequence_models
from support.slices import check_close

THETAS = (0.1, 0.3, 0.9)


def slicers(im, profile, theta, **settings):
    """Return a slicer that uses the kernels, and one that uses tensors."""
    settings |= {"workers": 0, "progress": False}
    return (nns.Slicer(im, profile, theta, device=d, **settings) for d in ("kernels", "tensors"))


def check(im, profile, x, thetas=THETAS, **settings):
    """Compare counts at some thresholds, and amounts at the last one."""
    for theta in thetas:
        kernels, tensors = slicers(im, profile, theta, **settings)
        assert tensors.slice(x, outputs=[0, 2]) == kernels.slice(x, outputs=[0, 2])
    both = slicers(im, profile, thetas[-1], contribution="amount", **settings)
    check_close(*(slicer.slice(x, outputs=[0, 2]) for slicer in both))


def check_model(model, profile_data, x, thetas=THETAS, **settings):
    im = nns.InstrumentedModel(model)
    check(im, nns.Profile.from_data(im, profile_data, progress=False), x, thetas, **settings)


@pytest.mark.parametrize("seed", range(4))
def test_attention_embeddings_and_masks(seed):
    rng = np.random.default_rng(seed)
    model = sequence_models.random_sequence_model(rng)
    check_model(model, sequence_models.tokens(rng, 5), sequence_models.tokens(rng, 3), (0.3,))


@pytest.mark.parametrize("block", [1, 2000, 1 << 22])
def test_blocks_of_any_size(im, profile, x, block, monkeypatch):
    """Normal values; blocks of one sum, of a few, and of all."""
    monkeypatch.setattr(tensor_exclusion, "BLOCK_VALUES", block)
    check(im, profile, x[: 40 if block > 2000 else 1], THETAS if block > 2000 else (0.3,))


def test_slices_of_each_sample(im, profile, x):
    kernels, tensors = slicers(im, profile, 0.3)
    expected, found = kernels.slice_each(x), tensors.slice_each(x)
    assert (found.matrix != expected.matrix).nnz == 0
    assert (found.neuron_matrix != expected.neuron_matrix).nnz == 0


def test_recurrent_layers():
    rng = np.random.default_rng(0)
    for layer in (layers.LSTM(4), layers.GRU(3, reset_after=False)):
        model = keras.Sequential([keras.Input((5, 3)), layers.Masking(), layer, layers.Dense(3)])
        x = rng.normal(size=(8, 5, 3)).astype(np.float32)
        x[::2, 3:] = 0
        check_model(model, x, x[:3], (0.3,))


def test_kernels_are_the_default_without_a_gpu(im, profile, x, monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    monkeypatch.setattr(tensor_exclusion, "weighted_sum", fail)
    nns.Slicer(im, profile, 0.3, workers=0, progress=False).slice(x[:1])
    with pytest.raises(AssertionError):
        nns.Slicer(im, profile, 0.3, progress=False, device="tensors").slice(x[:1])
    monkeypatch.setattr(slicer_module, "is_on_gpu", lambda variables: True)
    with pytest.raises(AssertionError):
        nns.Slicer(im, profile, 0.3, progress=False).slice(x[:1])
    with pytest.raises(nns.errors.InvalidArgumentError, match="device"):
        nns.Slicer(im, profile, 0.3, device="gpu")


_ON_A_BACKEND = """
import sys
sys.path.insert(0, {tests!r})
import keras, numpy as np
from slicing.test_tensors import check_model
from support import sequence_models
from support.models import MODELS, data, set_dyadic_weights
assert keras.backend.backend() == {backend!r}
for name in ("conv groups", "average pool"):
    rng = np.random.default_rng(0)
    model = set_dyadic_weights(MODELS[name](), rng)
    check_model(model, data(rng, model, 4), data(rng, model, 3), (0.3,))
for seed in range(4):
    rng = np.random.default_rng(seed)
    model = sequence_models.random_sequence_model(rng)
    check_model(model, sequence_models.tokens(rng, 5), sequence_models.tokens(rng, 3), (0.3,))
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    tests = os.path.dirname(os.path.dirname(__file__))
    code = _ON_A_BACKEND.format(tests=tests, backend=backend)
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
