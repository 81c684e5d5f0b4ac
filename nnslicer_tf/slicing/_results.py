"""Results of walks: contributions, their sums, and rows of single samples.

Counts are integers, amounts float32; sums of many samples are int64 or float64.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._rows import Matrix, dense_rows, joined, sparse_rows, width

# Bytes of a batch's dense contributions; products of few samples take longer per sample.
_DENSE_BYTES = 288 << 20


@dataclass(frozen=True, eq=False)
class Contributions:
    """CONTRIB of a batch: counts or amounts.

    Attributes:
        neurons: Operation name → `(batch, *neuron shape)`, or `(1, *neuron shape)` if the walk
            has summed them, without operations that it did not reach.
        synapses: Kernel name → `(batch or 1, *kernel shape)`, summed over the batch
            unless samples are kept separate.
    """

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]


@dataclass(eq=False)
class Totals:
    """Contributions summed over samples: name → int64 or float64 array."""

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]
    samples: int

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
        synapses: Kernel name → `(samples, *kernel shape)` int32 (float32 for amounts); empty if
            they were reduced.
        neurons: Operation name → `(samples, *neuron shape)`, likewise.
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
class Sum:
    """A collector that sums the contributions of a batch."""

    dtype: type
    each = False
    reduce = None
    synapses = 0
    kernels: ClassVar[dict[str, tuple[int, ...]]] = {}
    operations: ClassVar[dict[str, tuple[int, ...]]] = {}

    def collect(self, result: Contributions, logits: np.ndarray) -> Totals:
        """Return the totals of a batch, given its logits `(batch, …)`."""
        neurons, synapses = (
            {name: _sum(values, self.dtype) for name, values in arrays.items()}
            for arrays in (result.neurons, result.synapses)
        )
        return Totals(neurons, synapses, len(logits))

    def join(self, results: Sequence[Totals]) -> Totals:
        """Return the totals of all parts of a batch."""
        return Totals.join(results)


@dataclass(frozen=True)
class _Each:
    """Base class of collectors of the contributions of every sample.

    Attributes:
        kernels: Names and shapes of the kernels whose synapses are kept, in order.
        operations: Names and neuron shapes of the operations whose neurons are kept, in order.
        dtype: int32 for counts, float32 for amounts.
    """

    kernels: dict[str, tuple[int, ...]]
    operations: dict[str, tuple[int, ...]]
    dtype: type
    each = True

    @property
    def synapses(self) -> int:
        """Number of synapses that are kept."""
        return width(self.kernels)

    @property
    def batch_size(self) -> int:
        """Number of samples whose dense rows fit into memory at a time."""
        return max(1, _DENSE_BYTES // (4 * max(self.synapses, 1)))


@dataclass(frozen=True)
class EachRow(_Each):
    """A collector that keeps the contributions as rows.

    Attributes:
        dense: Whether most of the contributions are not zero.
    """

    dense: bool = False
    reduce = None

    def collect(self, result: Contributions, logits: np.ndarray) -> Rows:
        """Return the contributions of a batch, given its logits `(batch, …)`."""
        to_rows = dense_rows if self.dense else sparse_rows
        samples = len(logits)
        return Rows(
            to_rows(result.synapses, self.kernels, samples, self.dtype),
            to_rows(result.neurons, self.operations, samples, self.dtype)
            if self.operations
            else None,
            _predicted(logits),
        )

    def join(self, results: Sequence[Rows]) -> Rows:
        """Return the rows of all parts of a batch, in order."""
        return Rows.join(results)


@dataclass(frozen=True)
class EachPart(_Each):
    """A collector that returns dense arrays, or what they are reduced to on the backend.

    Attributes:
        reduce: Reduction of the synapses; None returns them unreduced.
    """

    reduce: Reduction | None = None

    def collect(self, result: Contributions, logits: np.ndarray, reduced: Any = None) -> Part:
        """Return the contributions of a batch.

        Args:
            result: The contributions of each sample separately.
            logits: The samples' logits `(batch, …)`.
            reduced: Result of a reduction of the synapses, which replaces them.
        """
        samples = len(logits)
        shapes_of_synapses = {} if reduced is not None else self.kernels
        parts: list[dict[str, np.ndarray]] = [
            {
                name: np.asarray(arrays[name]).astype(self.dtype, copy=False)
                if name in arrays
                else np.zeros((samples, *shape), self.dtype)
                for name, shape in shapes.items()
            }
            for arrays, shapes in (
                (result.synapses, shapes_of_synapses),
                (result.neurons, self.operations),
            )
        ]
        return Part(parts[0], parts[1], _predicted(logits), reduced)

    def join(self, results: Sequence[Part]) -> Part:
        """Return the contributions of all parts of a batch, in order."""
        first = results[0]
        return Part(
            {name: np.concatenate([r.synapses[name] for r in results]) for name in first.synapses},
            {name: np.concatenate([r.neurons[name] for r in results]) for name in first.neurons},
            np.concatenate([r.predicted for r in results]),
        )


Collector = Sum | EachRow | EachPart
"""What becomes of the contributions of a batch."""


def _predicted(logits: np.ndarray) -> np.ndarray:
    """Return the largest logit's index; for a single logit, the class that its sigmoid gives."""
    flat = logits.reshape(len(logits), -1)
    return (flat[:, 0] > 0).astype(np.int64) if flat.shape[1] == 1 else flat.argmax(axis=1)


def _sum(values: np.ndarray, dtype: type) -> np.ndarray:
    """Sum over the first axis; what the walk has summed counts as one sample."""
    return values[0].astype(dtype) if len(values) == 1 else values.sum(axis=0, dtype=dtype)


def chosen_shapes(
    plan: Plan, kernels: Iterable[str] | None, operations: Iterable[str] | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of the named kernels, and of neurons of operations; None means all.

    Raises:
        InvalidArgumentError: for unknown names.
    """
    return (
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
