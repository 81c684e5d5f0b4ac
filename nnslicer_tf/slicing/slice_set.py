"""`SliceSet`: one slice for each sample, as sparse matrices in memory or on disk."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._archive import read_archive, write_archive
from nnslicer_tf._names import check_name
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.slicing.slice import Slice

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_FORMAT = "nnslicer_tf slice set 1"


class SliceSet(ShownAsTable):
    """The slices of many samples.

    Attributes:
        matrix: CONTRIB of the synapses, `scipy.sparse.csr_array` int32,
            `(samples, synapses)`; columns run over `kernels`, each in C order.
        neuron_matrix: CONTRIB of the neurons, `(samples, neurons)`; columns run over
            `operations`; None if neurons were not kept.
        kernels: Kernel name → shape, in topological order.
        operations: Operation name → shape of its neurons, in topological order.
        predicted: Index of each sample's largest logit, `(samples,)` int64.
        info: Description of the slices' origin, for information only: theta, granularity,
            relative_to, rectify, fingerprint and outputs.
    """

    def __init__(
        self,
        matrix: sp.csr_array,
        neuron_matrix: sp.csr_array | None,
        kernels: Mapping[str, tuple[int, ...]],
        operations: Mapping[str, tuple[int, ...]],
        predicted: np.ndarray,
        info: Mapping[str, Any],
    ) -> None:
        self.matrix = matrix
        self.neuron_matrix = neuron_matrix
        self.kernels = dict(kernels)
        self.operations = dict(operations)
        self.predicted = predicted
        self.info = dict(info)

    def __len__(self) -> int:
        return self.matrix.shape[0]

    def __getitem__(self, index: int) -> Slice:
        """Return the slice of one sample, without neurons if they were not kept."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"The set has {len(self)} slices. Received index {index}.")
        index %= len(self)
        synapses = _split(_row(self.matrix, index), self.kernels)
        neurons = {}
        if self.neuron_matrix is not None:
            neurons = _split(_row(self.neuron_matrix, index), self.operations)
        return Slice(neurons, synapses, {**self.info, "samples": 1})

    def __iter__(self) -> Iterator[Slice]:
        return (self[i] for i in range(len(self)))

    def columns(self, kernels: Iterable[str]) -> np.ndarray:
        """Return the columns of `matrix` that belong to some kernels.

        Raises:
            InvalidArgumentError: if a kernel is not in the set.
        """
        return _columns(kernels, self.kernels, "kernel")

    def neuron_columns(self, operations: Iterable[str]) -> np.ndarray:
        """Return the columns of `neuron_matrix` that belong to some operations.

        Raises:
            InvalidArgumentError: if an operation is not in the set.
        """
        return _columns(operations, self.operations, "operation")

    def kept_share(self, kernel: str) -> np.ndarray:
        """Return the share of a kernel's synapses in each slice, `(samples,)` float64.

        Raises:
            InvalidArgumentError: if the kernel is not in the set.
        """
        columns = self.columns([kernel])
        kept = (self.matrix[:, columns] != 0).sum(axis=1)
        return np.asarray(kept, np.float64).ravel() / len(columns)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per sample: predicted class, synapses and neurons kept."""
        import pandas as pd

        columns = {"predicted": self.predicted, "synapses": _row_counts(self.matrix)}
        if self.neuron_matrix is not None:
            columns["neurons"] = _row_counts(self.neuron_matrix)
        columns["synapses, share"] = columns["synapses"] / max(self.matrix.shape[1], 1)
        return pd.DataFrame(columns).rename_axis("sample").reset_index()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the mean share of synapses kept in each kernel, with the deviation over samples."""
        from nnslicer_tf.report import plot_kept_synapses

        return plot_kept_synapses(self, ax)

    def sum(self) -> Slice:
        """Return the slice of all samples together."""
        synapses = np.asarray(self.matrix.sum(axis=0, dtype=np.int64)).ravel()
        neurons = {}
        if self.neuron_matrix is not None:
            total = np.asarray(self.neuron_matrix.sum(axis=0, dtype=np.int64)).ravel()
            neurons = _split(total, self.operations)
        return Slice(neurons, _split(synapses, self.kernels), {**self.info, "samples": len(self)})

    def save(self, path: str | os.PathLike) -> None:
        """Write the set to an .npz file, replacing an older one only when it is complete."""
        header = {
            "kernels": {name: list(shape) for name, shape in self.kernels.items()},
            "operations": {name: list(shape) for name, shape in self.operations.items()},
            "info": self.info,
            "has_neurons": self.neuron_matrix is not None,
        }
        arrays = {"predicted": self.predicted, **_csr_arrays("synapses", self.matrix)}
        if self.neuron_matrix is not None:
            arrays |= _csr_arrays("neurons", self.neuron_matrix)
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SliceSet":
        """Read a set of slices.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptFileError: if the file is damaged, or not a set of slices.
        """
        header, arrays = read_archive(path, _FORMAT, "slice set")
        kernels = {name: tuple(shape) for name, shape in header["kernels"].items()}
        operations = {name: tuple(shape) for name, shape in header["operations"].items()}
        neurons = _csr("neurons", arrays, operations) if header["has_neurons"] else None
        return cls(
            _csr("synapses", arrays, kernels),
            neurons,
            kernels,
            operations,
            arrays["predicted"],
            header["info"],
        )

    def __repr__(self) -> str:
        samples, synapses = self.matrix.shape
        density = self.matrix.nnz / max(samples * synapses, 1)
        return (
            f"SliceSet({samples} slices over {synapses:,} synapses, {density:.1%} kept, "
            f"θ={self.info.get('theta')}, {self.info.get('granularity')})"
        )


def width(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the total number of elements of arrays of these shapes."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def _row_counts(matrix: sp.csr_array) -> np.ndarray:
    """Return the number of non-zero values in each row, `(rows,)` int64."""
    return np.asarray((matrix != 0).sum(axis=1), np.int64).ravel()


def _row(matrix: sp.csr_array, index: int) -> np.ndarray:
    """Return one row as a dense int64 array, without reading the rest of a matrix on disk."""
    begin, end = matrix.indptr[index], matrix.indptr[index + 1]
    row = np.zeros(matrix.shape[1], np.int64)
    row[matrix.indices[begin:end]] = matrix.data[begin:end]
    return row


def _split(row: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(row, ends[:-1])
    return {name: part.reshape(s) for (name, s), part in zip(shapes.items(), parts, strict=True)}


def _columns(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]], what: str) -> np.ndarray:
    begin = dict(zip(shapes, np.cumsum([0, *map(np.prod, shapes.values())]), strict=False))
    parts = []
    for name in names:
        check_name(what, name, shapes)
        parts.append(np.arange(begin[name], begin[name] + int(np.prod(shapes[name]))))
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def _csr_arrays(name: str, matrix: sp.csr_array) -> dict[str, np.ndarray]:
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
    }


def _csr(
    name: str, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> sp.csr_array:
    data, indices, indptr = (arrays[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, width(shapes)))
