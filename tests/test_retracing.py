"""TensorFlow warns of retracing where several models are made in one process."""

import subprocess
import sys

import keras
import pytest

from nnslicer_tf.instrument.backend import compiled_function

PROGRAM = """
import keras
import numpy as np
from nnslicer_tf import dflare, pruning

x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
for _ in range(7):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    if {ours}:
        pair = dflare.ModelPair(model, keras.models.clone_model(model))
        dflare.agreement(pair, x)
        pruning.fine_tune(model, x, np.arange(24) % 3, from_logits=False, progress=False)
    else:
        model.predict_on_batch(x)
"""


def warnings_of(ours):
    program = PROGRAM.format(ours=ours)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr.count("triggered tf.function retracing")


@pytest.mark.whole
def test_tensorflow_does_not_warn_of_retracing():
    """It takes the functions that Keras makes for new models for one, and warns of the fifth."""
    assert warnings_of(ours=False)
    assert not warnings_of(ours=True)


def test_a_function_is_not_compiled_for_its_first_calls():
    runs = []
    square = compiled_function(lambda x: runs.append(1) or x * x, [(None,)], after=2)
    found = [float(square(keras.ops.ones(1) * k)[0]) for k in range(5)]
    assert found == [0, 1, 4, 9, 16]
    assert len(runs) == 3  # twice as it is, and once to be traced
