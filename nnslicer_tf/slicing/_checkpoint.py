"""Collection of the results of batches, with checkpoints from which a run resumes.

A checkpoint stores a digest of each finished batch's data, so that a run with different data is
rejected and results are never mixed.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnslicer_tf._files import digest, folder_lock
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import ProfileMismatchError
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import EachRow, Rows, Totals
from nnslicer_tf.slicing._rows import RowsOnDisk, from_file, to_arrays, width

_SUMS = "sums"


def digest_of_means(means: Mapping[str, np.ndarray]) -> str:
    """Return a hash of a profile's means."""
    return digest(part for name, mean in means.items() for part in (name.encode(), mean))


def described_start(plan: Plan) -> dict[str, Any]:
    """Return the start of a walk as values that JSON can represent."""
    neurons = {name: indices.tolist() for name, indices in plan.start.neurons.items()}
    return {
        "predicted": plan.start.predicted,
        "neurons": neurons,
        "expanded": [node.name for node in plan.expanded],
    }


class Collector(ABC):
    """The results so far, with digests of the finished batches' data."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    @abstractmethod
    def add(self, index: int, batch_digest: str, result: Any) -> None:
        """Add the result of a batch."""

    @abstractmethod
    def save(self) -> None:
        """Write results that have not been written yet."""

    @abstractmethod
    def result(self, batches: int) -> Any:
        """Return the result of all batches.

        Args:
            batches: Number of batches in the data; a checkpoint may hold more.
        """

    def is_done(self, index: int, batch_digest: str) -> bool:
        """Return whether a batch is finished.

        Raises:
            ProfileMismatchError: if it was finished with different data.
        """
        known = self.digests.get(index)
        if known is not None and known != batch_digest:
            raise ProfileMismatchError(
                f"The checkpoint was made from other data: batch {index} differs. Choose another "
                "checkpoint folder, or remove this one."
            )
        return known is not None


class SumCollector(Collector):
    """A collector that adds up `Totals` and spends at most a tenth of the time on saving.

    Args:
        store: The checkpoint, if there is one.
    """

    def __init__(self, store: Store | None) -> None:
        super().__init__()
        self._totals = Totals({}, {}, 0)
        self._store = store
        self._next_save = time.monotonic()
        if store is not None and _SUMS in store:
            self._load(store)

    def add(self, index: int, batch_digest: str, result: Totals) -> None:
        """Add the result of a batch."""
        self._totals.add(result)
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
        """Return the sums.

        Raises:
            ProfileMismatchError: if they include batches that the data does not have.
        """
        if len(self.digests) > batches:
            raise ProfileMismatchError(
                f"The checkpoint holds {len(self.digests)} batches; these data have {batches}. "
                "Choose another checkpoint folder, or remove this one."
            )
        return self._totals

    def _load(self, store: Store) -> None:
        with store.open(_SUMS) as file:
            digests = file.value("digests", dict)
            self.digests = {int(index): value for index, value in digests.items()}
            neurons, synapses = (
                {n: file.array(f"{what[0]}{i}", np.number) for i, n in enumerate(file.names(what))}
                for what in ("neurons", "synapses")
            )
            self._totals = Totals(neurons, synapses, file.value("samples", int, least=0))


class RowCollector(Collector):
    """A collector that keeps `Rows`, in memory or in one file for each batch.

    Args:
        layout: The collector of the batches' rows.
        store: The store that keeps the rows; None keeps them in memory.
    """

    def __init__(self, layout: EachRow, store: Store | None) -> None:
        super().__init__()
        self._layout = layout
        self._store = store
        self._rows: dict[int, Rows] = {}
        keys = [] if store is None else store.keys()
        for key in keys:
            with store.open(key) as file:  # type: ignore[union-attr]  # there are keys
                self.digests[file.value("index", int, least=0)] = file.value("digest", str)

    def add(self, index: int, batch_digest: str, result: Rows) -> None:
        """Keep the result of a batch."""
        self.digests[index] = batch_digest
        if self._store is None:
            self._rows[index] = result
            return
        arrays = {"predicted": result.predicted, **to_arrays("synapses", result.synapses)}
        if result.neurons is not None:
            arrays |= to_arrays("neurons", result.neurons)
        self._store.save(_row_key(index), {"index": index, "digest": batch_digest}, arrays)

    def save(self) -> None:
        """Do nothing: every batch is written when it is added."""

    def result(self, batches: int) -> Rows:
        """Return the rows of all samples, in order; memory-mapped if there is a store."""
        if self._store is None:
            return Rows.join([self._rows[index] for index in range(batches)])
        return self._join_files(self._store, batches)

    def _join_files(self, store: Store, batches: int) -> Rows:
        """Join the files into memory-mapped matrices, with one file in memory at a time."""
        layout, folder = self._layout, store.folder
        widths = {"synapses": width(layout.kernels)}
        if layout.operations:
            widths["neurons"] = width(layout.operations)
        matrices = {
            name: RowsOnDisk(folder, name, size, layout.dtype) for name, size in widths.items()
        }
        predicted = []
        with folder_lock(folder):
            for index in range(batches):
                with store.open(_row_key(index)) as file:
                    predicted.append(file.array("predicted", np.integer, "samples"))
                    for name, size in widths.items():
                        matrices[name].append(
                            from_file(name, file, len(predicted[-1]), size, layout.dtype)
                        )
            joined = {name: matrix.finish() for name, matrix in matrices.items()}
        return Rows(joined["synapses"], joined.get("neurons"), np.concatenate(predicted))


def _row_key(index: int) -> str:
    return f"rows-{index:08d}"
