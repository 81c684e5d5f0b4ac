"""Planted networks whose right slice needs each idea of the search, and each bound of the walk.

Without it, decisive slices are still slices that keep the answer, but far too large ones (or, for
rivals, of any class that is asked for). Each network is a formula, given with its test: 100 inputs
are filler, so that leaving single units out in the end, which 64 allow, cannot mend the search.
"""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.slicing import _zero_walk

FILLER = 100


def slice_of_ones(model, **options):
    """Return the decisive slice of inputs for an input of ones; the mean of each input is 0."""
    ones = np.ones((1, *model.input_shape[1:]), np.float32)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, np.concatenate([ones, -ones]), progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    return slicer.decisive(ones, level="input", **options)


def members(found):
    (mask,) = found.masks().values()
    return np.flatnonzero(mask).tolist()


def clipped(units, bias, filler):
    """A sigmoid of 2 · clip(units · x + bias, 0, 1) − 1 + filler · x."""
    inputs = keras.Input((len(units),))
    ends = layers.Dense(2, "relu")
    last, direct = layers.Dense(1), layers.Dense(1)
    outputs = layers.Add()([last(ends(inputs)), direct(inputs)])
    model = keras.Model(inputs, layers.Activation("sigmoid")(outputs))
    # clip(z, 0, 1) = relu(z) − relu(z − 1)
    ends.set_weights([np.stack([units, units], axis=1), np.array([bias, bias - 1])])
    last.set_weights([np.array([[2.0], [-2.0]]), np.array([-1.0])])
    direct.set_weights([np.asarray(filler)[:, None], np.zeros(1)])
    return model


def test_fading_sees_units_that_stand_in_for_each_other():
    """The logit is 2 · clip(m₀ + m₁ − 0.4, 0, 1) − 1 + 0.001 · Σ filler.

    In the whole model the sum of the pair is above 1, and without both it is below 0: in both the
    derivative of either is 0. Each alone gives 0.2 > 0, and all the filler −0.9.
    """
    pair = np.r_[1.0, 1.0, np.zeros(FILLER)]
    found = slice_of_ones(clipped(pair, -0.4, np.r_[0.0, 0.0, np.full(FILLER, 0.001)]))
    assert members(found) in ([0], [1]) and found.certificate["answer"][0] == 1


def test_memory_outlasts_an_estimate_that_says_nothing():
    """The logit is 2 · clip(1.5 · m + 0.05 − 0.04 · Σ against, 0, 1) − 1 ± 0.1 · filler.

    When those against are faded or gone, the clipped sum is above 1, and the derivative by m, all
    that speaks for the answer, is 0.
    """
    filler = 0.1 * np.resize([1.0, -1.0], FILLER)
    weights = np.r_[np.zeros(FILLER), np.full(21, -0.04), 1.5]
    found = slice_of_ones(clipped(weights, 0.05, np.r_[filler, np.zeros(22)]))
    assert members(found) == [len(weights) - 1] and found.certificate["answer"][0] == 1


def test_rivals_keep_the_class_that_is_asked_for():
    """Shared evidence gives (1, 1.2, 0) to three classes, the other inputs (0.9, 0, 0).

    The logit of class 0 alone prefers what gives class 1; of class 1 alone, it finds class 1.
    """
    shared, own = 40, 60
    kernel = np.array([[1.0, 1.2, 0]] * shared + [[0.9, 0, 0]] * own)
    model = keras.Sequential([keras.Input((shared + own,)), layers.Dense(3, "softmax")])
    model.set_weights([kernel, np.array([0.1, 0, 0])])
    found = slice_of_ones(model, others=None)
    assert found.certificate["answer"][0] == 0 and found.certificate["kept"][0]
    assert len(members(found)) == 1 and members(found)[0] >= shared
    assert found.info["others"] == [[[1, False], [2, False]]] or found.info["others"] == [
        [[2, False], [1, False]]
    ]


def slicer_of_ones(inputs, outputs, **settings):
    """A slicer at θ = 0 of a model whose weights are all 1, as are all signs for the input ones."""
    model = keras.Model(inputs, outputs)
    for weight in model.weights:
        weight.assign(np.full(weight.shape, 1.0 if "kernel" in weight.path else 0.0))
    im = nns.InstrumentedModel(model)
    ones = np.ones((1, *im.input_shape), np.float32)
    profile = nns.Profile.from_data(im, np.concatenate([ones, -ones]), progress=False)
    return nns.Slicer(im, profile, theta=0, workers=0, progress=False, **settings), ones


def test_counts_above_what_float32_represents_are_exact():
    """One input is repeated 4,001 times, and read by 65 filters of 65 taps: an odd count > 2²⁴."""
    steps, taps, filters = 4001, 65, 65
    inputs = keras.Input((1,))
    x = layers.Conv1D(filters, taps, padding="same")(layers.RepeatVector(steps)(inputs))
    slicer, ones = slicer_of_ones(inputs, layers.Dense(1)(layers.Flatten()(x)))
    count = (steps * taps - (taps // 2) * (taps // 2 + 1)) * filters  # but for the padding
    assert count > 2**24 and int(np.float32(count)) != count
    found = slicer.slice(ones, 0)
    assert found.neurons[slicer.im.input_operations[0]].tolist() == [count]


def called_twice(layer, x):
    """Both calls add to the same synapses."""
    calls = layers.Concatenate()([layer(x), layer(layers.ReLU()(x))])
    return layers.Flatten()(calls)


WIDE = {
    "outputs of a sum": lambda x: layers.Dense(64)(x),
    "copies": lambda x: layers.Dense(8)(layers.Flatten()(layers.RepeatVector(5)(x))),
    "readers": lambda x: layers.Add()([layers.Dense(16)(x), layers.Dense(16, "relu")(x)]),
    "calls of a layer": lambda x: called_twice(layers.Conv1D(1, 1), layers.Reshape((3, 1))(x)),
    "steps of a recurrent layer": lambda x: layers.SimpleRNN(4, "linear")(
        layers.RepeatVector(6)(x)
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_the_walk_at_0_runs_batches_whose_sums_are_exact(name):
    """If all signs agree, the largest count is the bound; then it may not reach 2²⁴ in a batch."""
    inputs = keras.Input((3,))
    slicer, ones = slicer_of_ones(inputs, layers.Dense(1)(WIDE[name](inputs)))
    found = slicer.slice(ones, 0)
    largest = max(int(c.max()) for c in (*found.neurons.values(), *found.synapses.values()))
    plan = slicer.plan(0)
    exact = (2**24 - 1) // largest
    assert not _zero_walk.applies(slicer.im, plan, exact + 1)
    if "recurrent" not in name:  # where the bound is not tight
        assert _zero_walk.applies(slicer.im, plan, exact)
