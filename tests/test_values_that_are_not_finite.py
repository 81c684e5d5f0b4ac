"""Samples for which the model gives NaN or infinity are refused by each analysis, at any size."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import semantic
from nnslicer_tf.errors import NonFiniteActivationError

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def words():
    """A model for which a text without words has no mean."""
    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            layers.Embedding(30, 8, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )
    ids = RNG.integers(1, 30, (40, 8))
    return model, nns.Profile.from_data(model, ids, progress=False), ids


@pytest.mark.parametrize("options", [{}, {"theta": 0.1}, {"contribution": "amount"}], ids=str)
@pytest.mark.parametrize("call", ["slice", "slice_each"])
@pytest.mark.parametrize("others", [0, 800])
def test_an_empty_text(options, call, others, words, tmp_path):
    model, profile, ids = words
    x = np.concatenate([np.tile(ids, (20, 1))[:others], np.zeros((1, 8), int)])
    slicer = nns.Slicer(model, profile, **{"theta": 0, "progress": False, **options})
    with pytest.raises(NonFiniteActivationError, match=f"sample {others}.*padding"):
        getattr(slicer, call)(x)
    for _ in range(2):  # the folder stays one that can be read
        with pytest.raises(NonFiniteActivationError):
            slicer.slice_each(x, folder=tmp_path / "f")


def test_an_activation_inside_that_overflows():
    """The answer is finite again, so that the logits alone do not show it."""
    inputs = keras.Input((4,))
    large = layers.Dense(4, kernel_initializer="ones", name="large")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(layers.Activation("tanh")(large)))
    x = RNG.normal(size=(30, 4)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    bad = x.copy()
    bad[7] = 3e38
    assert np.isfinite(model.predict(bad, verbose=0)).all()
    for options in ({"theta": 0}, {"theta": 0.1}, {"theta": 0, "contribution": "amount"}):
        slicer = nns.Slicer(model, profile, progress=False, **options)
        with (
            pytest.warns(nns.errors.InputRangeWarning),
            pytest.raises(NonFiniteActivationError, match="sample 7"),
        ):
            slicer.slice_each(bad)


@pytest.mark.parametrize("metric", semantic.METRICS)
def test_semantic_metrics(metric):
    hidden = layers.Dense(8, "relu", kernel_initializer="ones")
    model = keras.Sequential([keras.Input((4,)), hidden, layers.Dense(3, "softmax")])
    x, y = RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    x[20:30] = 3e38
    with pytest.raises(NonFiniteActivationError):
        semantic.contributions(model, x, metric, y, progress=False)
    with pytest.raises(NonFiniteActivationError):
        semantic.SemanticSlicer(model, x, y, metric, progress=False)
