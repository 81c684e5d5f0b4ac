"""Results that are measured on a part of the samples do not depend on the order of all."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import debugging, deepxplore, versions
from nnslicer_tf.instrument import Ablation
from nnslicer_tf.instrument.inputs import Inputs, drawn

CLASSES = 3


@pytest.fixture(scope="module")
def models():
    """A model with one layer that decides, and one in which two layers' weights changed."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,), name="x")
    hidden = layers.Dense(12, activation="relu", name="h")(inputs)
    old = keras.Model(inputs, layers.Dense(CLASSES, name="o")(hidden))
    new = keras.models.clone_model(old)
    rng = np.random.default_rng(0)
    new.set_weights([w + rng.normal(scale=0.4, size=w.shape) for w in old.get_weights()])
    return old, new


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(3000, 6)).astype(np.float32)


def orders(old, x):
    """The samples as drawn, by their class, and the other way round."""
    by_class = np.argsort(old.predict(x, verbose=0).argmax(1), kind="stable")
    return [np.arange(len(x)), by_class, by_class[::-1]]


def test_the_layers_of_changed_answers(models, x):
    old, new = models
    found = [versions.compare(old, new, x[order]) for order in orders(old, x)]
    assert len(found[0].changed) > 1000  # more than are measured
    for one in found[1:]:
        for column in ("old answer without", "new answer with"):
            np.testing.assert_allclose(one.layers[column], found[0].layers[column], atol=1e-9)
        assert one.summary() == found[0].summary()
    # Those that are measured are as good as drawn: by Keras, over all changed answers.
    before, after = (m.predict(x, verbose=0).argmax(1) for m in models)
    changed = before != after
    for name, table in found[0].layers.groupby("layer"):
        mixed = keras.models.clone_model(new)
        mixed.set_weights(new.get_weights())
        mixed.get_layer(name).set_weights(old.get_layer(name).get_weights())
        gone = (mixed.predict(x[changed], verbose=0).argmax(1) == before[changed]).mean()
        assert table["old answer without"].item() == pytest.approx(gone, abs=0.08)


def test_the_ranking_of_units(models, x):
    old, _ = models
    faulty = keras.models.clone_model(old)
    kernel, *rest = old.get_weights()
    kernel = kernel.copy()
    kernel[:, 5] *= -1
    faulty.set_weights([kernel, *rest])
    y = old.predict(x, verbose=0).argmax(1)
    tables = []
    for order in orders(old, x):
        failing = faulty.predict(x[order], verbose=0).argmax(1) != y[order]
        pair = [(x[order][part], y[order][part]) for part in (failing, ~failing)]
        assert min(len(part) for part, _ in pair) > 64
        tables.append(
            debugging.suspicious(
                nns.InstrumentedModel(faulty), *pair, "adjustment", progress=False
            ).to_frame()
        )
    for table in tables[1:]:
        assert table["channel"].tolist() == tables[0]["channel"].tolist()
        np.testing.assert_allclose(table["score"], tables[0]["score"], atol=1e-6)


@pytest.mark.parametrize("most", [1, 7, 50, 80])
def test_samples_are_drawn_by_their_values(most):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 3)), rng.integers(0, 5, size=50)
    order = rng.permutation(50)
    for one, other in ((a, a[order]), (Inputs({"a": a, "b": b}), Inputs({"a": a, "b": b})[order])):
        chosen = drawn(one, most)
        assert len(set(chosen)) == min(most, 50)
        assert order[drawn(other, most)].tolist() == chosen.tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint64", "int64"])
def test_numbers_of_numpy_do_not_overflow(models, x, dtype):
    im, size = nns.InstrumentedModel(models[0]), np.dtype(dtype).type(100)
    expected = models[0].predict(x[:300], verbose=0)
    np.testing.assert_allclose(im.predict(x[:300], batch_size=size), expected, atol=1e-5)
    ablation = Ablation(im, "zero", "neuron")
    np.testing.assert_allclose(
        ablation.outputs({}, x[:300], batch_size=size), expected, rtol=1e-4, atol=1e-5
    )
    assert nns.Profile.from_data(im, x[:300], batch_size=size, progress=False).samples == 300
    coverage = deepxplore.NeuronCoverage(im, np.float16(0.5))
    coverage.update(x[:300], batch_size=size)
    assert coverage.samples == 300
