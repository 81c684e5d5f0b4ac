"""Compressors against their papers' formulas, written out."""

import itertools

import keras
import numpy as np
import pytest

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.neusemslice.weight_pruning import (
    COMPRESSORS,
    compress,
    masks_at_density,
    weight_scores,
)
from support.classifiers import make, samples

RNG = np.random.default_rng(0)
CONVOLUTIONAL = {
    "c1": RNG.normal(size=(3, 3, 3, 8)),
    "c2": RNG.normal(size=(3, 3, 8, 40)) * 0.1,
    "d": RNG.normal(size=(60, 50)),
    "last": RNG.normal(size=(50, 10)),
}
DENSE = {"d1": RNG.normal(size=(30, 20)) * 0.3, "last": RNG.normal(size=(20, 5))}


def keep(kernels, method, density):
    return masks_at_density(weight_scores(kernels, method), method, density)


def counts(masks):
    return {name: int(mask.sum()) for name, mask in masks.items()}


@pytest.mark.parametrize("kernels", [CONVOLUTIONAL, DENSE], ids=["convolutional", "dense"])
@pytest.mark.parametrize("density", [1.0, 0.81, 0.4, 0.05])
@pytest.mark.parametrize("method", COMPRESSORS)
def test_every_kernel_keeps_its_largest_weights(method, kernels, density):
    masks = keep(kernels, method, density)
    total = sum(w.size for w in kernels.values())
    for name, mask in masks.items():
        assert mask.shape == kernels[name].shape
        if mask.any() and not mask.all():
            size = np.abs(kernels[name])
            assert size[mask].min() >= size[~mask].max()
    if density > 0.1:  # below, uniform_plus has no room for its exceptions
        assert sum(counts(masks).values()) == pytest.approx(density * total, abs=len(kernels))


@pytest.mark.parametrize("density", [0.9, 0.5, 0.13, 0.0])
def test_of_equal_weights_the_first_are_kept(density):
    """Against a stable sort of all weights."""
    integers = np.random.default_rng(1).integers(-3, 4, size=(2, 7, 5)).astype(np.float32)
    kernels = {"a": integers[0], "b": integers[1]}
    sizes = np.abs(integers).ravel()
    expected = np.zeros(70, bool)
    expected[np.argsort(-sizes, kind="stable")[: round(density * 70)]] = True
    found = keep(kernels, "global", density)
    np.testing.assert_array_equal(np.stack([found["a"], found["b"]]).ravel(), expected)


@pytest.mark.parametrize("method", COMPRESSORS)
def test_what_is_removed_stays_removed(method):
    masks = [keep(CONVOLUTIONAL, method, 0.9**i) for i in range(12)]
    for before, after in itertools.pairwise(masks):
        assert all((after[name] <= before[name]).all() for name in before)


def test_lamp_scores():
    """The square over the sum of the squares of the weights that are not smaller."""
    kernels = {"a": np.array([[1.0, -2.0, 3.0]]), "b": np.array([[0.1, 0.2]])}
    scores = {"a": [1 / 14, 4 / 13, 1.0], "b": [0.01 / 0.05, 1.0]}
    ranked = sorted(
        ((s, name, i) for name, values in scores.items() for i, s in enumerate(values)),
        reverse=True,
    )
    for kept in range(1, 6):
        masks = keep(kernels, "lamp", kept / 5)
        found = {(name, i) for name, m in masks.items() for i in np.flatnonzero(m)}
        if kept == 1:  # every kernel's largest weight scores 1
            assert len(found) == 1
        else:
            assert found == {(name, i) for _, name, i in ranked[:kept]}


def test_lamp_does_not_depend_on_a_kernels_scale_and_keeps_one_weight_of_each():
    scaled = {name: w * 10.0**i for i, (name, w) in enumerate(CONVOLUTIONAL.items())}
    a, b = keep(CONVOLUTIONAL, "lamp", 0.3), keep(scaled, "lamp", 0.3)
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert all(mask.any() for mask in keep(CONVOLUTIONAL, "lamp", 4 / 3_000).values())


def test_global_magnitude_has_one_threshold():
    masks = keep(CONVOLUTIONAL, "global", 0.3)
    kept = min(np.abs(w[masks[n]]).min() for n, w in CONVOLUTIONAL.items() if masks[n].any())
    lost = max(np.abs(w[~masks[n]]).max() for n, w in CONVOLUTIONAL.items())
    assert kept >= lost
    assert not masks["c2"].any() or masks["c2"].mean() < masks["d"].mean()


