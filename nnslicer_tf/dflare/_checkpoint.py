"""Finished searches on disk, so that an interrupted call goes on where it was.

The file is a `.npz` without pickle: the outcomes of the finished seeds, and a digest of
everything that their results depend on. The models are known by their answers to some of
the seeds, so that any black box can be recognised.
"""

import hashlib
import os
import time
from pathlib import Path

import numpy as np

from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.dflare.deviations import Outcome, pack, unpack
from nnslicer_tf.dflare.pair import ModelPair
from nnslicer_tf.errors import CorruptFileError, ProfileMismatchError

__all__ = ["Checkpoint", "digest"]

PROBES = 8
"""Seeds whose answers identify the models."""

INTERVAL = 15.0
"""Seconds between two writes."""


class Checkpoint:
    """The outcomes so far, by seed, and where they are kept.

    Args:
        path: the file, or None to keep them in memory only.
        key: the digest of what the results depend on.

    Raises:
        ProfileMismatchError: if the file was made with another digest.
        CorruptFileError: if the file is damaged.
        InvalidArgumentError: if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike | None, key: str) -> None:
        self.path = None if path is None else check_writable(path)
        self.key = key
        self.outcomes: dict[int, Outcome] = {}
        self._written = time.monotonic()
        if self.path is not None and self.path.exists():
            self.outcomes = _read(self.path, key)

    def add(self, index: int, outcome: Outcome) -> None:
        """Keep the outcome of seed `index`; writes the file every 15 seconds."""
        self.outcomes[index] = outcome
        if time.monotonic() - self._written > INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the file, if there is one to write."""
        self._written = time.monotonic()
        if self.path is None or not self.outcomes:
            return
        indices, outcomes = zip(*sorted(self.outcomes.items()), strict=True)
        with atomic_path(self.path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(
                file, key=np.array(self.key), indices=np.array(indices), **pack(outcomes)
            )


def digest(
    pair: ModelPair, seeds: np.ndarray, streams: list[np.random.Generator], options: object
) -> str:
    """Return a digest of models, seeds, random streams and options."""
    answers = pair.ask(seeds[:PROBES])
    known = hashlib.blake2b(digest_size=16)
    operators = list(pair.domain.operators.values())
    known.update(f"{seeds.shape} {seeds.dtype} {options!r} {operators!r}".encode())
    for array in (seeds, answers.original, answers.compressed):
        known.update(np.ascontiguousarray(array).tobytes())
    for stream in streams:
        known.update(repr(stream.bit_generator.state).encode())
    return known.hexdigest()


def _read(path: Path, key: str) -> dict[int, Outcome]:
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = dict(file)
        made_with = str(arrays["key"])
        outcomes = dict(zip(arrays["indices"].tolist(), unpack(arrays), strict=True))
    except Exception as error:
        raise CorruptFileError(
            f"The checkpoint '{path}' is damaged ({error}). Delete it to start again."
        ) from error
    if made_with != key:
        raise ProfileMismatchError(
            f"The checkpoint '{path}' was made with other models, seeds, options or rng. "
            "Repeat the call that made it, or choose another file."
        )
    return outcomes
