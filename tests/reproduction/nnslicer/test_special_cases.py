"""The special cases of the program's exclusion."""

import itertools

import numpy as np
import pytest

from reproduction.nnslicer.settings import SpecialCaseSettings
from reproduction.nnslicer.slice_readings import exclude, special_cases


def test_the_fewest_of_the_largest_values_are_kept():
    rng = np.random.default_rng(0)
    v = rng.normal(size=(50, 7))
    kept = exclude(v, 0.2)
    for values, plain in zip(v, kept.plain, strict=True):
        largest_first = np.argsort(-np.abs(values))
        prefixes = itertools.accumulate(values[largest_first])
        reached = [abs(values.sum() - p) < 0.2 * abs(values.sum()) for p in prefixes]
        expected = largest_first[: reached.index(True) + 1]
        assert set(np.flatnonzero(plain)) == set(expected)


def test_what_is_near_the_smallest_one_stays():
    v = np.array([[10.0, 5.0, 4.96, 4.0, 0.1]])  # 15 of 24.06 leave 9.06; 19.96 leave 4.1
    kept = exclude(v, 0.4)
    assert kept.plain.tolist() == [[True, True, False, False, False]]
    assert kept.bar.tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize(
    ("values", "dropped"),
    [
        ([3.0, -2.5, 1.0], False),
        ([3.0, -2.5, -0.4], True),  # 0.1 is below the smallest
        ([1000.0, -999.5, 0.1], True),  # 0.6 is below a thousandth of the largest
        ([1000.0, -998.5, 0.1], False),
    ],
)
def test_small_sums_are_dropped(values, dropped):
    assert exclude(np.array([values]), 0.2).dropped.tolist() == [dropped]


def test_the_experiment():
    settings = SpecialCaseSettings(
        model="digits_cnn", dataset="digits", split="test", images=20, train=200, neurons=50
    )
    table = special_cases(settings).tables[0].frame
    assert table["kernel"].tolist()[-1] == "all" and len(table) > 2
    assert table["neurons"].iloc[-1] == table["neurons"].iloc[:-1].sum()
    assert table["kept"].between(0.01, 0.99).all()
    assert table["more by the bar"].between(0, 0.2).all()
    again = special_cases(settings).tables[0].frame
    assert table.equals(again)
