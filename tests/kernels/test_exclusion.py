"""The kernels against the plain rule, value by value."""

import numpy as np
import pytest

from nnslicer_tf._kernels import pools, sums
from nnslicer_tf.kinds.kind import Neurons
from nnslicer_tf.kinds.pointwise import kept_signs

THETAS = (0.0, 0.05, 0.3, 0.7, 1.0, 1.5, 2.0)
LENGTHS = (1, 2, 3, 15, 16, 17, 27, 31, 32, 33, 47, 48, 49, 64, 100, 144, 150, 288, 1000, 5000)
F = np.float32


def kept(v, threshold):
    """Return which values the rule keeps, by its definition, in float64."""
    order = sorted(range(len(v)), key=lambda i: (abs(v[i]), i))
    prefix, excluded = 0.0, 0
    for j, i in enumerate(order, start=1):
        prefix += float(v[i])
        if abs(prefix) < threshold:
            excluded = j
    result = np.zeros(len(v), bool)
    result[order[excluded:]] = True
    return result


def plain_rule(signs, y, dx, weights, taps, theta, each):
    """Do what `sums.weighted_sum` does, one neuron at a time."""
    groups, outputs = weights.shape[:2]
    per_group = dx.shape[2] // groups
    inputs = np.zeros((len(dx), dx.shape[1] + 1, dx.shape[2]), np.int32)
    synapses = np.zeros((len(dx) if each else 1, *weights.shape), np.int32)
    padded = np.concatenate([dx, np.zeros_like(dx[:, :1])], axis=1)
    for sample, p, neuron in zip(*np.nonzero(signs), strict=True):
        group, o = divmod(neuron, outputs)
        channels = slice(group * per_group, (group + 1) * per_group)
        v = weights[group, o] * padded[sample, taps[p], channels].ravel()
        threshold = theta * abs(float(y[sample, p, neuron]))
        given = kept(v, threshold) * np.sign(v).astype(np.int32) * signs[sample, p, neuron]
        synapses[sample if each else 0, group, o] += given
        np.add.at(inputs[sample, :, channels], taps[p], given.reshape(-1, per_group))
    return inputs[:, :-1], synapses


def check(*arguments):
    for ours, plain in zip(sums.weighted_sum(*arguments), plain_rule(*arguments), strict=True):
        np.testing.assert_array_equal(ours, plain)


def alternating(rng, n):
    return np.where(np.arange(n) % 2, F(-0.5), F(0.5))


def two_magnitudes(rng, n):
    return rng.choice([-2.0, -1.0, 1.0, 2.0], n).astype(F)


def denormal(rng, n):
    return (rng.integers(-40, 41, n) * F(1e-45)).astype(F)


def wide_range(rng, n):
    """Powers of two whose sums are exact in float64."""
    return np.ldexp(rng.choice([-1.0, 1.0], n), rng.integers(-15, 15, n)).astype(F)


