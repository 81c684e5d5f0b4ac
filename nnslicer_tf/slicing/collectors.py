"""Partial results put together, with checkpoints from which a run resumes.

A checkpoint is a folder: `identity.json` says of which model, profile, criterion and θ
it is, and for every batch that is done there is a digest of its data, so that a run with
anything changed is refused instead of mixed. Files are written atomically.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._archive import read_archive, write_archive
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.errors import CorruptFileError, ProfileMismatchError
from nnslicer_tf.slicing.jobs import Rows, Totals

__all__ = ["RowCollector", "SumCollector", "digest", "open_checkpoint"]

_TOTALS = "nnslicer_tf checkpoint of sums 1"
_ROWS = "nnslicer_tf checkpoint of rows 1"


def digest(batch: np.ndarray) -> str:
    """Return a hash of a batch of data."""
    return hashlib.blake2b(np.ascontiguousarray(batch), digest_size=16).hexdigest()


def open_checkpoint(folder: str | os.PathLike, identity: Mapping[str, Any]) -> Path:
    """Return the folder of a checkpoint, new or begun by a run with the same identity.

    Raises:
        ProfileMismatchError: if the checkpoint is of another run.
        CorruptFileError: if its identity cannot be read.
        InvalidArgumentError: if nothing can be written there.
    """
    path = check_writable(Path(folder) / "identity.json")
    if not path.exists():
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(dict(identity), indent=1))
        return path.parent
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise CorruptFileError(f"The checkpoint '{path}' is damaged: {error}.") from error
    expected = json.loads(json.dumps(dict(identity)))
    if found != expected:
        changed = [key for key in expected if found.get(key) != expected[key]]
        key = changed[0] if changed else "format"
        raise ProfileMismatchError(
            f"The checkpoint in '{path.parent}' is of another run: its {key} is "
            f"{found.get(key)!r}, this run's is {expected.get(key)!r}. Choose another folder, or "
            "remove this one."
        )
    return path.parent


class _Progress:
    """Which batches are done, by the digest of their data."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    def is_done(self, index: int, batch_digest: str) -> bool:
        """Return whether a batch is done.

        Raises:
            ProfileMismatchError: if it was done with other data.
        """
        known = self.digests.get(index)
        if known is not None and known != batch_digest:
            raise ProfileMismatchError(
                f"The checkpoint was made from other data: batch {index} differs. Choose another "
                "checkpoint folder, or remove this one."
            )
        return known is not None


class SumCollector(_Progress):
    """Adds up `Totals`; saves the sums so often that it costs a tenth of the time at most.

    Args:
        folder: Folder of the checkpoint, None for none.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.totals = Totals({}, {}, 0)
        self._path = None if folder is None else folder / "sums.npz"
        self._next_save = time.monotonic()
        if self._path is not None and self._path.exists():
            self._load(self._path)

    def add(self, index: int, batch_digest: str, result: Totals) -> None:
        """Add the result of a batch."""
        self.totals.add(result)
        self.digests[index] = batch_digest
        if self._path is not None and time.monotonic() >= self._next_save:
            self.save()

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self._path is None:
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
        write_archive(self._path, _TOTALS, header, arrays)
        finished = time.monotonic()
        self._next_save = finished + 10 * (finished - started)

    def _load(self, path: Path) -> None:
        header, arrays = read_archive(path, _TOTALS, "checkpoint")
        self.digests = {int(index): value for index, value in header["digests"].items()}
        neurons = {name: arrays[f"n{i}"] for i, name in enumerate(header["neurons"])}
        synapses = {name: arrays[f"s{i}"] for i, name in enumerate(header["synapses"])}
        self.totals = Totals(neurons, synapses, header["samples"])


class RowCollector(_Progress):
    """Keeps `Rows`, in memory or in one file for each batch.

    Args:
        folder: Folder for the rows, None to keep them in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        self._rows: dict[int, Rows] = {}
        for path in [] if folder is None else sorted(folder.glob("rows-*.npz")):
            header, _ = read_archive(path, _ROWS, "checkpoint")
            self.digests[header["index"]] = header["digest"]

    def add(self, index: int, batch_digest: str, result: Rows) -> None:
        """Keep the result of a batch."""
        self.digests[index] = batch_digest
        if self._folder is None:
            self._rows[index] = result
            return
        arrays = {"predicted": result.predicted, **_parts("synapses", result.synapses)}
        if result.neurons is not None:
            arrays |= _parts("neurons", result.neurons)
        header = {"index": index, "digest": batch_digest}
        write_archive(self._folder / f"rows-{index:08d}.npz", _ROWS, header, arrays)

    def save(self) -> None:
        """Do nothing: every batch is saved when it comes."""

    def result(self) -> Rows:
        """Return the rows of all samples, in order; on disk if there is a folder."""
        if self._folder is None:
            return Rows.join([self._rows[index] for index in sorted(self._rows)])
        return self._join_files(self._folder)

    def _join_files(self, folder: Path) -> Rows:
        """Join the files into memory-mapped matrices; never more than one in memory."""
        names = [folder / f"rows-{index:08d}.npz" for index in sorted(self.digests)]
        synapses, neurons = _DiskMatrix(folder, "synapses"), _DiskMatrix(folder, "neurons")
        predicted = []
        for name in names:
            _, arrays = read_archive(name, _ROWS, "checkpoint")
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
    """A CSR matrix whose values and columns are written to files part by part."""

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


def _parts(name: str, matrix: sp.csr_array) -> dict[str, np.ndarray]:
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
        f"{name}_columns": np.array(matrix.shape[1]),
    }
