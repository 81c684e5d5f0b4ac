"""Provable repair: what it promises holds, and is as small as can be."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.debugging import Runs
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.exactline import exact_line
from reproduction.debugging.provable_repair import InfeasibleRepairError, repair
from support.binary import twin_of


def leads(model, x, y):
    """The right logit minus the largest other one, in float64 from the repaired weights."""
    im = nns.InstrumentedModel(model)
    graph = im.graph
    x = keras.ops.convert_to_tensor(np.asarray(x, np.float64))
    logits = keras.ops.convert_to_numpy(graph.run(x, [im.logit_operation])[im.logit_operation])
    rows = np.arange(len(y))
    right = logits[rows, y].copy()
    logits[rows, y] = -np.inf
    return right - logits.max(axis=1)


def some(runs, wrong, right):
    """The first samples that the model gets wrong, and the first that it gets right."""
    parts = ((runs.failing, wrong), (runs.passing, right))
    return tuple(
        np.concatenate([getattr(part, name)[:count] for part, count in parts])
        for name in ("x", "right")
    )


@pytest.mark.parametrize("size", ["sum", "largest"])
@pytest.mark.parametrize(
    ("kernel", "counts"), [("logits", (4, 8)), ("hidden", (4, 8)), ("inner", (1, 3))]
)
def test_given_inputs_are_right(im, runs, kernel, counts, size):
    x, y = some(runs, *counts)
    found = repair(im, kernel, x, y, size=size, margin=0.01)
    assert leads(found.model, x, y).min() > 0.009
    for name, k in nns.InstrumentedModel(found.model).kernels.items():
        changed = k.kernel() != im.kernels[name].kernel()
        assert changed.any() == (name == kernel)
    assert found.points == len(x)
    assert found.to_frame()["changed"][0] == np.count_nonzero(found.change)


def test_the_least_change_of_one_weight_is_the_closed_form():
    """One point, one weight that may change: lead + w · x = margin."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, layers.Dense(2, name="out")(inputs))
    model.set_weights([np.array([[1.0, 0.0], [0.0, 0.5]]), np.zeros(2)])
    im = nns.InstrumentedModel(model)
    x, y = np.array([[2.0, 1.0]], np.float32), np.array([1])  # logits 2 and 0.5
    among = np.zeros((2, 2), bool)
    among[0, 1] = True
    found = repair(im, "out", x, y, among=among, margin=0.25)
    assert found.change[0, 1] == pytest.approx((1.5 + 0.25) / 2)
    # Free to choose: the sum is least where the input is largest; the largest, spread over all.
    assert np.abs(repair(im, "out", x, y, margin=0.25).change).sum() == pytest.approx(1.75 / 2)
    spread = repair(im, "out", x, y, size="largest", margin=0.25).change
    np.testing.assert_allclose(np.abs(spread), 1.75 / 6, rtol=1e-6)


def test_only_chosen_weights_change(im, runs):
    x, y = some(runs, 1, 4)
    among = np.random.default_rng(0).random(im.kernels["hidden"].shape) < 0.5
    found = repair(im, "hidden", x, y, among=among)
    assert (found.change != 0).any()
    assert not found.change[~among].any()
    assert leads(found.model, x, y).min() > 0


def test_whole_segments_by_the_ends_of_their_parts(im, data):
    """All of a segment gets one class, at every point between, as a second exact line shows."""
    x, y = data
    ends = x[:2]
    parts = exact_line(im, *ends)
    between = parts.at(parts.ratios)
    points = np.repeat(between, 2, axis=0)[1:-1]
    labels = np.full(len(points), int(y[0]))
    groups = np.repeat(np.arange(len(points) // 2), 2)
    assert (leads(im.model, between, np.full(len(between), y[0])) < 0).any()
    found = repair(im, "logits", points, labels, groups=groups, margin=1e-3)
    after = exact_line(nns.InstrumentedModel(found.model), *ends)
    assert set(after.classify().labels.tolist()) == {int(y[0])}


def test_what_cannot_be(im, data):
    x, y = np.repeat(data[0][:1], 2, axis=0), np.array([0, 1])
    with pytest.raises(InfeasibleRepairError, match="No change of these weights of 'logits'"):
        repair(im, "logits", x, y)


def test_bad_arguments(im, data):
    x, y = data[0][:4], data[1][:4]
    with pytest.raises(InvalidArgumentError, match="Did you mean 'inner'"):
        repair(im, "iner", x, y)
    with pytest.raises(InvalidArgumentError, match="size"):
        repair(im, "inner", x, y, size="l2")
    with pytest.raises(InvalidArgumentError, match="margin must be above 0"):
        repair(im, "inner", x, y, margin=0.0)
    with pytest.raises(InvalidArgumentError, match="bool array of the shape"):
        repair(im, "inner", x, y, among=np.ones(3, bool))
    with pytest.raises(InvalidArgumentError, match="one integer for each of 4"):
        repair(im, "inner", x, y, groups=[0, 1])
    with pytest.raises(InvalidArgumentError, match="in 0 … 2"):
        repair(im, "inner", x, y + 9)


def test_networks_that_are_not_piecewise_linear_behind_the_layer():
    inputs = keras.Input((4,))
    x = layers.Dense(3, activation="tanh", name="first")(inputs)
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2, name="last")(x)))
    x, y = np.ones((1, 4), np.float32), np.array([0])
    with pytest.raises(UnsupportedLayerError, match=r"'first' .*neither affine"):
        repair(im, "first", x, y)
    assert repair(im, "last", x, y).points == 1


def test_one_sigmoid_is_repaired_as_its_twin_with_two_classes(binary):
    model, x, y = binary
    im = nns.InstrumentedModel(model)
    failing = Runs.split(im, x, y).failing
    rows = np.concatenate([np.flatnonzero(failing.right == label)[:1] for label in (0, 1)])
    x, y = failing.x[rows], failing.right[rows]
    repaired = repair(im, "out", x, y, margin=0.1)
    p = repaired.model(x).numpy()[:, 0].astype(float)
    assert ((2 * y - 1) * np.log(p / (1 - p)) >= 0.099).all()
    one = repair(im, "b", x, y, margin=0.1)
    two = repair(nns.InstrumentedModel(twin_of(model)), "b", x, y, margin=0.1)
    assert np.abs(one.change).sum() == pytest.approx(np.abs(two.change).sum(), rel=1e-3)


@pytest.mark.parametrize("final", [("linear", 1), ("sigmoid", 3)])
def test_only_classifiers_are_repaired(final):
    inputs = keras.Input((4,))
    function, units = final
    model = keras.Model(inputs, layers.Dense(units, activation=function, name="out")(inputs))
    with pytest.raises(InvalidArgumentError, match=r"is not a classifier|exclude each other"):
        repair(nns.InstrumentedModel(model), "out", np.zeros((2, 4), np.float32), [0, 0])
