"""Step functions by position, checked against their values at many places."""

from itertools import pairwise

import numpy as np
import pytest

from nnslicer_tf.exactline.steps import Steps, Uses

PLACES = (np.arange(997) + 0.5) / 997


def random_steps(positions, channels, seed, pieces=6):
    """Return step functions with up to `pieces` pieces at each position."""
    rng = np.random.default_rng(seed)
    ratio, values, counts = [], [], [0]
    for _ in range(positions):
        own = np.concatenate([[0], np.sort(rng.random(rng.integers(pieces))), [1]])
        at = rng.normal(size=(len(own), channels))
        at[-1] = at[-2]
        ratio.append(own)
        values.append(at)
        counts.append(len(own))
    return Steps(np.cumsum(counts), np.concatenate(ratio), np.concatenate(values))


def dense(steps):
    """Return the values at all places by looking each of them up, `(places, positions, channels)`.

    The definition: the last row whose ratio is not above the place.
    """
    out = np.empty((len(PLACES), steps.positions, steps.channels))
    for p in range(steps.positions):
        own = slice(steps.start[p], steps.start[p + 1])
        for k, place in enumerate(PLACES):
            row = np.flatnonzero(steps.ratio[own] <= place)[-1]
            out[k, p] = steps.values[own][row]
    return out


def assert_well_formed(steps, begin=0.0, end=1.0):
    for p in range(steps.positions):
        own = slice(steps.start[p], steps.start[p + 1])
        ratio, values = steps.ratio[own], steps.values[own]
        assert ratio[0] == begin and ratio[-1] == end and (np.diff(ratio) > 0).all()
        np.testing.assert_array_equal(values[-1], values[-2])


STEPS = random_steps(5, 3, 0)


def test_values_at_places():
    np.testing.assert_array_equal(STEPS.at(PLACES), dense(STEPS))
    ends = STEPS.at(np.array([0.0, 1.0]))
    np.testing.assert_array_equal(ends[0], STEPS.values[STEPS.start[:-1]])
    np.testing.assert_array_equal(ends[1], STEPS.values[STEPS.start[1:] - 1])


def test_constant():
    values = np.arange(6.0).reshape(3, 2)
    steps = Steps.constant(values, 0.25, 0.5)
    assert_well_formed(steps, 0.25, 0.5)
    np.testing.assert_array_equal(steps.at(np.array([0.3])), values[None])
    np.testing.assert_array_equal(steps.integrals(), values / 4)


def test_uses_are_the_inverse_of_taps():
    taps = np.array([[0, 2, -1], [2, 3, 0], [3, 3, 2]])
    uses = Uses.of(taps, 5)
    found = {
        (p, w, t)
        for p in range(5)
        for w, t in zip(uses.windows[p], uses.taps[p], strict=True)
        if w >= 0
    }
    expected = {(p, w, t) for (w, t), p in np.ndenumerate(taps) if p >= 0}
    assert found == expected


@pytest.mark.parametrize("shape", [(1, 15), (15, 1), (3, 5)])
def test_regrouped(shape):
    found = STEPS.regrouped(*shape)
    assert_well_formed(found)
    assert (found.positions, found.channels) == shape
    np.testing.assert_array_equal(dense(found), dense(STEPS).reshape(-1, *shape))


def test_products_repeat_channels():
    slopes = random_steps(5, 6, 1)
    found = STEPS.times(slopes)
    assert_well_formed(found)
    expected = np.tile(dense(STEPS), 2) * dense(slopes)
    np.testing.assert_array_equal(dense(found), expected)


def test_totals():
    parts = [random_steps(5, 3, seed) for seed in range(3)]
    found = Steps.total(parts)
    assert_well_formed(found)
    np.testing.assert_allclose(dense(found), sum(dense(part) for part in parts), atol=1e-14)


def test_rows_that_differ_by_rounding_errors_are_one():
    """The merged row is before or after the other one; the values on its piece must not be."""
    for shift in (-4e-13, 4e-13):
        parts = [
            Steps(np.array([0, 3]), np.array([0, place, 1]), np.array([[1.0], [5], [5]]))
            for place in (0.3, 0.3 + shift)
        ]
        found = Steps.total(parts)
        assert len(found.ratio) == 3
        np.testing.assert_array_equal(found.values, [[2], [10], [10]])
        product = parts[0].times(parts[1])
        np.testing.assert_array_equal(product.values, [[1], [25], [25]])


def test_moved_is_the_adjoint_of_gathering():
    taps = np.array([[0, 1], [1, 2], [3, -1], [1, 1], [0, 3]])
    uses = Uses.of(taps, 6)
    windows = random_steps(5, 2 * 3, 2)
    found = windows.moved(uses, 3)
    expected = np.zeros((len(PLACES), 6, 3))
    for (w, t), p in np.ndenumerate(taps):
        if p >= 0:
            expected[:, p] += dense(windows)[:, w, 3 * t : 3 * t + 3]
    assert_well_formed(found)
    np.testing.assert_allclose(dense(found), expected, atol=1e-14)


def test_ranges_are_joined_to_the_whole():
    cuts = [0.0, 0.2, 0.20000001, 0.7, 1.0]
    parts = [STEPS.between(a, b) for a, b in pairwise(cuts)]
    for part, (begin, end) in zip(parts, pairwise(cuts), strict=True):
        assert_well_formed(part, begin, end)
        inside = PLACES[(begin < PLACES) & (end > PLACES)]
        np.testing.assert_array_equal(part.at(inside), STEPS.at(inside))
    whole = Steps.joined([parts[i] for i in (2, 0, 3, 1)])
    np.testing.assert_array_equal(whole.start, STEPS.start)  # the cuts are gone
    np.testing.assert_array_equal(whole.ratio, STEPS.ratio)
    np.testing.assert_array_equal(whole.values, STEPS.values)


def test_integrals():
    widths = np.diff(np.append(STEPS.ratio, 0))
    widths[STEPS.start[1:] - 1] = 0
    expected = np.add.reduceat(STEPS.values * widths[:, None], STEPS.start[:-1])
    np.testing.assert_allclose(STEPS.integrals(), expected, atol=1e-14)


def test_rows_without_a_change_are_left_out():
    ratio = np.array([0, 0.2, 0.6, 1, 0, 1])
    values = np.array([[1.0], [1], [2], [2], [3], [3]])
    found = Steps(np.array([0, 4, 6]), ratio, values).without_repetitions()
    np.testing.assert_array_equal(found.start, [0, 3, 5])
    np.testing.assert_array_equal(found.ratio, [0, 0.6, 1, 0, 1])
    np.testing.assert_array_equal(found.values.ravel(), [1, 2, 2, 3, 3])
