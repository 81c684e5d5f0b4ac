"""Metrics and attributions equal those of Xplique 2.0.2 within 1e-3; see `xplique.json`."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.attributions import ATTRIBUTIONS, metrics
from nnslicer_tf.attributions.methods import sampled_gradients
from nnslicer_tf.errors import InvalidArgumentError

XPLIQUE = json.loads((Path(__file__).parent / "xplique.json").read_text(encoding="utf-8"))
ZERO = np.zeros((8, 8, 1), np.float32)
MAPS = np.random.default_rng(1).normal(size=(4, 8, 8, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(zoo.load("digits_cnn"))


@pytest.fixture(scope="module")
def samples():
    return list(
        zip(datasets.load("digits", "test").x[XPLIQUE["index"]], XPLIQUE["target"], strict=True)
    )


@pytest.mark.parametrize("name", ["gradient × input", "integrated gradients"])
def test_attributions_equal_those_of_xplique(im, samples, name):
    """Xplique's trapezoidal sum of integrated gradients has 50 points, that is, 49 steps."""
    for i, (x, target) in enumerate(samples):
        if name == "integrated gradients":
            values = sampled_gradients(im, x, ZERO, target, samples=49)
        else:
            values = ATTRIBUTIONS[name](im, x, ZERO, target)
        expected = XPLIQUE[name][i]
        np.testing.assert_allclose(values.ravel(), expected, atol=1e-3)


@pytest.mark.parametrize(
    "metric",
    [
        lambda im, x, t, m: metrics.deletion(im, x, ZERO, t, m, steps=16).area,
        lambda im, x, t, m: metrics.insertion(im, x, ZERO, t, m, steps=16).area,
    ],
    ids=["deletion", "insertion"],
)
def test_metrics_of_given_maps_equal_those_of_xplique(request, im, samples, metric):
    expected = XPLIQUE[request.node.callspec.id]
    values = [metric(im, x, t, values) for (x, t), values in zip(samples, MAPS, strict=True)]
    np.testing.assert_allclose(values, expected, atol=1e-3)


def test_deletion_and_insertion_meet(im, samples):
    """The first point of the one is the last point of the other."""
    x, target = samples[0]
    down = metrics.deletion(im, x, ZERO, target, MAPS[0], steps=4).answers
    up = metrics.insertion(im, x, ZERO, target, MAPS[0], steps=4).answers
    np.testing.assert_allclose(down[[0, -1]], up[[-1, 0]], rtol=1e-5)


def test_values_for_several_inputs_are_checked():
    inputs = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    im = nns.InstrumentedModel(
        keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(inputs)))
    )
    x = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
    zero = {name: 0 * value for name, value in x.items()}
    assert np.isfinite(metrics.deletion(im, x, zero, 1, x, 5).area)
    wrong = ({"a": np.ones(2)}, np.ones(5), [*x.values()], x | {"c": np.ones(1)})
    for values in wrong:
        with pytest.raises(
            InvalidArgumentError, match="values must be a dict with an array for each"
        ):
            metrics.deletion(im, x, zero, 1, values, 5)
    with pytest.raises(InvalidArgumentError, match="the shape of the sample"):
        metrics.insertion(im, x, zero, 1, x | {"a": "abc"}, 5)
