"""`Judge`: scores inputs by each kind of evidence, from one fitted detector.

`KeptJudge` keeps the scores in a folder, so that an interrupted comparison can resume.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.detection import Vote
from nnslicer_tf.engine import Store
from nnslicer_tf.slicing import Slicer
from reproduction.nnslicer.kinds import EVIDENCE, EvidenceDetector
from reproduction.nnslicer.settings import ChoiceSettings, EvidenceSettings

SLICES = tuple(name for name in EVIDENCE if "slice" in name)
"""The kinds of evidence that are computed from slices."""

Scores = Mapping[str, np.ndarray]
"""Kind of evidence → scores (N,)."""


@dataclass(eq=False, repr=False)
class _ByKinds(EvidenceDetector):
    """A detector that uses many kinds of evidence."""

    kinds: tuple[str, ...] = EVIDENCE

    def votes(self) -> list[Vote]:
        """Return the votes of its kinds."""
        return [vote for kind in self.kinds for vote in self.votes_of(kind)]


class Judge:
    """Computes the surprise (-log p, or a sum of them) of each kind of evidence on inputs.

    Args:
        slicer: The watched model's slicer.
        normal: Normal inputs to learn from.
        seed: Seed of the detector.
        path: File in which to keep the fitted detector; None: it is not kept.
        kinds: The kinds of evidence.
    """

    def __init__(
        self,
        slicer: Slicer,
        normal: np.ndarray,
        seed: int,
        path: str | os.PathLike | None = None,
        kinds: Sequence[str] = EVIDENCE,
    ) -> None:
        detector = _ByKinds(slicer, rng=seed, kinds=tuple(kinds))
        self._detector = _fitted(detector, normal, None if path is None else Path(path))
        self._kinds = {k: [vote.name for vote in detector.votes_of(k)] for k in kinds}

    def __call__(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return kind → anomaly scores (N,)."""
        detector = self._detector
        evidence = detector.evidence(detector.im.check(x))
        votes = {vote.name: vote for vote in detector.votes_}
        return {
            kind: detector.fuse(evidence, [votes[name] for name in names])
            for kind, names in self._kinds.items()
        }


def chosen_kinds(s: EvidenceSettings | ChoiceSettings) -> tuple[str, ...]:
    """Return the kinds of evidence that settings name, in order; by default all.

    Raises:
        InvalidArgumentError: for an unknown kind.
    """
    for kind in s.kind or ():
        check_name("evidence", kind, EVIDENCE)
    return tuple(kind for kind in EVIDENCE if not s.kind or kind in s.kind)


class KeptJudge:
    """The judge for given settings, with scores cached in their working folder by input content.

    Args:
        s: The settings.
        slicer: The watched model's slicer.
        normal: Normal inputs to learn from, when something is judged for the first time.
    """

    def __init__(
        self, s: EvidenceSettings | ChoiceSettings, slicer: Slicer, normal: np.ndarray
    ) -> None:
        identity = {
            "model": slicer.im.fingerprint,
            "dataset": s.dataset,
            "train": s.train,
            "theta": s.theta,
            "seed": s.seed,
            "evidence": chosen_kinds(s),
        }
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        folder = s.work / "judges" / f"{s.model}-{digest}"
        self._store = Store(folder, identity, "scores of evidence")
        self._given = slicer, normal, s.seed, folder.with_suffix(".npz"), chosen_kinds(s)
        self._judge: Judge | None = None

    def __call__(self, name: str, x: np.ndarray) -> Scores:
        """Return kind → anomaly scores (N,)."""
        key = f"{name} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:12]}"
        if key not in self._store:
            self._judge = self._judge or Judge(*self._given)
            self._store.save(key, {}, self._judge(x))
            print(f"{name}: {len(x)} images judged", flush=True)
        return self._store.load(key)[1]


def _fitted(detector: _ByKinds, normal: np.ndarray, path: Path | None) -> _ByKinds:
    if path is not None and path.exists():
        return _ByKinds.load(path, detector.slicer)
    detector.fit(normal)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        detector.save(path)
    return detector


def together(scores: Scores, kinds: Sequence[str]) -> np.ndarray:
    """Return the joint scores of kinds of evidence, (N,)."""
    return np.sum([scores[name] for name in kinds], axis=0)
