"""The coverage criteria of DeepGauge (Ma et al., ASE 2018), finer than neuron coverage.

They compare a neuron's output with its range on the training data. K-multisection coverage takes
`sections` bytes per neuron.

    ranges = NeuronRanges.from_data(im, x_train)
    cov = KMultisectionCoverage(ranges, sections=100)
    cov.update(x_test); cov.total()
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_count, check_memory, check_name, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.deepxplore.coverage import CountedNeurons, Coverage
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike

_ROUNDING = 2.0**-20  # relative difference, to an operation's largest output, of forward passes


@dataclass(eq=False, repr=False)
class NeuronRanges(ShownAsTable):
    """The smallest and the largest output of every neuron on a data set.

    Attributes:
        neurons: The neurons.
        low: Operation name → `(*neurons,)` float64; NaN where all samples have padding.
        high: Operation name → `(*neurons,)` float64, likewise.
    """

    neurons: CountedNeurons
    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]

    @classmethod
    def from_data(
        cls,
        im: ModelLike,
        x: DataLike,
        granularity: str = "channel",
        of: Iterable[str] | None = None,
        batch_size: int = 256,
        progress: bool = True,
    ) -> "NeuronRanges":
        """Measure the ranges on data, usually the training data.

        Arguments and errors are those of `Coverage` and of `Coverage.update`.
        """
        neurons = CountedNeurons(im, granularity, of)
        low = {name: np.full(shape, np.inf) for name, shape in neurons.shapes.items()}
        high = {name: np.full(shape, -np.inf) for name, shape in neurons.shapes.items()}
        for batch in neurons.batches(x, batch_size, progress):
            for name, values in batch.items():
                outputs = neurons.reduce(values)
                np.fmin(low[name], np.fmin.reduce(outputs, axis=0), out=low[name])
                np.fmax(high[name], np.fmax.reduce(outputs, axis=0), out=high[name])
        for name in neurons.names:
            never = low[name] > high[name]  # padded in all samples
            low[name][never] = high[name][never] = np.nan
        return cls(neurons, low, high)

    @property
    def digest(self) -> str:
        """Hash of the ranges."""
        digest = hashlib.sha256()
        for name in self.neurons.names:
            digest.update(self.low[name].tobytes() + self.high[name].tobytes())
        return digest.hexdigest()

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per operation: neurons, smallest and largest output."""
        rows = [
            (name, low.size, np.fmin.reduce(low, None), np.fmax.reduce(self.high[name], None))
            for name, low in self.low.items()
        ]
        return pd.DataFrame(rows, columns=["operation", "neurons", "least", "largest"])

    def __repr__(self) -> str:
        neurons = self.neurons
        count = counted(len(neurons), "neuron")
        return f"NeuronRanges({neurons.im.model.name!r}, {count}, {neurons.granularity})"


class _RangeCoverage(Coverage):
    """A criterion that compares outputs with ranges."""

    def __init__(
        self, ranges: NeuronRanges, per_neuron: int, options: Mapping[str, object] | None = None
    ) -> None:
        neurons, options = ranges.neurons, {"ranges": ranges.digest, **(options or {})}
        super().__init__(
            neurons.im, neurons.granularity, neurons.names, per_neuron=per_neuron, options=options
        )
        self.ranges, self.neurons = ranges, neurons  # which know the weights that were measured

    def _outputs(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return float64 outputs; those outside a range only by rounding are moved to its end."""
        outputs = self.neurons.reduce(values).astype(np.float64)
        low, high = self.ranges.low[name], self.ranges.high[name]
        slack = _ROUNDING * np.nanmax(np.abs([low, high]), initial=0)
        near = (outputs >= low - slack) & (outputs <= high + slack)
        return np.where(near, np.clip(outputs, low, high), outputs)


class KMultisectionCoverage(_RangeCoverage):
    """Sections of neurons' ranges that were hit, out of k equal ones per neuron (KMNC).

    The last section includes both its ends; an empty range has only a first section. Outputs
    outside the range cover nothing.

    Args:
        ranges: Ranges on the training data.
        sections: The number k, at least two.
    """

    def __init__(self, ranges: NeuronRanges, sections: int = 1000) -> None:
        check_count("sections", sections, 2)
        size = sections * len(ranges.neurons)
        check_memory(size, f"sections={sections}", "Pass fewer sections, or of=[…] to the ranges.")
        super().__init__(ranges, sections)
        self.sections = sections

    def hits(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return which sections have an output."""
        outputs = self._outputs(name, values)
        low, high = self.ranges.low[name], self.ranges.high[name]
        span = np.where(high > low, high - low, 1.0)
        inside = (outputs >= low) & (outputs <= high)
        section = np.floor(np.where(inside, outputs - low, 0) / span * self.sections)
        section = np.clip(section, 0, self.sections - 1).astype(np.int64).reshape(len(values), -1)
        sample, neuron = np.nonzero(inside.reshape(len(values), -1))
        hits = np.zeros((section.shape[1], self.sections), bool)
        hits[neuron, section[sample, neuron]] = True
        return hits.reshape(self.covered[name].shape)


class BoundaryCoverage(_RangeCoverage):
    """The corners of neurons: outputs below and above their ranges (NBC), or only above (SNAC).

    With the corners "both", `covered[name][..., 0]` is the lower one, `[..., 1]` the upper one;
    with "upper" there is one item per neuron.
    """

    def __init__(self, ranges: NeuronRanges, corners: str = "both") -> None:
        check_name("corners", corners, ("both", "upper"))
        self.corners = corners
        per_neuron, options = (2, None) if corners == "both" else (1, {"corners": corners})
        super().__init__(ranges, per_neuron, options)

    def hits(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return which corners have an output."""
        outputs = self._outputs(name, values)
        above = np.any(outputs > self.ranges.high[name], axis=0)
        if self.corners == "upper":
            return np.asarray(above)
        return np.stack([np.any(outputs < self.ranges.low[name], axis=0), above], axis=-1)
