"""Piecewise linear curves by position, checked against NumPy's interpolation."""

import numpy as np
import pytest

from nnslicer_tf.exactline.curve import Curve, in_pieces


def random_curve(positions, lines, channels, seed):
    """A curve whose positions have up to ten rows of their own on each line."""
    rng = np.random.default_rng(seed)
    segments = [
        np.r_[0, np.sort(rng.random(rng.integers(11))), 1] for _ in range(positions * lines)
    ]
    start = np.cumsum([0, *map(len, segments)])
    ratio = np.concatenate(segments)
    return Curve(lines, start, ratio, rng.normal(size=(len(ratio), channels)))


def at(curve, position, line, places):
    """The values of one position on one line, `(places, channels)`."""
    segment = position * curve.lines + line
    own = slice(curve.start[segment], curve.start[segment + 1])
    columns = curve.values[own].T
    return np.stack([np.interp(places, curve.ratio[own], column) for column in columns], axis=1)


CURVE = random_curve(4, 2, 3, 0)
TAPS = np.array([[0, 1], [3, -1], [2, 2]], np.int32)


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
def test_sums_of_windows_do_not_depend_on_the_rows_at_a_time(piece):
    rng = np.random.default_rng(1)
    kernel, bias = rng.normal(size=(2, 3, 5)), rng.normal(size=5)
    rows = CURVE.common_rows([CURVE], [TAPS])
    gathered = [rows.gather(0, some) for some in in_pieces(len(rows), piece)]
    sums = np.concatenate(gathered) @ kernel.reshape(6, 5) + bias
    for w, window in enumerate(TAPS):
        for line in range(2):
            own = slice(rows.start[w * 2 + line], rows.start[w * 2 + line + 1])
            places = rows.ratio[own]
            # A window has a row where one of its positions has one.
            every = [0.0, 1.0]
            for p in window[window >= 0]:
                every += CURVE.ratio[
                    CURVE.start[p * 2 + line] : CURVE.start[p * 2 + line + 1]
                ].tolist()
            np.testing.assert_allclose(places, np.unique(every))
            parts = [at(CURVE, p, line, places) @ kernel[t] for t, p in enumerate(window) if p >= 0]
            np.testing.assert_allclose(sums[own], sum(parts) + bias, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("place", [0.3, 0.71])
def test_the_parts_of_a_curve_have_its_values(place):
    before, after = CURVE.split_at(place)
    for part, ends in ((before, (0, place)), (after, (place, 1))):
        assert part.lines == 2 and part.positions == 4
        for position in range(4):
            for line in range(2):
                segment = position * 2 + line
                own = part.ratio[part.start[segment] : part.start[segment + 1]]
                assert (own[0], own[-1]) == ends and (np.diff(own) > 0).all()
                places = np.linspace(*ends, 57)
                values, whole = at(part, position, line, places), at(CURVE, position, line, places)
                np.testing.assert_allclose(values, whole, rtol=1e-9, atol=1e-12)


def test_halves_of_the_lines():
    curve = random_curve(2, 5, 2, 3)
    places = np.linspace(0, 1, 31)
    first, second = curve.split_lines()
    assert (first.lines, second.lines) == (2, 3)
    for position in range(2):
        for line in range(5):
            half, index = (first, line) if line < 2 else (second, line - 2)
            found = at(half, position, index, places)
            np.testing.assert_array_equal(found, at(curve, position, line, places))


def test_one_line_has_all_positions_as_channels():
    places = np.linspace(0, 1, 31)
    for line in range(2):
        one = CURVE.line(line)
        assert (one.lines, one.positions, one.channels) == (1, 1, 12)
        expected = np.hstack([at(CURVE, p, line, places) for p in range(4)])
        np.testing.assert_allclose(at(one, 0, 0, places), expected, rtol=1e-9, atol=1e-12)
