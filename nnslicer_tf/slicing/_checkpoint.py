"""Collection of the results of batches, with checkpoints from which a run resumes.

For every finished batch, a checkpoint has a digest of its data, so that a run with other data
is refused instead of mixing the results.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf.engine import Store
from nnslicer_tf.errors import ProfileMismatchError
from nnslicer_tf.slicing._results import Rows, Totals

_SUMS = "sums"


def digest(batch: np.ndarray) -> str:
    """Return a hash of a batch of data."""
    return hashlib.blake2b(np.ascontiguousarray(batch).data, digest_size=16).hexdigest()


class Collector(ABC):
    """The results so far, with the digests of the data of the finished batches."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    @abstractmethod
    def add(self, index: int, batch_digest: str, result: Any) -> None:
        """Add the result of a batch."""

    @abstractmethod
    def save(self) -> None:
        """Write results that have not been written yet."""

    def is_done(self, index: int, batch_digest: str) -> bool:
        """Return whether a batch is finished.

        Raises:
            ProfileMismatchError: if it was finished with other data.
        """
        known = self.digests.get(index)
        if known is not None and known != batch_digest:
            raise ProfileMismatchError(
                f"The checkpoint was made from other data: batch {index} differs. Choose another "
                "checkpoint folder, or remove this one."
            )
        return known is not None


class SumCollector(Collector):
    """A collector that adds up `Totals`; saving takes at most a tenth of the time.

    Args:
        store: The checkpoint, if there is one.
    """

    def __init__(self, store: Store | None) -> None:
        super().__init__()
        self.totals = Totals({}, {}, 0)
        self._store = store
        self._next_save = time.monotonic()
        if store is not None and _SUMS in store:
            self._load(store)

    def add(self, index: int, batch_digest: str, result: Totals) -> None:
        """Add the result of a batch."""
        self.totals.add(result)
        self.digests[index] = batch_digest
        if self._store is not None and time.monotonic() >= self._next_save:
            self.save()

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self._store is None:
            return
        started = time.monotonic()
        header = {
            "digests": {str(index): value for index, value in self.digests.items()},
            "samples": self.totals.samples,
            "neurons": list(self.totals.neurons),
            "synapses": list(self.totals.synapses),
        }
        arrays = {f"n{i}": v for i, v in enumerate(self.totals.neurons.values())}
        arrays |= {f"s{i}": v for i, v in enumerate(self.totals.synapses.values())}
        self._store.save(_SUMS, header, arrays)
        finished = time.monotonic()
        self._next_save = finished + 10 * (finished - started)

    def _load(self, store: Store) -> None:
        header, arrays = store.load(_SUMS)
        self.digests = {int(index): value for index, value in header["digests"].items()}
        neurons = {name: arrays[f"n{i}"] for i, name in enumerate(header["neurons"])}
        synapses = {name: arrays[f"s{i}"] for i, name in enumerate(header["synapses"])}
        self.totals = Totals(neurons, synapses, header["samples"])


class RowCollector(Collector):
    """A collector that keeps `Rows`, in memory or in one file for each batch.

    Args:
        store: The store that keeps the rows; None keeps them in memory.
    """

    def __init__(self, store: Store | None) -> None:
        super().__init__()
        self._store = store
        self._rows: dict[int, Rows] = {}
        if store is not None:
            for header in map(store.header, store.keys()):
                self.digests[header["index"]] = header["digest"]

    def add(self, index: int, batch_digest: str, result: Rows) -> None:
        """Keep the result of a batch."""
        self.digests[index] = batch_digest
        if self._store is None:
            self._rows[index] = result
            return
        arrays = {"predicted": result.predicted, **_parts("synapses", result.synapses)}
        if result.neurons is not None:
            arrays |= _parts("neurons", result.neurons)
        self._store.save(_row_key(index), {"index": index, "digest": batch_digest}, arrays)

    def save(self) -> None:
        """Do nothing: every batch is written when it is added."""

    def result(self) -> Rows:
        """Return the rows of all samples, in order; memory-mapped if there is a store."""
        if self._store is None:
            return Rows.join([self._rows[index] for index in sorted(self._rows)])
        return self._join_files(self._store)

    def _join_files(self, store: Store) -> Rows:
        """Join the files into memory-mapped matrices, with one file in memory at a time."""
        folder = store.folder
        synapses, neurons = _DiskMatrix(folder, "synapses"), _DiskMatrix(folder, "neurons")
        predicted = []
        for index in sorted(self.digests):
            _, arrays = store.load(_row_key(index))
            predicted.append(arrays["predicted"])
            synapses.append(arrays)
            if "neurons_data" in arrays:
                neurons.append(arrays)
        return Rows(
            synapses.finish(),
            neurons.finish() if neurons.rows else None,
            np.concatenate(predicted),
        )


class _DiskMatrix:
    """A CSR matrix whose values and column indices are written to files part by part."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._paths = {part: folder / f"{name}.{part}" for part in ("data", "indices")}
        self._indptr = [np.zeros(1, np.int64)]
        self._columns = 0
        self.rows = 0
        for path in self._paths.values():
            path.write_bytes(b"")

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        for part, path in self._paths.items():
            with path.open("ab") as file:
                file.write(arrays[f"{self._name}_{part}"].astype(np.int32).tobytes())
        indptr = arrays[f"{self._name}_indptr"].astype(np.int64)
        self._indptr.append(indptr[1:] + self._indptr[-1][-1])
        self._columns = int(arrays[f"{self._name}_columns"])
        self.rows += len(indptr) - 1

    def finish(self) -> sp.csr_array:
        indptr = np.concatenate(self._indptr)
        data, indices = (
            np.memmap(path, np.int32, "r") if indptr[-1] else np.zeros(0, np.int32)
            for path in self._paths.values()
        )
        matrix = sp.csr_array((self.rows, self._columns), dtype=np.int32)
        # Set directly: the constructor would copy the files into memory.
        matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
        return matrix


def _row_key(index: int) -> str:
    return f"rows-{index:08d}"


def _parts(name: str, matrix: sp.csr_array) -> dict[str, np.ndarray]:
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
        f"{name}_columns": np.array(matrix.shape[1]),
    }
