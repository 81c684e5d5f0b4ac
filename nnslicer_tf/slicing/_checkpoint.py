"""Checkpoints: the results of finished batches, from which an interrupted run resumes.

A digest of each finished batch identifies its data, so a run with different data is rejected.
"""

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from nnslicer_tf._files import folder_lock
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import ProfileMismatchError
from nnslicer_tf.slicing._results import EachRow, Rows, Totals
from nnslicer_tf.slicing._rows import RowsOnDisk, from_file, to_arrays, width

_SUMS = "sums"
_ROWS = "rows-{:08d}"


class Checkpoint(ABC):
    """Results of the finished batches, in memory or, if given, in a store."""

    def __init__(self, store: Store | None) -> None:
        self.digests: dict[int, str] = {}  # batch number → digest of its data; "" in memory
        self.is_stored = store is not None
        self._store = store

    @abstractmethod
    def add(self, index: int, batch_digest: str, result: Any) -> None:
        """Add the result of a batch."""

    def save(self) -> None:
        """Write the results that are not on disk yet."""
        return

    @abstractmethod
    def result(self, batches: int) -> Any:
        """Return the result of all the data's `batches`; a store may hold more."""

    def is_done(self, index: int, batch_digest: str) -> bool:
        """Return whether a batch is finished; raise ProfileMismatchError if its data differ."""
        known = self.digests.get(index)
        if known is not None:
            check_batch(index, known, batch_digest)
        return known is not None


def check_batch(index: int, known: str, batch_digest: str) -> None:
    """Raise ProfileMismatchError if a checkpoint's batch was made from other data."""
    if known != batch_digest:
        raise ProfileMismatchError(
            f"The checkpoint was made from other data: batch {index} differs. Choose another "
            "checkpoint folder, or remove this one."
        )


class SumCheckpoint(Checkpoint):
    """A checkpoint of `Totals`, which spends at most a tenth of the time on saving."""

    def __init__(self, store: Store | None) -> None:
        super().__init__(store)
        self._totals = Totals({}, {}, 0)
        self._next_save = time.monotonic()
        if store is None or _SUMS not in store:
            return
        with store.open(_SUMS) as file:
            digests = file.value("digests", dict)
            self.digests = {int(index): value for index, value in digests.items()}
            neurons = file.named("neurons", "n", np.number)
            synapses = file.named("synapses", "s", np.number)
            self._totals = Totals(neurons, synapses, file.value("samples", int, least=0))

    def add(self, index: int, batch_digest: str, result: Totals) -> None:
        self._totals.add(result)
        self.digests[index] = batch_digest
        if time.monotonic() >= self._next_save:
            self.save()

    def save(self) -> None:
        if self._store is None:
            return
        started = time.monotonic()
        header = {
            "digests": {str(index): value for index, value in self.digests.items()},
            "samples": self._totals.samples,
            "neurons": list(self._totals.neurons),
            "synapses": list(self._totals.synapses),
        }
        arrays = {f"n{i}": v for i, v in enumerate(self._totals.neurons.values())}
        arrays |= {f"s{i}": v for i, v in enumerate(self._totals.synapses.values())}
        self._store.save(_SUMS, header, arrays)
        finished = time.monotonic()
        self._next_save = finished + 10 * (finished - started)

    def result(self, batches: int) -> Totals:
        """Return the sums; raise ProfileMismatchError if they have more batches than the data."""
        if len(self.digests) > batches:
            raise ProfileMismatchError(
                f"The checkpoint holds {len(self.digests)} batches; these data have {batches}. "
                "Choose another checkpoint folder, or remove this one."
            )
        return self._totals


class RowCheckpoint(Checkpoint):
    """A checkpoint of `Rows`, with one file for each batch."""

    def __init__(self, layout: EachRow, store: Store | None) -> None:
        super().__init__(store)
        self._layout = layout
        self._rows: dict[int, Rows] = {}
        for key in store.keys() if store is not None else []:  # not a dict
            with store.open(key) as file:  # type: ignore[union-attr]
                self.digests[file.value("index", int, least=0)] = file.value("digest", str)

    def add(self, index: int, batch_digest: str, result: Rows) -> None:
        self.digests[index] = batch_digest
        if self._store is None:
            self._rows[index] = result
            return
        arrays = {"predicted": result.predicted, **to_arrays("synapses", result.synapses)}
        if result.neurons is not None:
            arrays |= to_arrays("neurons", result.neurons)
        key, header = _ROWS.format(index), {"index": index, "digest": batch_digest}
        if not self._store.save(key, header, arrays, replace=False):  # another run was faster
            with self._store.open(key) as file:
                check_batch(index, file.value("digest", str), batch_digest)

    def result(self, batches: int) -> Rows:
        """Return the rows of all samples, in order; memory-mapped if there is a store."""
        if self._store is None:
            return Rows.join([self._rows[index] for index in range(batches)])
        layout, folder = self._layout, self._store.folder
        widths = {"synapses": width(layout.kernels)}
        if layout.operations:
            widths["neurons"] = width(layout.operations)
        matrices = {
            name: RowsOnDisk(folder, name, size, layout.dtype) for name, size in widths.items()
        }
        predicted = []
        with folder_lock(folder):
            for index in range(batches):  # one file in memory at a time
                with self._store.open(_ROWS.format(index)) as file:
                    check_batch(index, file.value("digest", str), self.digests[index])
                    predicted.append(file.array("predicted", np.integer, "samples"))
                    for name, size in widths.items():
                        rows = from_file(name, file, len(predicted[-1]), size, layout.dtype)
                        matrices[name].append(rows)
            joined = {name: matrix.finish() for name, matrix in matrices.items()}
        return Rows(joined["synapses"], joined.get("neurons"), np.concatenate(predicted))
