"""`Judge`: scores inputs by each kind of evidence, from one fitted detector.

`KeptJudge` keeps the scores in a folder, so that an interrupted comparison can resume.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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

    The detector learns from `normal` inputs; it is kept in the file `path`.
    """

    def __init__(
        self,
        slicer: Slicer,
        normal: np.ndarray,
        seed: int,
        path: Path,
        kinds: Sequence[str] = EVIDENCE,
    ) -> None:
        detector = _ByKinds(slicer, rng=seed, kinds=tuple(kinds))
        if path.exists():
            detector = _ByKinds.load(path, slicer)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            detector.fit(normal).save(path)
        self._detector = detector
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

    It learns from `normal` inputs when something is judged for the first time.
    """

    def __init__(
        self, s: EvidenceSettings | ChoiceSettings, slicer: Slicer, normal: np.ndarray
    ) -> None:
        identity = {"model": slicer.im.fingerprint}
        identity |= s.values("dataset", "train", "theta", "seed") | {"evidence": chosen_kinds(s)}
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        folder = s.work / "judges" / f"{s.model}-{digest}"
        self._store = Store(folder, identity, "scores of evidence")
        path, kinds = folder.with_suffix(".npz"), chosen_kinds(s)
        self._judge = cache(lambda: Judge(slicer, normal, s.seed, path, kinds))

    def __call__(self, name: str, x: np.ndarray) -> Scores:
        """Return kind → anomaly scores (N,)."""
        key = f"{name} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:12]}"
        if key not in self._store:
            self._store.save(key, {}, self._judge()(x))
            print(f"{name}: {len(x)} images judged", flush=True)
        return self._store.load(key)[1]


def together(scores: Scores, kinds: Sequence[str]) -> np.ndarray:
    """Return the joint scores of kinds of evidence, (N,)."""
    return np.sum([scores[name] for name in kinds], axis=0)
