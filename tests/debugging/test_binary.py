"""Classifiers with one sigmoid, compared with twins that have an output for each class."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.debugging import METHODS, Runs, compare_layers, mend, recipe, repair, suspicious
from nnslicer_tf.dflare import compress
from nnslicer_tf.errors import InvalidArgumentError

SIZES = {"a": 24, "b": 16}


def network(units, final):
    inputs = keras.Input((10,), name="x")
    y = layers.Dense(SIZES["a"], "relu", name="a")(inputs)
    y = layers.Dense(SIZES["b"], "relu", name="b")(y)
    return keras.Model(inputs, layers.Dense(units, final, name="out")(y))


def twin_of(model, factor=1.0):
    """A model with the scores −z and z (times a factor) for a model of the logit z."""
    twin = network(2, "softmax")
    for name in SIZES:
        twin.get_layer(name).set_weights(model.get_layer(name).get_weights())
    kernel, bias = model.get_layer("out").get_weights()
    both = [factor * np.concatenate([-v, v], axis=-1) for v in (kernel, bias)]
    twin.get_layer("out").set_weights(both)
    return twin


@pytest.fixture(scope="module")
def binary():
    """A trained classifier of two classes, its samples and their labels."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 10)).astype(np.float32)
    y = (x[:, :3].sum(axis=1) + 0.8 * rng.normal(size=400) > 0).astype(int)
    model = network(1, "sigmoid")
    model.compile("adam", "binary_crossentropy")
    model.fit(x, y, epochs=3, verbose=0)
    return model, x, y


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
        suspicious(nns.InstrumentedModel(m), *parts, method, theta=0.2, progress=False)
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


def test_a_repair_is_right_for_both_classes(binary, runs):
    model = binary[0]
    im = nns.InstrumentedModel(model)
    chosen = [np.flatnonzero(runs.failing.right == label)[:1] for label in (0, 1)]
    rows = np.concatenate(chosen)
    x, y = runs.failing.x[rows], runs.failing.right[rows]
    repaired = repair(im, "out", x, y, margin=0.1)
    z = np.log(p / (1 - p)) if (p := repaired.model(x).numpy()[:, 0]).any() else p
    assert len(rows) == 2 and ((2 * y - 1) * 2 * z >= 0.099).all()
    two = repair(nns.InstrumentedModel(twin_of(model)), "b", x, y, margin=0.1)
    one = repair(im, "b", x, y, margin=0.1)
    assert np.abs(one.change).sum() == pytest.approx(np.abs(two.change).sum(), rel=1e-3)


@pytest.mark.parametrize("how", ["mask", "scale", "train"])
def test_mending_is_that_of_the_twin(binary, runs, how):
    model = binary[0]
    x, y = (
        np.concatenate([getattr(p, n) for p in (runs.failing, runs.passing)])[:60]
        for n in ("x", "right")
    )
    outputs = []
    for one in (model, twin_of(model, 0.5)):  # its softmax is the sigmoid
        im = nns.InstrumentedModel(one)
        parts = [(part.x, part.right) for part in (runs.failing, runs.passing)]
        suspicion = suspicious(im, *parts, progress=False)
        outputs.append(mend(im, suspicion, x, y, how, epochs=3)(x).numpy()[:, -1])
    np.testing.assert_allclose(*outputs, atol=1e-3)
    assert not np.allclose(outputs[0], model(x).numpy()[:, 0], atol=1e-4)


@pytest.mark.parametrize("outputs", [("linear", 1), ("sigmoid", 3)])
def test_what_is_no_classifier(outputs):
    final, units = outputs
    im = nns.InstrumentedModel(network(units, final))
    x, y = np.zeros((4, 10), np.float32), np.zeros(4, int)
    for call in (
        lambda: Runs.split(im, x, y),
        lambda: repair(im, "a", x, y),
    ):
        with pytest.raises(InvalidArgumentError, match=r"is not a classifier|exclude each other"):
            call()
