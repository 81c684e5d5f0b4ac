"""`Judge`: what each kind of evidence says of inputs, as p-values, from one fitted detector."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnslicer_tf.detection import EVIDENCE, SliceDetector, Vote
from nnslicer_tf.detection.calibration import fuse, p_values, two_sided
from nnslicer_tf.detection.presets import votes_of
from nnslicer_tf.experiments.nnslicer.settings import ChallengeSettings, ChoiceSettings
from nnslicer_tf.slicing import Slicer

SLICES = tuple(name for name in EVIDENCE if "slice" in name)
"""The kinds of evidence that are read of slices."""

Scores = Mapping[str, np.ndarray]
"""Kind of evidence → scores (N,)."""


@dataclass(eq=False, repr=False)
class _Everything(SliceDetector):
    """A detector by all kinds of evidence."""

    def votes(self) -> list[Vote]:
        """Return the votes of all kinds."""
        return votes_of(tuple(EVIDENCE), self.im, self.kernels, self.max_synapses, self.alpha)


class Judge:
    """The surprise (-log p, or a sum of them) that each kind of evidence has at inputs.

    Args:
        slicer: The watched model's.
        normal: Normal inputs to learn from.
        seed: Of the detector.
        path: File that keeps the fitted detector; None: it is not kept.
    """

    def __init__(
        self,
        slicer: Slicer,
        normal: np.ndarray,
        seed: int,
        path: str | os.PathLike | None = None,
    ) -> None:
        self._detector = _fitted(slicer, normal, seed, None if path is None else Path(path))
        given = (slicer.im, None, self._detector.max_synapses, self._detector.alpha)
        self._kinds = {kind: [v.name for v in votes_of([kind], *given)] for kind in EVIDENCE}

    def __call__(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return kind → anomaly scores (N,)."""
        detector = self._detector
        evidence = detector.evidence(detector.im.check(x))
        groups: dict[str, dict[str, list[np.ndarray]]] = {kind: {} for kind in self._kinds}
        for vote in detector.votes_:
            p = two_sided if vote.two_sided else p_values
            found = p(vote.score(evidence), detector.reference_[vote.name])
            kind = next(kind for kind, names in self._kinds.items() if vote.name in names)
            groups[kind].setdefault(vote.group or vote.name, []).append(found)
        return {kind: fuse(list(of.values())) for kind, of in groups.items()}


def judge_path(s: ChallengeSettings | ChoiceSettings) -> Path:
    """Return where the fitted detector of a judge is kept."""
    what = [s.dataset, s.train, s.theta, s.seed, list(EVIDENCE)]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    return s.work / "judges" / f"{s.model}-{digest}.npz"


def _fitted(slicer: Slicer, normal: np.ndarray, seed: int, path: Path | None) -> SliceDetector:
    if path is not None and path.exists():
        return _Everything.load(path, slicer)
    detector = _Everything(slicer, rng=seed).fit(normal)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        detector.save(path)
    return detector


def together(scores: Scores, kinds: Sequence[str]) -> np.ndarray:
    """Return the joint scores of kinds of evidence, (N,)."""
    return np.sum([scores[name] for name in kinds], axis=0)
