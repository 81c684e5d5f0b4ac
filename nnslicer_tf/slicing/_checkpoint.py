"""Collection of the results of batches, with checkpoints from which a run resumes.

A checkpoint stores a digest of each finished batch's data, so that a run with different data is
rejected and results are never mixed.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnslicer_tf._digests import digest
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import ProfileMismatchError
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import EachRow, Rows, Totals
from nnslicer_tf.slicing._rows import RowsOnDisk, to_arrays, width

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
        header, arrays = store.load(_SUMS)
        self.digests = {int(index): value for index, value in header["digests"].items()}
        neurons = {name: arrays[f"n{i}"] for i, name in enumerate(header["neurons"])}
        synapses = {name: arrays[f"s{i}"] for i, name in enumerate(header["synapses"])}
        self._totals = Totals(neurons, synapses, header["samples"])


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
        if store is not None:
            for header in map(store.header, store.keys()):
                self.digests[header["index"]] = header["digest"]

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
        synapses = RowsOnDisk(folder, "synapses", width(layout.kernels), layout.dtype)
        neurons = RowsOnDisk(folder, "neurons", width(layout.operations), layout.dtype)
        predicted = []
        for index in range(batches):
            _, arrays = store.load(_row_key(index))
            predicted.append(arrays["predicted"])
            synapses.append(arrays)
            if self._layout.operations:
                neurons.append(arrays)
        return Rows(
            synapses.finish(),
            neurons.finish() if self._layout.operations else None,
            np.concatenate(predicted),
        )


def _row_key(index: int) -> str:
    return f"rows-{index:08d}"