def test_uniform_plus():
    """All of a first convolution, at least a fifth of the last kernel, the rest alike."""
    dense = {name: mask.mean() for name, mask in keep(DENSE, "uniform_plus", 0.5).items()}
    assert dense == pytest.approx({"d1": 0.5, "last": 0.5}, abs=0.01)
    low = {name: mask.mean() for name, mask in keep(CONVOLUTIONAL, "uniform_plus", 0.1).items()}
    rest = sum(CONVOLUTIONAL[n].size for n in ("c2", "d"))
    total = sum(w.size for w in CONVOLUTIONAL.values())
    expected = (0.1 * total - 216 - 0.2 * 500) / rest
    assert low == pytest.approx({"c1": 1, "c2": expected, "d": expected, "last": 0.2}, abs=0.002)


def test_erk():
    """Densities in proportion to (sum of extents) / (product of extents), none above 1."""
    kept = {name: mask.mean() for name, mask in keep(CONVOLUTIONAL, "erk", 0.2).items()}
    ratio = {name: sum(w.shape) / w.size for name, w in CONVOLUTIONAL.items()}
    assert kept["d"] < 1
    assert kept["c2"] / kept["d"] == pytest.approx(ratio["c2"] / ratio["d"], rel=0.02)
    assert kept["last"] / kept["d"] == pytest.approx(ratio["last"] / ratio["d"], rel=0.02)
    dense = {name: mask.mean() for name, mask in keep(CONVOLUTIONAL, "erk", 0.7).items()}
    assert dense["c1"] == 1
    assert max(dense.values()) == 1


def nonzero(model):
    return sum(int((w != 0).sum()) for w in model.get_weights() if w.ndim > 1)


@pytest.mark.parametrize("method", COMPRESSORS)
def test_compress_stops_before_the_accuracy_falls(method):
    """With the share of weights left as the accuracy, the iterations can be counted."""
    model = make("perceptron")
    size = nonzero(model)
    before = [w.copy() for w in model.get_weights()]
    found = compress(model, method, lambda m: nonzero(m) / size, lowest=0.6)
    assert found.iterations == 4  # 0.9⁴ = 0.656, 0.9⁵ = 0.590
    assert found.history == pytest.approx([0.9, 0.81, 0.729, 0.656, 0.590], abs=0.02)
    assert nonzero(found.model) / size == found.accuracy == found.history[3]
    assert found.rate == (size - nonzero(found.model)) / model.count_params()
    assert len(found.to_frame()) == 5
    assert "4 iterations" in repr(found)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_a_compressed_model_can_be_trained_and_stays_sparse():
    model = make("perceptron")
    x, y = samples(model, 12)
    found = compress(model, "lamp", nonzero, lowest=40)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found.model.compile("adam", loss)
    left = nonzero(found.model)
    assert left < nonzero(model)
    found.model.train_on_batch(x, y)
    assert nonzero(found.model) == left


def test_a_model_that_cannot_be_compressed_stays_whole():
    model = make("perceptron")
    found = compress(model, "global", lambda m: float(nonzero(m) == nonzero(model)), lowest=1.0)
    assert (found.iterations, found.rate, found.accuracy) == (0, 0.0, 1.0)
    assert found.model is not model
    for copied, given in zip(found.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(copied, given)


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidArgumentError, match="Expected one of: 'lamp', 'global', 'uni"):
        compress(make("perceptron"), "lamb", nonzero, 0)
    with pytest.raises(InvalidArgumentError, match="share must be in"):
        compress(make("perceptron"), "lamp", nonzero, 0, share=1.0)
    with pytest.raises(InvalidArgumentError, match="most must be a positive int"):
        compress(make("perceptron"), "lamp", nonzero, 0, most=0)
    with pytest.raises(InvalidArgumentError, match="evaluate returned NaN"):
        compress(make("perceptron"), "lamp", lambda model: float("nan"), 0.5)
    for method, density in itertools.product(COMPRESSORS, (2, -0.1, np.nan)):
        with pytest.raises(InvalidArgumentError, match=r"density must be in \[0, 1\]"):
            keep(DENSE, method, density)
