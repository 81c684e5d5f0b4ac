"""Slices on the other backends of Keras agree with the oracles, too."""

import os
import subprocess
import sys

import pytest

_ON_A_BACKEND = """
import sys
sys.path.insert(0, {tests!r})
import keras, numpy as np
from pytest import MonkeyPatch
import nnslicer_tf as nns
from slicing.test_against_oracle import Case
from slicing.test_amounts import test_amounts_of_normalisations_and_activations_add_up
from slicing.test_sequences_against_oracle import check_model
from support.models import MODELS
assert keras.backend.backend() == {backend!r}
for name in ("conv groups", "average pool"):
    case = Case(MODELS[name](), np.random.default_rng(0))
    case.check("activation", (0.0, 0.5))
    case.check_amounts("activation")
for seed in range(3):
    check_model(seed, MonkeyPatch())
test_amounts_of_normalisations_and_activations_add_up(keras.layers.LayerNormalization())
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_slices_agree_with_the_oracles(backend):
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    tests = os.path.dirname(os.path.dirname(__file__))
    code = _ON_A_BACKEND.format(tests=tests, backend=backend)
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
