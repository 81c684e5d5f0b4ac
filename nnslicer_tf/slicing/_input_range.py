"""A warning for inputs with other values than the profiled ones: a forgotten step, usually."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from nnslicer_tf.errors import InputRangeWarning

# Inputs beyond the profiled range by more than half of it, as no perturbed image is; or, in
# batches of some size, within so small a part of it as a wrong scale makes them.
_BEYOND = 0.5
_SMALL = 0.02
_FEWEST = 8


@dataclass(frozen=True)
class InputRange:
    """The least and the largest value of the profiled inputs."""

    low: float
    high: float

    def watched(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield batches; warn at the first whose values do not fit the range."""
        warned = False
        for batch in batches:
            if not warned and not self._fits(batch):
                warned = True
                warnings.warn(self._message(batch), InputRangeWarning, stacklevel=2)
            yield batch

    def _fits(self, batch: np.ndarray) -> bool:
        least, largest, span = batch.min(), batch.max(), self.high - self.low
        if least < self.low - _BEYOND * span or largest > self.high + _BEYOND * span:
            return False
        return len(batch) < _FEWEST or largest - least >= _SMALL * span

    def _message(self, batch: np.ndarray) -> str:
        return (
            f"Inputs range from {batch.min():.4g} to {batch.max():.4g}, the inputs of the profile "
            f"from {self.low:.4g} to {self.high:.4g}. Slices compare the two: scale inputs as for "
            "the profile, or bind the scaling to the model with InstrumentedModel(preprocess=…)."
        )
