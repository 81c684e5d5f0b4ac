"""Finished searches on disk, so that an interrupted call resumes.

The models are known by their answers to some of the seeds, so that any black box can be
recognised.
"""

import hashlib
import os
import time

import numpy as np

from nnslicer_tf.dflare.deviations import Outcome, pack, unpack
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.engine import Store

PROBES = 8
"""Seeds whose answers identify the models."""

INTERVAL = 15.0
"""Seconds between two writes."""


class Checkpoint:
    """The outcomes so far, by seed, and where they are kept.

    Args:
        folder: The folder, or None to keep them in memory only.
        work: What the results depend on, as of `identity`.

    Raises:
        ProfileMismatchError: if the folder is of other searches.
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
        for header, arrays in map(self._store.load, self._store.keys()):
            self.outcomes.update(zip(header["seeds"], unpack(arrays), strict=True))

    def add(self, index: int, outcome: Outcome) -> None:
        """Keep the outcome of seed `index`; writes what is new every 15 seconds."""
        self.outcomes[index] = outcome
        self._unwritten.append(index)
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the outcomes that are not written yet, if there is a folder."""
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
    """Return what the results depend on: models, seeds, options and random streams."""
    answers = pair.ask(seeds[:PROBES])
    operators = list(pair.domain.operators.values())
    states = repr([stream.bit_generator.state for stream in streams])
    return {
        "seeds": _digest(f"{seeds.shape} {seeds.dtype}".encode(), seeds),
        "models": _digest(answers.original, answers.compressed),
        "operators": _digest(repr(operators).encode()),
        "options": repr(options),
        "rng": _digest(states.encode()),
    }


def _digest(*parts: bytes | np.ndarray) -> str:
    known = hashlib.blake2b(digest_size=16)
    for part in parts:
        known.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return known.hexdigest()
