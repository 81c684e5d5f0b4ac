"""Rows of contributions, one for each sample: sparse, or dense where most values are not zero.

A value takes twice as much memory in a sparse row as in a dense one. At θ = 0, three quarters of
the synapses of a typical network contribute, so rows are dense.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._files import Archive, disk_errors, temporary_file
from nnslicer_tf._kernels.pools import copy_nonzero
from nnslicer_tf.errors import CorruptFileError

Matrix: TypeAlias = sp.csr_array | np.ndarray
"""Rows `(samples, values)`, int32 for counts and float32 for amounts."""

Shapes = Mapping[str, tuple[int, ...]]


def width(shapes: Shapes) -> int:
    """Return the total number of elements of arrays of these shapes."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def places(shapes: Shapes) -> dict[str, slice]:
    """Map each name to the columns of its array in a row."""
    ends = np.cumsum([0, *(np.prod(shape) for shape in shapes.values())]).astype(int).tolist()
    return dict(zip(shapes, map(slice, ends[:-1], ends[1:]), strict=True))


def to_rows(
    arrays: Mapping[str, np.ndarray], shapes: Shapes, samples: int, dtype: type, dense: bool
) -> Matrix:
    """Concatenate flattened arrays `(samples, *shape)` into rows; missing arrays are zero."""
    blocks = {
        columns.start: arrays[name].reshape(samples, -1)
        for name, columns in places(shapes).items()
        if name in arrays
    }
    if dense:
        rows: np.ndarray = np.zeros((samples, width(shapes)), dtype)
        for first, block in blocks.items():
            rows[:, first : first + block.shape[1]] = block
        return rows
    counts = np.zeros(samples, np.int64)
    for block in blocks.values():
        counts += np.count_nonzero(block, axis=1)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    data, indices = np.empty(indptr[-1], dtype), np.empty(indptr[-1], np.int32)
    ends = indptr[:-1].copy()
    for first, block in blocks.items():
        copy_nonzero(block, first, ends, data, indices)
    return sp.csr_array((data, indices, indptr), shape=(samples, width(shapes)))


def joined(parts: Sequence[Matrix]) -> Matrix:
    """Return the rows of all parts, in order."""
    if len(parts) == 1:  # stacking would copy them
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return sp.vstack(parts, format="csr")


def row(matrix: Matrix, index: int) -> np.ndarray:
    """Return one row as a dense int64 or float64 array, without reading the rest from disk."""
    if isinstance(matrix, np.ndarray):
        return matrix[index].astype(_wide(matrix))
    begin, end = matrix.indptr[index], matrix.indptr[index + 1]
    values = np.zeros(matrix.shape[1], _wide(matrix))
    values[matrix.indices[begin:end]] = matrix.data[begin:end]
    return values


def total(matrix: Matrix) -> np.ndarray:
    """Return the sum of all rows, `(values,)` int64 or float64."""
    return np.asarray(matrix.sum(axis=0, dtype=_wide(matrix))).ravel()


def _wide(matrix: Matrix) -> type:
    return np.int64 if np.issubdtype(matrix.dtype, np.integer) else np.float64


def counts(matrix: Matrix) -> np.ndarray:
    """Return the number of non-zero values in each row, `(samples,)` int64."""
    if isinstance(matrix, np.ndarray):
        return np.array([np.count_nonzero(values) for values in matrix], np.int64)
    return np.asarray((matrix != 0).sum(axis=1), np.int64).ravel()


def to_arrays(name: str, matrix: Matrix) -> dict[str, np.ndarray]:
    """Return the arrays that represent a matrix in a file."""
    if isinstance(matrix, np.ndarray):
        return {f"{name}_dense": matrix}
    parts = {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
    return parts | {f"{name}_shape": np.array(matrix.shape)}


def from_file(name: str, file: Archive, rows: int, columns: int, dtype: type = np.number) -> Matrix:
    """Return a matrix that `to_arrays` wrote; raise CorruptFileError if its arrays do not fit."""
    file.check(columns <= np.iinfo(np.int32).max, f"it has rows of {columns:,} values")
    if f"{name}_dense" in file:
        return file.array(f"{name}_dense", dtype, (rows, columns))
    data = file.array(f"{name}_data", dtype, "*")
    indices = file.array(f"{name}_indices", np.integer, data.shape)
    indptr = file.array(f"{name}_indptr", np.integer, (rows + 1,))
    if f"{name}_shape" in file:  # older files do not have it
        shape = file.array(f"{name}_shape", np.integer, "2").tolist()
        file.check(shape == [rows, columns], f"its rows do not have {columns:,} '{name}'")
    divides = indptr[0] == 0 and indptr[-1] == len(data) and (np.diff(indptr) >= 0).all()
    file.check(divides, f"'{name}_indptr' does not divide the values into rows")
    inside = not len(data) or (indices.min() >= 0 and indices.max() < columns)
    file.check(inside, f"'{name}_indices' are not within {columns:,} columns")
    matrix = sp.csr_array((data, indices, indptr), shape=(rows, columns))
    file.check(matrix.has_canonical_format, f"'{name}_indices' do not rise within each row")
    return matrix


class RowsOnDisk:
    """Rows that are written to files in parts, and memory-mapped at the end.

    Existing files are replaced at the end; earlier results that map them keep their rows. Several
    threads and processes may write rows with the same name at once.
    """

    def __init__(self, folder: Path, name: str, columns: int, dtype: type) -> None:
        self._folder, self._name, self._columns = folder, name, columns
        self._dtypes = {"data": dtype, "dense": dtype, "indices": np.int32}
        self._unfinished: dict[str, Path] = {}
        self._indptr = [np.zeros(1, np.int64)]
        self._rows = 0

    def append(self, rows: Matrix) -> None:
        """Write rows."""
        self._rows += rows.shape[0]
        if isinstance(rows, np.ndarray):
            parts = {"dense": rows}
        else:
            parts = {"data": rows.data, "indices": rows.indices}
            self._indptr.append(rows.indptr[1:].astype(np.int64) + self._indptr[-1][-1])
        for part, values in parts.items():
            name = f"{self._name}.{part}"
            if part not in self._unfinished:
                self._unfinished[part] = temporary_file(self._folder, name)
            with disk_errors(self._folder / name), self._unfinished[part].open("ab") as file:
                file.write(np.ascontiguousarray(values, self._dtypes[part]).tobytes())

    def finish(self) -> Matrix:
        """Return all rows, memory-mapped."""
        # Mapped before they get their names: another thread may replace them right after.
        values = {}
        for part, path in self._unfinished.items():
            empty, dtype = not path.stat().st_size, self._dtypes[part]
            values[part] = np.zeros(0, dtype) if empty else np.memmap(path, dtype, "r")
        for part, path in self._unfinished.items():
            try:
                os.replace(path, at := self._folder / f"{self._name}.{part}")
            except IsADirectoryError as error:
                raise CorruptFileError(f"'{at}' is a folder. Remove it.") from error
        if "dense" in values:
            return values["dense"].reshape(self._rows, self._columns)
        matrix = sp.csr_array((self._rows, self._columns), dtype=self._dtypes["data"])
        # Set directly: the constructor would copy the files into memory.
        matrix.indptr = np.concatenate(self._indptr)
        matrix.data, matrix.indices = values["data"], values["indices"]
        return matrix
