"""A model with two inputs: semantic slicing, pruning, coverage and inspection take it."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import deepbase, deepxplore, pruning, semantic

CRITICAL = {"hidden": np.arange(6) < 4}


@pytest.fixture(scope="module")
def made():
    keras.utils.set_random_seed(0)
    question, picture = keras.Input((6, 2), name="question"), keras.Input((4,), name="picture")
    read = layers.GRU(5, name="read")(question)
    seen = layers.Dense(4, activation="relu", name="see")(picture)
    x = layers.Concatenate(name="both")([read, seen])
    x = layers.Dense(6, activation="relu", name="hidden")(x)
    answer, sure = layers.Dense(3, name="answer")(x), layers.Dense(2, name="sure")(x)
    model = keras.Model([question, picture], [answer, sure])
    rng = np.random.default_rng(0)
    data = {
        "question": rng.normal(size=(30, 6, 2)).astype(np.float32),
        "picture": rng.normal(size=(30, 4)).astype(np.float32),
    }
    return model, nns.InstrumentedModel(model), data, np.arange(30) % 3


@pytest.fixture(scope="module")
def joined(made):
    """The same network with one input, which it cuts, and with the first output alone."""
    model, _, data, _ = made
    flat = keras.Input((16,))
    question = layers.Reshape((6, 2))(flat[:, :12])
    outputs = model([question, flat[:, 12:]])
    x = np.concatenate([data["question"].reshape(30, -1), data["picture"]], axis=1)
    return nns.InstrumentedModel(keras.Model(flat, outputs[0])), x


@pytest.mark.parametrize("metric", ["avg", "var", "taylor"])
def test_scores_and_slices_are_those_of_the_joined_model(made, joined, metric):
    model, im, data, y = made
    one, x = joined
    found = semantic.contributions(im, data, metric, y, batch_size=7)
    expected = semantic.contributions(one, x, metric, y)
    prefix = f"{model.name}/"
    assert {f"{prefix}{name}" for name in found} == {*expected, f"{prefix}read"} == {*expected}
    for name, scores in found.items():
        np.testing.assert_allclose(scores, expected[prefix + name], rtol=1e-3, atol=1e-6)
    slicer = semantic.SemanticSlicer(im, data, y, metric)
    other = semantic.SemanticSlicer(one, x, y, metric)
    for name, values in slicer.similarities.items():
        np.testing.assert_allclose(values, other.similarities[prefix + name], rtol=1e-3)


def test_restructured_and_pruned(made):
    model, im, data, _ = made
    small = semantic.restructure(model, CRITICAL)
    masked = semantic.masked(model, CRITICAL)
    for a, b in zip(small(data), masked(data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert small.get_layer("hidden").units == 4
    by_weight = pruning.prune(model, pruning.scores(im, "weight"), 0.5)
    zeros = [np.mean(w.numpy() == 0) for w in by_weight.trainable_weights if "kernel" in w.path]
    assert 0.4 < np.mean(zeros) < 0.6
    scores = pruning.scores(im, "nnslicer", data, im.logits(data).argmax(axis=1))
    profile = nns.Profile.from_data(im, data, progress=False)
    assert (
        {*scores}
        == {*im.kernels}
        == {*nns.Slicer(im, profile).slice(data, outputs={"answer": [0]}).synapses}
    )


def test_selective_training(made):
    model, _, data, y = made
    with pytest.raises(nns.errors.SeveralInputsError, match="2 inputs"):
        semantic.readapt(model, CRITICAL, data, y, data)


def test_coverage_and_inspection(made):
    _, im, data, y = made
    coverage = deepxplore.NeuronCoverage(im)
    coverage.update(data)
    assert coverage.samples == 30 and coverage.covered["hidden"].any()
    table = deepbase.inspect(
        im, data, deepbase.classes(y, list("abc")), ["correlation"], units="hidden"
    )
    values = im.capture(data, of=["hidden"])["hidden"]
    for row in table.itertuples():
        if values[:, row.unit].std() > 0:
            expected = np.corrcoef(values[:, row.unit], y == "abc".index(row.hypothesis))[0, 1]
            assert row.score == pytest.approx(expected, abs=1e-4)
