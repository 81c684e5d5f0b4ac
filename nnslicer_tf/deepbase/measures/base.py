"""The base classes of measures, with the error bound of all additive ones.

A measure summarises blocks of behaviours, merges summaries, and computes scores from them. It holds
no data, so one object serves many groups and workers. If sums suffice, subclass `AdditiveMeasure`:

    class Covariance(AdditiveMeasure):
        name = "covariance"

        def statistics(self, units, hypotheses, calibration):
            return {"count": np.array(len(units)), "u": units.sum(axis=0)[:, None],
                    "h": hypotheses.sum(axis=0), "uh": units.T @ hypotheses}

        def score(self, sums, calibration):
            n = sums["count"]
            return sums["uh"] / n - sums["u"] / n * sums["h"] / n
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import stats

Sums = dict[str, np.ndarray]
REPLICATES = 20
"""Number of parts into which the records are divided, to estimate a score's variance."""


def lots(indices: np.ndarray) -> np.ndarray:
    """Return a well-mixed 64-bit number per index (SplitMix64), to divide records at random."""
    z = indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Block:
    """The behaviours of some records."""

    units: np.ndarray  # `(records, positions, units)` float32; one position if per record
    hypotheses: np.ndarray  # `(records, positions, hypotheses)`
    indices: np.ndarray  # number of every record in reading order, `(records,)`

    def __getitem__(self, records: np.ndarray | slice) -> "Block":
        """Return the block of some of the records."""
        return Block(self.units[records], self.hypotheses[records], self.indices[records])

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return units and hypotheses, `(rows, …)` float64, one row for each position."""
        parts = (self.units, self.hypotheses)
        units, hypotheses = (p.reshape(-1, p.shape[-1]).astype(np.float64) for p in parts)
        return units, hypotheses


@dataclass(frozen=True)
class Scores:
    """Scores of a group of units."""

    score: np.ndarray  # `(units, hypotheses)`, or `(1, hypotheses)` of whole groups; or NaN
    error: np.ndarray  # half the width of the confidence interval, of the same shape
    weights: np.ndarray | None = None  # `(units, hypotheses)` of a probe, else None


class Measure(ABC):
    """An affinity of units and hypotheses, which must be 0 or 1 if the measure is `binary`."""

    name: ClassVar[str]
    binary: ClassVar[bool] = False

    def calibrate(self, block: Block) -> Any:
        """Return settings derived from the first block of records, such as the edges of bins."""
        return None

    @abstractmethod
    def summarise(self, block: Block, calibration: Any) -> Any:
        """Summarise a block; runs on workers, so it must not depend on other blocks."""

    @abstractmethod
    def merge(self, total: Any, part: Any) -> Any:
        """Merge the summary of all blocks so far with one more; `total` may be changed."""

    @abstractmethod
    def result(self, total: Any, calibration: Any, confidence: float) -> Scores:
        """Return the scores over all merged blocks, and errors at the level `confidence`."""


class AdditiveMeasure(Measure):
    """A measure that is a function of sums over records.

    Records (with all their positions) are divided at random into `REPLICATES` parts with separate
    sums. A score's error is the half width of its jackknife confidence interval over these parts,
    plus the jackknife's estimate of its bias.
    """

    @abstractmethod
    def statistics(self, units: np.ndarray, hypotheses: np.ndarray, calibration: Any) -> Sums:
        """Return additive sums over rows of units and hypotheses, `(rows, …)` float64."""

    @abstractmethod
    def score(self, sums: Sums, calibration: Any) -> np.ndarray:
        """Return scores `(units, hypotheses)`, or `(1, hypotheses)` for the whole group."""

    def weights(self, sums: Sums, calibration: Any) -> np.ndarray | None:
        """Return the weights of a probe `(units, hypotheses)`; None by default."""
        return None

    def summarise(self, block: Block, calibration: Any) -> Sums:
        """Return the sums of every replicate, `(REPLICATES, …)`, and its number of records."""
        part = (lots(block.indices) % REPLICATES).astype(int)
        blocks = (block[part == replicate].rows() for replicate in range(REPLICATES))
        sums = [self.statistics(*rows, calibration) for rows in blocks]
        stacked = {name: np.stack([s[name] for s in sums]) for name in sums[0]}
        return {"records": np.bincount(part, minlength=REPLICATES), **stacked}

    def merge(self, total: Sums, part: Sums) -> Sums:
        """Add the sums."""
        return {name: total[name] + value for name, value in part.items()}

    def result(self, total: Sums, calibration: Any, confidence: float) -> Scores:
        """Score all records, and for the error all records except each replicate's."""
        with np.errstate(divide="ignore", invalid="ignore"):
            everything = {name: value.sum(axis=0) for name, value in total.items()}
            parts = [
                self.score({n: everything[n] - v[replicate] for n, v in total.items()}, calibration)
                for replicate in np.flatnonzero(total["records"])
            ]
            score = self.score(everything, calibration)
            error = jackknife(score, np.stack(parts), confidence)
            return Scores(score, error, self.weights(everything, calibration))


def jackknife(score: np.ndarray, parts: np.ndarray, confidence: float) -> np.ndarray:
    """Return t · standard error + |bias| of scores, given those without each replicate, `parts`."""
    count = len(parts)
    if count < 2:
        return np.full_like(score, np.nan)
    mean = parts.mean(axis=0)
    variance = (count - 1) / count * ((parts - mean) ** 2).sum(axis=0)
    bias = (count - 1) * (mean - score)
    return stats.t.ppf((1 + confidence) / 2, count - 1) * np.sqrt(variance) + np.abs(bias)