# Whole numbers times a power of two, so that no order of adding them up rounds.
VALUES = {
    "random": lambda rng, n: (rng.normal(size=n) * 1e4).astype(np.int64).astype(F),
    "heavy tails": lambda rng, n: (rng.standard_cauchy(n) * 1e2).astype(np.int64).astype(F),
    "tied": lambda rng, n: rng.integers(-3, 4, n).astype(F),
    "two magnitudes": two_magnitudes,
    "constant": lambda rng, n: np.full(n, -0.75, F),
    "alternating": alternating,
    "neighbours": lambda rng, n: (
        np.ldexp((2**23 + rng.integers(0, 3, n)).astype(F), -20) * rng.choice([-1, 1], n).astype(F)
    ),
    "tiny": lambda rng, n: np.ldexp(rng.integers(-999, 1000, n).astype(F), -120),
    "denormal": denormal,
    "huge": lambda rng, n: np.ldexp(rng.integers(-999, 1000, n).astype(F), 117),
    "wide range": wide_range,
    "one outlier": lambda rng, n: np.where(np.arange(n) == n // 2, F(1e6), F(-1)),
    "mostly zero": lambda rng, n: (rng.integers(-9, 10, n) * (rng.random(n) < 0.1)).astype(F),
    "zeros": lambda rng, n: np.zeros(n, F),
    "negative zeros": lambda rng, n: np.where(np.arange(n) % 3, F(-0.0), F(1)),
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("values", VALUES)
def test_values(values, length):
    """Check outputs that are the sums, far from them, and exactly a prefix's sum, at every θ."""
    rng = np.random.default_rng(length)
    rows = 2 if length > 1000 else 6
    x = np.stack([VALUES[values](rng, length) for _ in range(rows)])
    prefix = np.abs(x[:, : max(1, length // 2)].astype(np.float64).sum(axis=1))
    totals = np.abs(x.astype(np.float64).sum(axis=1))
    y = np.stack([totals, 0.3 * totals + prefix, prefix], axis=1)
    y = np.minimum(y, np.finfo(F).max).astype(F)
    signs = np.tile(np.array([1, -1, 1], np.int8), (rows, 1))
    weights = np.ones((1, 3, length), F)
    for theta in THETAS:
        check(
            signs[:, None],
            y[:, None],
            x[:, :, None],
            weights,
            np.arange(length, dtype=np.int32)[None],
            theta,
            True,
        )


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("groups", "per_group", "outputs"), [(1, 1, 5), (1, 6, 3), (2, 3, 4), (8, 1, 1), (1, 40, 2)]
)
def test_windows(groups, per_group, outputs, each):
    """A convolution, 3 × 3 with padding and stride 2, of any grouping."""
    rng = np.random.default_rng(per_group)
    side, kernel, stride = 7, 3, 2
    grid = np.pad(np.arange(side * side, dtype=np.int32).reshape(side, side), 1, constant_values=-1)
    corners = range(0, side, stride)
    taps = np.stack(
        [grid[i : i + kernel, j : j + kernel].ravel() for i in corners for j in corners]
    )
    shape = (3, len(taps), groups * outputs)
    weights = rng.integers(-20, 21, (groups, outputs, taps.shape[1] * per_group)).astype(F)
    dx = rng.integers(-20, 21, (3, side * side, groups * per_group)).astype(F)
    signs = rng.integers(-1, 2, shape).astype(np.int8)
    signs[:, 4] = 0  # a window that nothing reads
    y = rng.integers(0, 900, shape).astype(F)
    for theta in THETAS:
        check(signs, y, dx, weights, taps, theta, each)


def test_windows_in_blocks():
    """More values than are gathered at a time."""
    rng = np.random.default_rng(0)
    taps = np.stack([rng.permutation(64)[:60] for _ in range(40)]).astype(np.int32)
    weights = rng.integers(-9, 10, (1, 2, 60 * 70)).astype(F)
    dx = rng.integers(-9, 10, (1, 64, 70)).astype(F)
    signs = rng.integers(-1, 2, (1, 40, 2)).astype(np.int8)
    y = rng.integers(0, 2000, signs.shape).astype(F)
    check(signs, y, dx, weights, taps, 0.5, False)


def test_rounding_decides_in_float64():
    """Sums that differ from the threshold by less than float32 can tell."""
    n = 160
    x = np.full((1, n, 1), 2.0**-24, F)
    x[0, :16] = 1.0
    weights, taps = np.ones((1, 1, n), F), np.arange(n, dtype=np.int32)[None]
    signs = np.ones((1, 1, 1), np.int8)
    rest = (n - 16) * 2.0**-24
    for theta, taken in ((8 + rest, 9), (np.nextafter(8 + rest, 9), 8)):
        y = np.ones((1, 1, 1), F)
        inputs, _ = sums.weighted_sum(signs, y, x, weights, taps, theta, False)
        assert inputs.sum() == taken
        check(signs, y, x, weights, taps, theta, False)


def test_read_only_and_strided_arrays():
    rng = np.random.default_rng(2)
    weights = rng.integers(-9, 10, (1, 4, 64)).astype(F)
    dx = rng.integers(-9, 10, (2, 64, 2)).astype(F)[..., :1]
    signs = rng.integers(-1, 2, (2, 1, 8)).astype(np.int8)[..., ::2]
    y = rng.integers(0, 100, signs.shape).astype(F)
    taps = np.arange(64, dtype=np.int32)[None]
    for array in (weights, dx, signs, y, taps):
        array.flags.writeable = False
    check(signs, y, dx, weights, taps, 0.3, True)


def test_no_samples():
    inputs, synapses = sums.weighted_sum(
        np.zeros((0, 1, 2), np.int8),
        np.zeros((0, 1, 2), F),
        np.zeros((0, 5, 1), F),
        np.ones((1, 2, 5), F),
        np.arange(5, dtype=np.int32)[None],
        0.3,
        False,
    )
    assert inputs.shape == (0, 5, 1)
    np.testing.assert_array_equal(synapses, np.zeros((1, 1, 2, 5)))


def test_average():
    """An average is a sum over the taps that are not padding, its threshold times their number."""
    rng = np.random.default_rng(3)
    taps = np.array([[0, 1, 2, 3], [2, 3, -1, -1], [-1, 4, 5, 1]], np.int32)
    dx = rng.integers(-9, 10, (2, 6, 3)).astype(F)
    signs = rng.integers(-1, 2, (2, 3, 3)).astype(np.int8)
    y = rng.integers(0, 9, signs.shape).astype(F)
    for theta in THETAS:
        expected = np.zeros(dx.shape, np.int32)
        for sample, p, c in zip(*np.nonzero(signs), strict=True):
            sources = taps[p][taps[p] >= 0]
            v = dx[sample, sources, c]
            given = kept(v, theta * abs(float(y[sample, p, c])) * len(v)) * np.sign(v)
            np.add.at(expected[sample, :, c], sources, given.astype(int) * signs[sample, p, c])
        np.testing.assert_array_equal(sums.average(signs, y, dx, taps, theta), expected)


def test_deltas():
    """Near a large mean float32 alone would give another Δ, or another sign."""
    rng = np.random.default_rng(3)
    values = rng.normal(1000, 1e-3, (3, 5, 7)).astype(F)
    means = rng.normal(1000, 1e-3, (5, 7))
    means[0] = values[0, 0]
    bounds = 1e-4 * np.arange(7)
    neurons = Neurons(values, means, rounding=bounds)
    delta, signs = neurons.delta, neurons.sign
    exact = values.astype(np.float64) - means
    exact[np.abs(exact) <= bounds] = 0
    assert 0 < (exact[1:] == 0).mean() < 0.5
    np.testing.assert_array_equal(delta, exact.astype(F))
    np.testing.assert_array_equal(signs, np.sign(exact))
    assert signs.dtype == np.int8


@pytest.mark.parametrize("tensors", [2, 3])
def test_merge(tensors):
    rng = np.random.default_rng(4)
    values = rng.integers(-3, 4, (tensors, 200)).astype(np.float64)
    y = rng.integers(0, 9, 200).astype(np.float64)
    for theta in THETAS:
        expected = np.zeros(values.shape, np.int32)
        for n in range(200):
            v = values[:, n]
            expected[:, n] = kept(v, theta * y[n]) * np.sign(v)
        np.testing.assert_array_equal(kept_signs(values, theta * y), expected)


def test_maximum():
    rng = np.random.default_rng(5)
    taps = np.array([[0, 1, 2], [2, 3, -1], [-1, 1, 2]], np.int32)
    x = rng.integers(-2, 3, (2, 4, 3)).astype(F)
    x_signs = rng.integers(-1, 2, x.shape).astype(np.int8)
    signs = rng.integers(-1, 2, (2, 3, 3)).astype(np.int8)
    y = np.stack([x[:, row[row >= 0]].max(axis=1) for row in taps], axis=1)
    expected = np.zeros(x.shape, np.int32)
    for sample, p, c in zip(*np.nonzero(signs), strict=True):
        for source in taps[p][taps[p] >= 0]:
            if x[sample, source, c] == y[sample, p, c]:
                expected[sample, source, c] += signs[sample, p, c] * x_signs[sample, source, c]
    np.testing.assert_array_equal(pools.maximum(signs, y, x, x_signs, taps), expected)


def test_tap_means():
    taps = np.array([[0, 1], [1, -1]], np.int32)
    x = np.array([[[1.0, 2.0], [3.0, 5.0]]], F)
    np.testing.assert_array_equal(pools.tap_means(x, taps), [[[2.0, 3.5], [1.5, 2.5]]])


def test_copy_nonzero():
    """Rows of more values than are collected at a time, with a rest that fills no vector."""
    rng = np.random.default_rng(6)
    block = rng.integers(-9, 10, (3, 3005)) * (rng.random((3, 3005)) < 0.7)
    counts = np.count_nonzero(block, axis=1)
    ends = np.cumsum(counts)
    places = ends - counts
    data, indices = np.zeros((2, ends[-1]), np.int32)
    pools.copy_nonzero(block, 100, places, data, indices)
    np.testing.assert_array_equal(places, ends)
    np.testing.assert_array_equal(indices, np.nonzero(block)[1] + 100)
    np.testing.assert_array_equal(data, block[np.nonzero(block)])
