"""`SliceSet`: one slice for each sample, in memory or on disk."""

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._checks import check_name, counted, names_of
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._numerics import parted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.slicing import _rows
from nnslicer_tf.slicing._rows import Matrix, Shapes
from nnslicer_tf.slicing.slice import Slice

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_FORMAT = "nnslicer_tf slice set 1"


class SliceSet(ShownAsTable):
    """The slices of many samples.

    Attributes:
        kernels: Kernel name → shape, in topological order.
        operations: Operation name → shape of its neurons, in topological order.
        predicted: Predicted class of each sample, `(samples,)` int64; −1 of a map or a number.
        info: Origin of the slices, as in `Slice`, without samples.
    """

    def __init__(
        self,
        matrix: Matrix,
        neuron_matrix: Matrix | None,
        kernels: Shapes,
        operations: Shapes,
        predicted: np.ndarray,
        info: Mapping[str, Any],
    ) -> None:
        self._synapses = matrix
        self._neurons = neuron_matrix
        self.kernels = dict(kernels)
        self.operations = dict(operations)
        self.predicted = predicted
        self.info = dict(info)

    @cached_property
    def matrix(self) -> sp.csr_array:
        """CONTRIB of the synapses, `(samples, synapses)` int32, over `kernels` in C order.

        At θ = 0 most values are not zero, and `to_array` is cheaper.
        """
        return _to_sparse(self._synapses)

    @cached_property
    def neuron_matrix(self) -> sp.csr_array | None:
        """CONTRIB of neurons, `(samples, neurons)` int32 over `operations` in C order, or None."""
        return None if self._neurons is None else _to_sparse(self._neurons)

    def to_array(self) -> np.ndarray:
        """Return CONTRIB of the synapses as a dense array, `(samples, synapses)` int32.

        `columns` has the indices of its columns that belong to some kernels.
        """
        return self._synapses if isinstance(self._synapses, np.ndarray) else self.matrix.toarray()

    def __len__(self) -> int:
        return self._synapses.shape[0]

    def __getitem__(self, index: int) -> Slice:
        """Return the slice of one sample, with neurons if the set has them."""
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"The set has {counted(len(self), 'slice')}. Received index {index}.")
        index %= len(self)
        neurons = None if self._neurons is None else _rows.row(self._neurons, index)
        return self._slice(_rows.row(self._synapses, index), neurons, 1)

    def __iter__(self) -> Iterator[Slice]:
        return (self[i] for i in range(len(self)))

    def columns(self, kernels: Iterable[str]) -> np.ndarray:
        """Return the indices of the columns of `matrix` that belong to some kernels of the set."""
        return _columns(kernels, self.kernels, "kernel")

    def neuron_columns(self, operations: Iterable[str]) -> np.ndarray:
        """Return the indices of the columns of `neuron_matrix` of some operations of the set."""
        return _columns(operations, self.operations, "operation")

    def kept_share(self, kernel: str) -> np.ndarray:
        """Return the share of a kernel's synapses in each slice, `(samples,)` float64."""
        columns = self.columns([kernel])
        return _rows.counts(self._synapses[:, columns]) / len(columns)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per sample: predicted class, synapses and neurons kept."""
        import pandas as pd

        columns = {"predicted": self.predicted, "synapses": _rows.counts(self._synapses)}
        if self._neurons is not None:
            columns["neurons"] = _rows.counts(self._neurons)
        columns["synapses, share"] = columns["synapses"] / max(self._synapses.shape[1], 1)
        return pd.DataFrame(columns).rename_axis("sample").reset_index()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the mean share of synapses kept in each kernel, and its deviation across samples."""
        from nnslicer_tf.report import plot_kept_synapses

        return plot_kept_synapses(self, ax)

    def sum(self) -> Slice:
        """Return the slice of all samples together."""
        neurons = None if self._neurons is None else _rows.total(self._neurons)
        return self._slice(_rows.total(self._synapses), neurons, len(self))

    def _slice(self, synapses: np.ndarray, neurons: np.ndarray | None, samples: int) -> Slice:
        of_neurons, of_synapses = (
            {} if values is None else parted(values, shapes)
            for values, shapes in ((neurons, self.operations), (synapses, self.kernels))
        )
        return Slice(of_neurons, of_synapses, {**self.info, "samples": samples})

    def save(self, path: str | os.PathLike) -> None:
        """Write the set to an .npz file, replacing an older one only when it is complete."""
        header = {
            "kernels": {name: list(shape) for name, shape in self.kernels.items()},
            "operations": {name: list(shape) for name, shape in self.operations.items()},
            "info": self.info,
            "has_neurons": self._neurons is not None,
        }
        arrays = {"predicted": self.predicted, **_rows.to_arrays("synapses", self._synapses)}
        if self._neurons is not None:
            arrays |= _rows.to_arrays("neurons", self._neurons)
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SliceSet":
        """Read a set of slices; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "slice set") as file:
            kernels, operations = file.shapes("kernels"), file.shapes("operations")
            predicted = file.array("predicted", np.integer, "samples")
            synapses = _rows.from_file("synapses", file, len(predicted), _rows.width(kernels))
            neurons = None
            if file.value("has_neurons", bool):
                neurons = _rows.from_file("neurons", file, len(predicted), _rows.width(operations))
            file.check((predicted >= 0).all() or (predicted == -1).all(), "it has negative classes")
            info = file.value("info", dict)
            theta, level = info.get("theta", 0), info.get("granularity", "channel")
            fits = 0 <= theta < np.inf and level in ("activation", "channel")
            file.check(fits, f"its θ and granularity are {theta!r} and {level!r}")
            return cls(synapses, neurons, kernels, operations, predicted, info)

    def __repr__(self) -> str:
        samples, synapses = self._synapses.shape
        density = _rows.counts(self._synapses).sum() / max(samples * synapses, 1)
        return (
            f"SliceSet({counted(samples, 'slice')} over {counted(synapses, 'synapse')}, "
            f"{density:.1%} kept, θ={self.info.get('theta')}, {self.info.get('granularity')})"
        )


def _to_sparse(matrix: Matrix) -> sp.csr_array:
    return sp.csr_array(matrix) if isinstance(matrix, np.ndarray) else matrix


def _columns(names: Iterable[str], shapes: Shapes, what: str) -> np.ndarray:
    parts = [np.zeros(0, np.int64)]
    for name in names_of(f"{what}s", names):
        check_name(what, name, shapes)
        columns = _rows.places(shapes)[name]
        parts.append(np.arange(columns.start, columns.stop))
    return np.concatenate(parts)
