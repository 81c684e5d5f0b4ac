"""A warning for inputs unlike the profiled ones, usually because preprocessing is missing."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from nnslicer_tf.errors import InputRangeWarning

# A warning is given for inputs outside the profiled range by more than _BEYOND times its width,
# which no perturbed image is. In batches of at least _FEWEST samples, it is also given for inputs
# within less than _SMALL of the range, as after a wrong scaling, or whose mean is as far outside
# the means of single profiled samples.
_BEYOND = 0.5
_SMALL = 0.02
_FEWEST = 8


@dataclass(frozen=True)
class InputRange:
    """The range of the profiled inputs' values, and of their means.

    Attributes:
        values: The smallest and the largest value.
        means: The smallest and the largest mean of a sample; None if they are not known.
    """

    values: tuple[float, float]
    means: tuple[float, float] | None = None

    def watched(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the batches, and warn at the first whose values do not fit the range."""
        warned = False
        for batch in batches:
            difference = "" if warned else self._difference(batch)
            if difference:
                warned = True
                warnings.warn(
                    f"{difference}. Slices compare the two: scale inputs as for the profile, or "
                    "bind the scaling to the model with InstrumentedModel(preprocess=…).",
                    InputRangeWarning,
                    stacklevel=2,
                )
            yield batch

    def _difference(self, batch: np.ndarray) -> str:
        """Describe how a batch differs from the profiled inputs; "" if it does not."""
        least, largest = float(batch.min()), float(batch.max())
        low, high = self.values
        is_batch = len(batch) >= _FEWEST
        small = is_batch and largest - least < _SMALL * (high - low)
        if small or _beyond(least, self.values) or _beyond(largest, self.values):
            return (
                f"Inputs range from {least:.4g} to {largest:.4g}, the inputs of the profile from "
                f"{low:.4g} to {high:.4g}"
            )
        mean = float(batch.mean(dtype=np.float64))
        if not is_batch or self.means is None or not _beyond(mean, self.means):
            return ""
        return (
            f"The mean of the inputs is {mean:.4g}, those of the profile's samples are from "
            f"{self.means[0]:.4g} to {self.means[1]:.4g}"
        )


def _beyond(value: float, known: tuple[float, float]) -> bool:
    """Return whether a value is outside a range by more than half of its width."""
    low, high = known
    margin = _BEYOND * (high - low)
    return value < low - margin or value > high + margin
