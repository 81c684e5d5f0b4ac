"""Rows of contributions, one for each sample: sparse, or dense where most values are not zero.

A value in a sparse row takes twice as much memory as one in a dense row. At θ = 0, three quarters
of the synapses of a typical network have a contribution, so rows are dense.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._files import Archive, disk_errors, temporary_file
from nnslicer_tf._kernels.rows import copy_nonzero

Matrix: TypeAlias = sp.csr_array | np.ndarray
"""Rows `(samples, values)`, int32 for counts and float32 for amounts."""

Shapes = Mapping[str, tuple[int, ...]]


def width(shapes: Shapes) -> int:
    """Return the total number of elements of arrays of these shapes."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def sparse_rows(
    arrays: Mapping[str, np.ndarray], shapes: Shapes, samples: int, dtype: type
) -> sp.csr_array:
    """Concatenate flattened arrays into sparse rows; missing arrays are zero."""
    blocks = _blocks(arrays, shapes, samples)
    counts = np.zeros(samples, np.int64)
    for block in blocks.values():
        counts += np.count_nonzero(block, axis=1)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    data, indices = np.empty(indptr[-1], dtype), np.empty(indptr[-1], np.int32)
    places = indptr[:-1].copy()
    for first, block in blocks.items():
        copy_nonzero(block, first, places, data, indices)
    return sp.csr_array((data, indices, indptr), shape=(samples, width(shapes)))


def dense_rows(
    arrays: Mapping[str, np.ndarray], shapes: Shapes, samples: int, dtype: type
) -> np.ndarray:
    """Concatenate flattened arrays into dense rows; missing arrays are zero."""
    rows: np.ndarray = np.zeros((samples, width(shapes)), dtype)
    for first, block in _blocks(arrays, shapes, samples).items():
        rows[:, first : first + block.shape[1]] = block
    return rows


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
        return matrix[index].astype(wide(matrix.dtype))
    begin, end = matrix.indptr[index], matrix.indptr[index + 1]
    values = np.zeros(matrix.shape[1], wide(matrix.dtype))
    values[matrix.indices[begin:end]] = matrix.data[begin:end]
    return values


def total(matrix: Matrix) -> np.ndarray:
    """Return the sum of all rows, `(values,)` int64 or float64."""
    return np.asarray(matrix.sum(axis=0, dtype=wide(matrix.dtype))).ravel()


def wide(dtype: np.dtype) -> type:
    """Return the type for sums of values: int64 for integers, float64 for others."""
    return np.int64 if np.issubdtype(dtype, np.integer) else np.float64


def counts(matrix: Matrix) -> np.ndarray:
    """Return the number of non-zero values in each row, `(samples,)` int64."""
    if isinstance(matrix, np.ndarray):
        return np.array([np.count_nonzero(values) for values in matrix], np.int64)
    return np.asarray((matrix != 0).sum(axis=1), np.int64).ravel()


def to_sparse(matrix: Matrix) -> sp.csr_array:
    """Return a matrix in sparse form; a sparse matrix is returned unchanged."""
    return sp.csr_array(matrix) if isinstance(matrix, np.ndarray) else matrix


def to_arrays(name: str, matrix: Matrix) -> dict[str, np.ndarray]:
    """Return the arrays that represent a matrix in a file."""
    if isinstance(matrix, np.ndarray):
        return {f"{name}_dense": matrix}
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
    }


def from_file(name: str, file: Archive, rows: int, columns: int, dtype: type = np.number) -> Matrix:
    """Return the matrix whose arrays, made by `to_arrays`, a file holds.

    Raises:
        CorruptFileError: if they are not those of a matrix `(rows, columns)`.
    """
    if f"{name}_dense" in file:
        return file.array(f"{name}_dense", dtype, (rows, columns))
    data = file.array(f"{name}_data", dtype, "*")
    indices = file.array(f"{name}_indices", np.integer, data.shape)
    indptr = file.array(f"{name}_indptr", np.integer, (rows + 1,))
    file.check(
        indptr[0] == 0 and indptr[-1] == len(data) and (np.diff(indptr) >= 0).all(),
        f"'{name}_indptr' does not divide the values into rows",
    )
    file.check(
        not len(data) or (indices.min() >= 0 and indices.max() < columns),
        f"'{name}_indices' are not within {columns:,} columns",
    )
    return sp.csr_array((data, indices, indptr), shape=(rows, columns))


class RowsOnDisk:
    """Rows that are written to files in parts, and finally memory-mapped.

    Existing files are replaced when everything is written; earlier results that map them keep
    their rows. Threads and processes may write the same rows at the same time.

    Args:
        folder: Folder of the files.
        name: Prefix of their names.
        columns: Number of values in a row.
        dtype: Type of the values.
    """

    def __init__(self, folder: Path, name: str, columns: int, dtype: type) -> None:
        self._dtype = dtype
        self._folder = folder
        self._name = name
        self._columns = columns
        self._unfinished: dict[str, Path] = {}
        self._indptr = [np.zeros(1, np.int64)]
        self._rows = 0

    def append(self, rows: Matrix) -> None:
        """Write rows."""
        self._rows += rows.shape[0]
        if isinstance(rows, np.ndarray):
            self._write("dense", rows)
            return
        self._write("data", rows.data)
        self._write("indices", rows.indices)
        self._indptr.append(rows.indptr[1:].astype(np.int64) + self._indptr[-1][-1])

    def finish(self) -> Matrix:
        """Return all rows, memory-mapped."""
        # Mapped before they get their names: another thread may replace them right after.
        values = {}
        for part, path in self._unfinished.items():
            empty, dtype = not path.stat().st_size, self._type_of(part)
            values[part] = np.zeros(0, dtype) if empty else np.memmap(path, dtype, "r")
        for part, path in self._unfinished.items():
            os.replace(path, self._folder / f"{self._name}.{part}")
        if "dense" in values:
            return values["dense"].reshape(self._rows, self._columns)
        matrix = sp.csr_array((self._rows, self._columns), dtype=self._dtype)
        # Set directly: the constructor would copy the files into memory.
        matrix.indptr = np.concatenate(self._indptr)
        matrix.data, matrix.indices = values["data"], values["indices"]
        return matrix

    def _write(self, part: str, values: np.ndarray) -> None:
        if part not in self._unfinished:
            self._unfinished[part] = temporary_file(self._folder, f"{self._name}.{part}")
        with (
            disk_errors(self._folder / f"{self._name}.{part}"),
            self._unfinished[part].open("ab") as file,
        ):
            file.write(np.ascontiguousarray(values, self._type_of(part)).tobytes())

    def _type_of(self, part: str) -> type:
        return np.int32 if part == "indices" else self._dtype


def _blocks(
    arrays: Mapping[str, np.ndarray], shapes: Shapes, samples: int
) -> dict[int, np.ndarray]:
    """Map the first column of each array that is present to the flattened array."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    return {
        int(starts[name]): arrays[name].reshape(samples, -1) for name in sizes if name in arrays
    }
