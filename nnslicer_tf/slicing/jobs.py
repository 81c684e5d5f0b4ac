"""What a worker does with one batch: walk it, and reduce the result for the way home."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from nnslicer_tf.slicing._kernels import copy_nonzero
from nnslicer_tf.slicing.program import Program
from nnslicer_tf.slicing.walker import Contributions, walk

__all__ = ["Rows", "RowsJob", "SumJob", "Totals"]

# Dense contributions of the synapses of the samples that are walked together.
_ROW_BYTES = 64 << 20


@dataclass(eq=False)
class Totals:
    """Contributions summed over samples: name → int64 array."""

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]
    samples: int

    def add(self, other: "Totals") -> None:
        """Add the contributions of other samples."""
        for mine, theirs in ((self.neurons, other.neurons), (self.synapses, other.synapses)):
            for name, values in theirs.items():
                mine[name] = mine[name] + values if name in mine else values
        self.samples += other.samples


@dataclass(frozen=True, eq=False)
class Rows:
    """Contributions of each sample: one sparse row a sample, int32."""

    synapses: sp.csr_array
    neurons: sp.csr_array | None
    predicted: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of all parts, in order."""
        if len(parts) == 1:  # stacking would copy them
            return parts[0]
        neurons = [part.neurons for part in parts if part.neurons is not None]
        return cls(
            sp.vstack([part.synapses for part in parts], format="csr"),
            sp.vstack(neurons, format="csr") if neurons else None,
            np.concatenate([part.predicted for part in parts]),
        )


class _Splittable:
    """Samples do not depend on each other: a batch may be walked in parts."""

    def split(
        self, captured: Mapping[str, np.ndarray], parts: int
    ) -> list[Mapping[str, np.ndarray]]:
        """Return at most so many smaller batches, none of them empty."""
        length = batch_length(captured)
        bounds = np.linspace(0, length, min(parts, length) + 1).astype(int)
        return [
            {name: values[start:end] for name, values in captured.items()}
            for start, end in itertools.pairwise(bounds)
        ]


@dataclass(frozen=True)
class SumJob(_Splittable):
    """Sum the contributions of a batch."""

    program: Program

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Totals:
        """Return the `Totals` of a batch of captured activations."""
        return total(walk(self.program, captured, each=False), batch_length(captured))

    def join(self, results: Sequence[Totals]) -> Totals:
        """Return the totals of all parts."""
        joined = Totals({}, {}, 0)
        for result in results:
            joined.add(result)
        return joined


@dataclass(frozen=True)
class RowsJob(_Splittable):
    """Keep the contributions of every sample of a batch.

    Attributes:
        program: The backward program.
        kernels: Names of the kernels to keep, in order.
        operations: Names of the operations whose neurons to keep, in order.
    """

    program: Program
    kernels: Sequence[str]
    operations: Sequence[str]

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Rows:
        """Return the `Rows` of a batch of captured activations."""
        synapses = sum(self.program.kernels[name].size for name in self.kernels)
        step = max(1, _ROW_BYTES // (4 * max(synapses, 1)))
        parts = []
        for start in range(0, batch_length(captured), step):
            part = {name: values[start : start + step] for name, values in captured.items()}
            logits = part[self.program.logits]
            predicted = logits.reshape(len(logits), -1).argmax(axis=1)
            result = walk(self.program, part, each=True)
            parts.append(self.rows(result, len(logits), predicted))
        return Rows.join(parts)

    def join(self, results: Sequence[Rows]) -> Rows:
        """Return the rows of all parts, in order."""
        return Rows.join(results)

    def rows(self, result: Contributions, samples: int, predicted: np.ndarray) -> Rows:
        """Return what is kept of the contributions of each sample, as sparse rows."""
        kernels = {name: self.program.kernels[name].shape for name in self.kernels}
        operations = {name: self.program.nodes[name].shape for name in self.operations}
        return Rows(
            _sparse(result.synapses, kernels, samples),
            _sparse(result.neurons, operations, samples) if operations else None,
            predicted,
        )


def batch_length(captured: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples of a batch."""
    return len(next(iter(captured.values())))


def total(result: Contributions, samples: int) -> Totals:
    """Sum the contributions of a batch over its samples."""
    return Totals(
        {name: values.sum(axis=0, dtype=np.int64) for name, values in result.neurons.items()},
        {name: values.sum(axis=0, dtype=np.int64) for name, values in result.synapses.items()},
        samples,
    )


def _sparse(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], samples: int
) -> sp.csr_array:
    """Lay arrays end to end as sparse int32 rows; those that are missing are zero."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    blocks = {name: arrays[name].reshape(samples, -1) for name in sizes if name in arrays}
    counts = np.zeros(samples, np.int64)
    for block in blocks.values():
        counts += np.count_nonzero(block, axis=1)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    data, indices = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.int32)
    places = indptr[:-1].copy()
    for name, block in blocks.items():
        copy_nonzero(block, starts[name], places, data, indices)
    return sp.csr_array((data, indices, indptr), shape=(samples, sum(sizes.values())))
