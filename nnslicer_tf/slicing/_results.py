"""Results of walks: contributions, their sums, and rows of single samples.

Counts are integers, amounts float32; sums of many samples are int64 or float64.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_name, names_of
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._rows import Matrix, Shapes, joined, to_rows, width

# Bytes of a batch's dense contributions; products of few samples take longer per sample.
_DENSE_BYTES = 288 << 20

Reduction = Callable[[Mapping[str, Any]], Any]
"""Function that reduces contributions, written with `keras.ops`: takes kernel name →
contributions of its synapses, a tensor `(batch, *kernel shape)` float32, and returns a tensor or a
structure of tensors."""


@dataclass(frozen=True, eq=False)
class Contributions:
    """CONTRIB of a batch, counts or amounts; the first axis is 1 where samples are summed."""

    neurons: dict[str, np.ndarray]  # (batch or 1, *neuron shape), of the operations reached
    synapses: dict[str, np.ndarray]  # (batch or 1, *kernel shape)


@dataclass(eq=False)
class Totals:
    """Contributions summed over samples: name → int64 or float64 array."""

    neurons: dict[str, np.ndarray]
    synapses: dict[str, np.ndarray]
    samples: int

    def add(self, other: "Totals", in_place: bool = False) -> None:
        """Add the contributions of other samples; not in place if arrays may be read-only."""
        for mine, theirs in ((self.neurons, other.neurons), (self.synapses, other.synapses)):
            for name, values in theirs.items():
                if name in mine:
                    values = np.add(mine[name], values, out=mine[name] if in_place else None)
                mine[name] = values
        self.samples += other.samples

    @classmethod
    def join(cls, parts: Sequence["Totals"]) -> "Totals":
        """Return the sum of all parts, in the arrays of the first one."""
        for part in parts[1:]:
            parts[0].add(part, in_place=True)
        return parts[0]


@dataclass(frozen=True, eq=False)
class Rows:
    """Contributions of consecutive samples, one row for each."""

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


@dataclass(frozen=True, eq=False)
class Part:
    """Dense contributions of consecutive samples, as `Slicer.iterate` yields them."""

    # (batch, *kernel shape) int32, float32 for amounts; empty with a reduction
    synapses: dict[str, np.ndarray]
    neurons: dict[str, np.ndarray]  # (batch, *neuron shape)
    predicted: np.ndarray  # each sample's class; −1 if the output is a map or a number; (batch,)
    reduced: Any = None  # the reduction's result, as arrays

    @classmethod
    def join(cls, parts: Sequence["Part"]) -> "Part":
        """Return the contributions of all parts, in order."""
        synapses, neurons = (
            {name: np.concatenate([getattr(p, what)[name] for p in parts]) for name in names}
            for what, names in (("synapses", parts[0].synapses), ("neurons", parts[0].neurons))
        )
        return cls(synapses, neurons, np.concatenate([part.predicted for part in parts]))


@dataclass(frozen=True)
class Collector:
    """Turns the contributions of a batch into its result: sums, rows or dense arrays."""

    # Of sums: int64 or float64; of single samples: int32 for counts, float32 for amounts.
    dtype: type
    kernels: dict[str, tuple[int, ...]] = field(default_factory=dict)  # in topological order
    operations: dict[str, tuple[int, ...]] = field(default_factory=dict)  # neuron shapes
    classes: OutputClasses | None = None  # of the logits
    each = True  # samples are not summed
    reduce = None

    @abstractmethod
    def collect(self, result: Contributions, logits: np.ndarray, reduced: Any = None) -> Any:
        """Return the batch's result; `reduced`, if not None, replaces the synapses."""

    def predicted(self, logits: np.ndarray) -> np.ndarray:
        """Return predicted classes, or the largest outputs' indices; −1 for maps and numbers."""
        if self.classes is not None and (self.classes.is_number or self.classes.positions):
            return np.full(len(logits), -1)
        if self.classes is not None and self.classes.is_binary and logits.size == len(logits):
            return self.classes.from_logits(logits).reshape(len(logits))
        return logits.reshape(len(logits), -1).argmax(axis=1)

    @property
    def synapses(self) -> int:
        """Number of synapses in each sample's row."""
        return width(self.kernels)

    @property
    def batch_size(self) -> int:
        """Number of samples whose dense rows fit into memory at a time."""
        return max(1, _DENSE_BYTES // (4 * max(self.synapses, 1)))


@dataclass(frozen=True)
class Sum(Collector):
    """Sums the contributions of a batch; see `Totals`."""

    each = False

    def collect(self, result: Contributions, logits: np.ndarray, reduced: Any = None) -> Totals:
        neurons, synapses = (
            {  # what the walk has summed counts as one sample
                name: v[0].astype(self.dtype) if len(v) == 1 else v.sum(axis=0, dtype=self.dtype)
                for name, v in arrays.items()
            }
            for arrays in (result.neurons, result.synapses)
        )
        return Totals(neurons, synapses, len(logits))


@dataclass(frozen=True)
class EachRow(Collector):
    """Keeps the contributions of each sample as a row; see `Rows`."""

    dense: bool = False  # most contributions are not zero

    def collect(self, result: Contributions, logits: np.ndarray, reduced: Any = None) -> Rows:
        both = (result.synapses, self.kernels), (result.neurons, self.operations)
        synapses, neurons = (
            to_rows(arrays, shapes, len(logits), self.dtype, self.dense) for arrays, shapes in both
        )
        return Rows(synapses, neurons if self.operations else None, self.predicted(logits))


@dataclass(frozen=True)
class EachPart(Collector):
    """Returns dense arrays, with synapses reduced on the backend if asked; see `Part`."""

    reduce: Reduction | None = None  # type: ignore[assignment]  # others have none

    def collect(self, result: Contributions, logits: np.ndarray, reduced: Any = None) -> Part:
        def dense(arrays: Mapping[str, np.ndarray], shapes: Shapes) -> dict[str, np.ndarray]:
            return {
                name: np.asarray(arrays[name]).astype(self.dtype, copy=False)
                if name in arrays
                else np.zeros((len(logits), *shape), self.dtype)
                for name, shape in shapes.items()
            }

        synapses = {} if reduced is not None else dense(result.synapses, self.kernels)
        neurons = dense(result.neurons, self.operations)
        return Part(synapses, neurons, self.predicted(logits), reduced)


def chosen_shapes(
    plan: Plan, kernels: Iterable[str] | None, operations: Iterable[str] | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of the named kernels and of the operations' neurons; None: all."""
    chosen = []
    for what, names, shapes in (
        ("kernel", kernels, {name: kernel.shape for name, kernel in plan.kernels.items()}),
        ("operation", operations, plan.shapes),
    ):
        wanted = shapes if names is None else names_of(f"{what}s", names)
        for name in wanted:
            check_name(what, name, shapes)
        chosen.append({name: shape for name, shape in shapes.items() if name in wanted})
    return chosen[0], chosen[1]
