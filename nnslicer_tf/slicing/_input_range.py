"""A warning for inputs unlike the profiled ones, usually because preprocessing is missing."""

import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from nnslicer_tf.errors import InputRangeWarning
from nnslicer_tf.slicing.profile import Profile

# Distance from the profiled range, as a share of its width, that no perturbed image has.
_MAX_DISTANCE = 0.5
# In batches of at least this size, inputs within a small part of the range are unusual, as after a
# wrong scaling, and so is a mean that is far from the means of single profiled samples.
_MIN_BATCH = 8
_MIN_WIDTH = 0.02


def warn_of_unusual(batches: Iterable[np.ndarray], profile: Profile) -> Iterator[np.ndarray]:
    """Yield the batches, and warn at the first whose values do not fit the profile's range."""
    warned = profile.input_range is None
    for batch in batches:
        difference = "" if warned else _difference(batch, profile)
        if difference:
            warned = True
            warnings.warn(
                f"{difference}. Slices compare the two: scale inputs as for the profile, or "
                "bind the scaling to the model with InstrumentedModel(preprocess=…).",
                InputRangeWarning,
                stacklevel=2,
            )
        yield batch


def _difference(batch: np.ndarray, profile: Profile) -> str:
    """Describe how a batch differs from the profiled inputs; "" if it does not."""

    def is_beyond(value: float, known: tuple[float, float]) -> bool:
        margin = _MAX_DISTANCE * (known[1] - known[0])
        return not known[0] - margin <= value <= known[1] + margin

    assert profile.input_range is not None
    low, high = profile.input_range
    least, largest = float(batch.min()), float(batch.max())
    is_small = len(batch) >= _MIN_BATCH and largest - least < _MIN_WIDTH * (high - low)
    if is_small or is_beyond(least, (low, high)) or is_beyond(largest, (low, high)):
        return (
            f"Inputs range from {least:.4g} to {largest:.4g}, the inputs of the profile from "
            f"{low:.4g} to {high:.4g}"
        )
    mean, means = float(batch.mean(dtype=np.float64)), profile.input_means
    if len(batch) < _MIN_BATCH or means is None or not is_beyond(mean, means):
        return ""
    return (
        f"The mean of the inputs is {mean:.4g}, those of the profile's samples are from "
        f"{means[0]:.4g} to {means[1]:.4g}"
    )
