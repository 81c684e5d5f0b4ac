"""Results of walks: contributions, their sums, and rows of single samples."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from nnslicer_tf._names import check_name
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._rows import Matrix, dense_rows, joined, sparse_rows, width

# Bytes of a batch's dense contributions; products of few samples take longer per sample.
_DENSE_BYTES = 288 << 20


@dataclass(frozen=True, eq=False)
class Contributions:
    """CONTRIB of a batch, as integers.

    Attributes:
        neurons: Operation name → `(batch, *neuron shape)`, without operations that the walk did
            not reach.
        synapses: Kernel name → `(batch or 1, *kernel shape)`, summed over the batch
            unless samples are kept separate.
    """

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]


@dataclass(eq=False)
class Totals:
    """Contributions summed over samples: name → int64 array."""

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]
    samples: int

    @classmethod
    def of(cls, result: Contributions, samples: int) -> "Totals":
        """Sum the contributions of a batch over its samples."""
        return cls(_sums(result.neurons), _sums(result.synapses), samples)

    @classmethod
    def join(cls, parts: Sequence["Totals"]) -> "Totals":
        """Add all parts up in the arrays of the first one, without allocating new arrays."""
        first, *others = parts
        for part in others:
            for mine, theirs in ((first.neurons, part.neurons), (first.synapses, part.synapses)):
                for name, values in theirs.items():
                    if name in mine:
                        mine[name] += values
                    else:
                        mine[name] = values
        return cls(first.neurons, first.synapses, sum(part.samples for part in parts))

    def add(self, other: "Totals") -> None:
        """Add the contributions of other samples."""
        for mine, theirs in ((self.neurons, other.neurons), (self.synapses, other.synapses)):
            for name, values in theirs.items():
                mine[name] = mine[name] + values if name in mine else values
        self.samples += other.samples


@dataclass(frozen=True, eq=False)
class Rows:
    """Contributions of consecutive samples: one row for each."""

    synapses: Matrix
    neurons: Matrix | None
    predicted: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of all parts, in order."""
        neurons = [part.neurons for part in parts if part.neurons is not None]
        return cls(
            joined([part.synapses for part in parts]),
            joined(neurons) if neurons else None,
            np.concatenate([part.predicted for part in parts]),
        )


Reduction = Callable[[Mapping[str, Any]], Any]
"""Function that reduces contributions, written with `keras.ops`: takes kernel name →
contributions of its synapses, a tensor `(batch, *kernel shape)` float32, and returns a tensor or a
structure of tensors."""


@dataclass(frozen=True, eq=False)
class Part:
    """The contributions of consecutive samples, as dense arrays.

    Attributes:
        synapses: Kernel name → `(samples, *kernel shape)` int32; empty if they were reduced.
        neurons: Operation name → `(samples, *neuron shape)` int32.
        predicted: Index of each sample's largest logit, `(samples,)` int64.
        reduced: Result of the reduction of the synapses, as arrays; None without a reduction.
    """

    synapses: dict[str, np.ndarray]
    neurons: dict[str, np.ndarray]
    predicted: np.ndarray
    reduced: Any = None


def reduced(part: Part, reduce: Reduction) -> Part:
    """Apply the reduction on the backend to contributions that were computed by exclusion."""
    tensors = {
        name: keras.ops.convert_to_tensor(values.astype(np.float32))
        for name, values in part.synapses.items()
    }
    values = keras.tree.map_structure(keras.ops.convert_to_numpy, reduce(tensors))
    return Part({}, part.neurons, part.predicted, values)


@dataclass(frozen=True)
class RowLayout:
    """The kernels and operations whose contributions are kept for each sample, in order.

    Attributes:
        kernels: Names and shapes of the kernels whose synapses are kept.
        operations: Names and neuron shapes of the operations whose neurons are kept.
    """

    kernels: dict[str, tuple[int, ...]]
    operations: dict[str, tuple[int, ...]]

    @property
    def synapses(self) -> int:
        """Number of synapses that are kept."""
        return width(self.kernels)

    @property
    def batch_size(self) -> int:
        """Number of samples whose dense rows fit into memory at a time."""
        return max(1, _DENSE_BYTES // (4 * max(self.synapses, 1)))

    def rows(self, result: Contributions, logits: np.ndarray, dense: bool) -> Rows:
        """Return the contributions to keep, as rows.

        Args:
            result: The contributions of each sample separately.
            logits: The samples' logits `(batch, …)`.
            dense: Whether most of the contributions are not zero.
        """
        to_rows = dense_rows if dense else sparse_rows
        samples = len(logits)
        return Rows(
            to_rows(result.synapses, self.kernels, samples),
            to_rows(result.neurons, self.operations, samples) if self.operations else None,
            _predicted(logits),
        )

    def part(self, result: Contributions, logits: np.ndarray, reduced: Any = None) -> Part:
        """Return the contributions to keep, as dense arrays.

        Args:
            result: The contributions of each sample separately.
            logits: The samples' logits `(batch, …)`.
            reduced: Result of a reduction of the synapses, which replaces them.
        """
        samples = len(logits)
        synapses = {} if reduced is not None else self.kernels
        return Part(
            {name: _dense(result.synapses, name, (samples, *s)) for name, s in synapses.items()},
            {
                name: _dense(result.neurons, name, (samples, *shape))
                for name, shape in self.operations.items()
            },
            _predicted(logits),
            reduced,
        )


def _predicted(logits: np.ndarray) -> np.ndarray:
    return logits.reshape(len(logits), -1).argmax(axis=1)


def _dense(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return contributions as int32; zeros if the walk did not reach them."""
    if name not in arrays:
        return np.zeros(shape, np.int32)
    return np.asarray(arrays[name]).astype(np.int32, copy=False)


def _sums(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: _sum(values) for name, values in arrays.items()}


def _sum(values: np.ndarray) -> np.ndarray:
    """Sum over the first axis, int64; a whole batch's synapses count as one sample."""
    if len(values) == 1:
        return values[0].astype(np.int64)
    return values.sum(axis=0, dtype=np.int64)


def row_layout(
    plan: Plan, kernels: Iterable[str] | None, operations: Iterable[str] | None
) -> RowLayout:
    """Return the layout of the named kernels and operations; None means all.

    Raises:
        InvalidArgumentError: for unknown names.
    """
    return RowLayout(
        {name: plan.kernels[name].shape for name in _chosen(kernels, plan.kernels, "kernel")},
        {name: plan.shapes[name] for name in _chosen(operations, plan.nodes, "operation")},
    )


def _chosen(names: Iterable[str] | None, known: Mapping[str, object], what: str) -> list[str]:
    """Return the names to keep, in topological order."""
    if names is None:
        return list(known)
    wanted = list(names)
    for name in wanted:
        check_name(what, name, known)
    return [name for name in known if name in wanted]
