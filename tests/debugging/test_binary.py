"""Classifiers with one sigmoid, compared with twins that have an output for each class."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.debugging import METHODS, Runs, compare_layers, mend, recipe, suspicious
from nnslicer_tf.dflare import compress
from nnslicer_tf.errors import InvalidArgumentError
from support.binary import network, twin_of


@pytest.fixture(scope="module")
def runs(binary):
    model, x, y = binary
    return Runs.split(nns.InstrumentedModel(model), x, y)


def test_runs_are_split_by_the_class(binary, runs):
    model, x, y = binary
    wrong = (model(x).numpy()[:, 0] > 0.5).astype(int) != y
    assert 0.02 < wrong.mean() < 0.5
    np.testing.assert_array_equal(runs.failing.x, x[wrong])
    np.testing.assert_array_equal(runs.failing.predicted, 1 - y[wrong])
    np.testing.assert_array_equal(runs.passing.right, y[~wrong])


@pytest.mark.parametrize("method", list(METHODS))
def test_suspicion_is_that_of_the_twin(binary, runs, method):
    model = binary[0]
    parts = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    one, two = (
        suspicious(nns.InstrumentedModel(m), *parts, method, progress=False)
        for m in (model, twin_of(model))
    )
    for mine, twins in ((one.neurons, two.neurons), (one.synapses, two.synapses)):
        names = [name for name in mine if not name.startswith("out")]
        assert names
        for name in names:
            np.testing.assert_allclose(mine[name], twins[name], rtol=2e-3, atol=1e-5)
    assert max(v.max() for v in one.channels.values()) > 0


def rounded(model, step=0.2):
    copy = keras.models.clone_model(model)
    copy.set_weights([np.round(w / step) * step for w in model.get_weights()])
    return copy


def test_layers_are_compared_as_the_twins(binary):
    model, x, _ = binary
    one = compare_layers(nns.InstrumentedModel(model), rounded(model), x, progress=False)
    twin, copy = twin_of(model), twin_of(rounded(model))
    two = compare_layers(nns.InstrumentedModel(twin), copy, x, progress=False)
    outputs = [m(x).numpy()[:, 0] > 0.5 for m in (model, rounded(model))]
    np.testing.assert_array_equal(one.rows, np.flatnonzero(outputs[0] != outputs[1]))
    np.testing.assert_array_equal(one.labels, two.labels)
    assert f"{len(one.rows)} of 400 samples deviate" in repr(one)
    for name, share in one.causes.items():
        assert share == pytest.approx(two.causes[name], abs=1e-4)
        assert one.alone[name] == two.alone[name]
    assert sum(one.causes.values()) == pytest.approx(1)
    assert recipe(one, 0.9).mended == recipe(two, 0.9).mended


@pytest.mark.parametrize("integers", [False, True])
def test_files_of_binary_models(binary, integers):
    model, x, _ = binary
    file = compress(model, "int8", x[:100]) if integers else compress(rounded(model), "dynamic")
    near = x[np.argsort(np.abs(model(x).numpy()[:, 0] - 0.5))[:60]]
    im = nns.InstrumentedModel(model)
    compared = compare_layers(im, file, np.concatenate([near, x]), progress=False)
    assert 0 < len(compared.rows) < compared.given == 460
    assert sum(compared.causes.values()) == pytest.approx(1)


@pytest.mark.parametrize("how", ["mask", "scale", "train"])
def test_mending_is_that_of_the_twin(binary, runs, how):
    model = binary[0]
    x, y = (
        np.concatenate([getattr(p, n) for p in (runs.failing, runs.passing)])[:60]
        for n in ("x", "right")
    )
    outputs = []
    for one in (model, twin_of(model)):
        im = nns.InstrumentedModel(one)
        parts = [(part.x, part.right) for part in (runs.failing, runs.passing)]
        suspicion = suspicious(im, *parts, progress=False)
        outputs.append(mend(im, suspicion, x, y, how, epochs=3)(x).numpy()[:, -1])
    np.testing.assert_allclose(*outputs, atol=1e-3)
    assert not np.allclose(outputs[0], model(x).numpy()[:, 0], atol=1e-4)


def test_independent_labels():
    im = nns.InstrumentedModel(network(3, "sigmoid"))
    x, y = np.zeros((4, 10), np.float32), np.zeros(4, int)
    with pytest.raises(InvalidArgumentError, match="exclude each other"):
        Runs.split(im, x, y)
