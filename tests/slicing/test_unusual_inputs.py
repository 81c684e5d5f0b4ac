"""The warning that inputs are not scaled as for the profile, at its limits."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from nnslicer_tf.errors import InputRangeWarning
from nnslicer_tf.slicing._batches import warn_of_unusual

# Inputs of the profile are from 0 to 4, with means of samples from 1 to 3.
PROFILE = SimpleNamespace(
    input_range=(0.0, 4.0), input_means=(1.0, 3.0), means={"x": np.array([2.0])}
)


def spread(low, high, count, mean=None):
    """`count` values from `low` to `high`, those between equal so that the mean is as given."""
    values = np.full(count, (low + high) / 2)
    values[:2] = low, high
    if mean is not None:
        values[2:] = (count * mean - low - high) / (count - 2)
    return values[:, None]


CASES = {  # batch, and what the warning says, if there is one
    "half a width above": (spread(0, 6, 3), ""),
    "more above": (spread(0, 6.01, 3), "Inputs range from 0 to 6.01"),
    "half a width below": (spread(-2, 4, 3), ""),
    "more below": (spread(-2.01, 4, 3), "Inputs range from -2.01 to 4"),
    "narrow": (spread(2, 2.07, 8), "Inputs range from 2 to 2.07"),
    "as wide as a fiftieth": (spread(2, 2.09, 8), ""),
    "narrow, but of few": (spread(2, 2.07, 7), ""),
    "mean within a width of the means": (spread(0, 5, 8, mean=3.95), ""),
    "mean above": (spread(0, 5, 8, mean=4.05), "The mean of the inputs is 4.05"),
    "mean above, but of few": (spread(0, 5, 7, mean=4.05), ""),
    "mean below": (spread(-1, 4, 8, mean=-0.05), "The mean of the inputs is -0.05"),
}


@pytest.mark.parametrize("name", CASES)
def test_limits(name):
    batch, words = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (same,) = warn_of_unusual([batch], PROFILE)
    assert same is batch
    assert [w.category for w in caught] == [InputRangeWarning] * bool(words)
    assert not words or str(caught[0].message).startswith(words)


def test_one_warning_for_all_batches():
    batches = [spread(0, 9, 3), spread(0, 4, 3), spread(0, 9, 3)]
    with pytest.warns(InputRangeWarning) as caught:
        assert all(a is b for a, b in zip(warn_of_unusual(batches, PROFILE), batches, strict=True))
    assert len(caught) == 1
    unknown = SimpleNamespace(input_range=None, input_means=None, means={})
    assert len(list(warn_of_unusual(batches, unknown))) == 3  # without a range, no warning
