"""Finished searches on disk, so that an interrupted call resumes.

Models are identified by their content: the bytes of a file, or architecture and weights. A
function, whose content cannot be read, is identified by its outputs for all seeds; a change that
does not affect these goes unnoticed.
"""

import os
import time

import numpy as np

from nnslicer_tf._files import digest
from nnslicer_tf.dflare._described import described
from nnslicer_tf.dflare.deviations import Outcome, pack, unpack
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.engine import Store

INTERVAL = 15.0
"""Seconds between two writes."""


class Checkpoint:
    """The outcomes so far, by seed, and where they are kept.

    Args:
        folder: The folder, or None to keep them in memory only.
        work: What the results depend on, from `identity`.

    Raises:
        ProfileMismatchError: if the folder belongs to other searches.
        CorruptFileError: if a file in it is damaged.
        InvalidArgumentError: if nothing can be written there.
    """

    def __init__(self, folder: str | os.PathLike | None, work: dict[str, str]) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._store = None if folder is None else Store(folder, work, "checkpoint of searches")
        self._unwritten: list[int] = []
        self._written = time.monotonic()
        if self._store is None:
            return
        keys = self._store.keys()
        for key in keys:
            with self._store.open(key) as file:
                self.outcomes.update(zip(file.value("seeds", list), unpack(file), strict=True))

    def add(self, index: int, outcome: Outcome) -> None:
        """Keep the outcome of seed `index`; new outcomes are written every 15 seconds."""
        self.outcomes[index] = outcome
        self._unwritten.append(index)
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the outcomes not yet written, if there is a folder."""
        self._written = time.monotonic()
        if self._store is None or not self._unwritten:
            return
        arrays = pack([self.outcomes[index] for index in self._unwritten])
        key = f"seed{self._unwritten[0]:08d}"
        self._store.save(key, {"seeds": self._unwritten}, arrays)
        self._unwritten = []


def identity(
    pair: ModelPair, seeds: np.ndarray, streams: list[np.random.Generator], options: object
) -> dict[str, str]:
    """Return what the results depend on: models, their inputs, seeds, options, random streams."""
    states = repr([stream.bit_generator.state for stream in streams])
    return {
        "seeds": digest([f"{seeds.shape} {seeds.dtype}".encode(), seeds]),
        **pair.identity(seeds),
        "domain": described(pair.domain),
        "options": described(options),
        "rng": digest([states.encode()]),
    }
