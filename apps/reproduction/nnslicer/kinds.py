"""All kinds of evidence, also those that are in no preset, and scores of inputs by each of them.

`EVIDENCE` has the kinds in the order in which the tables name them.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.detection import Evidence, SliceDetector, Vote
from nnslicer_tf.detection.images import VIEWS, array_module, margin, operand
from nnslicer_tf.detection.scorers import ClassDistance, RidgeMargin
from nnslicer_tf.detection.slice_detector import MAX_DISTANCE_SYNAPSES, MAX_JOINT_SYNAPSES
from nnslicer_tf.engine import Store
from nnslicer_tf.slicing import Criterion, Slicer
from reproduction.nnslicer.settings import ChoiceSettings, EvidenceSettings

# Samples whose distances are computed at once.
_ROWS = 1024
# Limits the scaling of features that hardly vary among the normal inputs.
MIN_SCALE = 1e-2
# Of the layers at several depths, those whose slices are scaled: the deepest.
_SCALED_LAYERS = slice(-2, None)


class ScaledRidgeMargin(RidgeMargin):
    """`RidgeMargin` on features standardised by their standard deviations among normal inputs.

    For features of several layers: a synapse's contribution is at most the number of positions at
    which its layer applies it, so layers with many positions would otherwise dominate.
    """

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        scale = np.maximum(vectors.std(axis=0, dtype=np.float64), MIN_SCALE)
        super().fit(vectors / scale, predicted, classes)
        self.weights /= scale[:, None]
        return self


class RidgeFall(RidgeMargin):
    """The drop, from input to view, of a ridge regression's margin for the model's prediction.

    Each vector concatenates those of the input and of its view; the regression learns from the
    first. The score is its `RidgeMargin` on the view minus that on the input.
    """

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        return super().fit(vectors[:, : vectors.shape[1] // 2], predicted, classes)

    def score(self, vectors: Any, predicted: Any) -> Any:
        """Return the differences; see `Scorer.score`."""
        half = vectors.shape[1] // 2
        of_view = super().score(vectors[:, half:], predicted)
        return of_view - super().score(vectors[:, :half], predicted)


class MembershipRatio(ClassDistance):
    """Log-likelihood ratio of the nearest other class and the predicted one.

    It is the `ClassDistance` of the predicted class minus the smallest of the other classes: twice
    the logarithm of a ratio of normal densities.
    """

    def score(self, vectors: Any, predicted: Any) -> Any:
        """Return the differences; see `Scorer.score`."""
        xp = array_module(vectors)
        middle = self.means.mean(axis=0)
        means = operand((self.means - middle) @ self.whitening, vectors)
        centre, whitening = (operand(one, vectors) for one in (middle, self.whitening))

        def distances(rows: Any) -> Any:
            white = xp.matmul(rows - centre, whitening)
            return xp.stack([xp.sum(xp.square(white - mean), axis=1) for mean in means], axis=1)

        if xp is not np:
            return margin(-distances(vectors), predicted)
        starts = range(0, len(vectors), _ROWS)
        parts = [distances(vectors[i : i + _ROWS]) for i in starts]
        return runner_up_margin(-np.concatenate(parts), predicted)


class EvidenceDetector(SliceDetector):
    """A `SliceDetector` with all kinds of evidence, also those that are in no preset."""

    differentiable = False  # the slices for the two best outputs take no tensors

    def votes(self) -> list[Vote]:
        """Return the votes of all kinds."""
        return [vote for kind in EVIDENCE for vote in self.votes_of(kind)]

    def votes_of(self, kind: str) -> list[Vote]:
        """Return the votes of a kind; see `SliceDetector.votes_of`."""
        names, ridge = self.depths(), partial(RidgeMargin, self.alpha)
        most = min(self.max_synapses, MAX_JOINT_SYNAPSES)
        if kind == "local slices of views":
            last, most = self.convolutions[-1], MAX_DISTANCE_SYNAPSES
            name, of = f"plain {last}", partial(self.slice_vote, kernels=[last], most=most)
            votes = [of(name, scorer=ridge(), two_sided=True, local=True)]
            return votes + [of(f"{name}, {v}", scorer=ridge(), view=v) for v in VIEWS]
        if kind == "membership by local slices":
            most = MAX_DISTANCE_SYNAPSES // len(names)
            return [self.slice_vote("membership", names, MembershipRatio(), most, local=True)]
        if kind == "scaled slices of views":
            names, most = names[_SCALED_LAYERS], MAX_JOINT_SYNAPSES
            scorer = partial(ScaledRidgeMargin, self.alpha)
            of = partial(self.slice_vote, kernels=names, most=most, group="scaled")
            votes = [of("scaled, image", scorer=scorer(), two_sided=True, local=True)]
            return votes + [of(f"scaled, {v}", scorer=scorer(), view=v) for v in VIEWS]
        sizes = [self.im.kernels[name].size for name in names]
        if kind == "falls of joint slices":

            def pairs(evidence: Evidence, columns: np.ndarray, view: str) -> Any:
                """Return the local slices of the inputs, then those of a kind of view."""
                plain = evidence.slices(names, columns, local=True)
                of_views = evidence.slices(names, columns, view=view)
                return array_module(plain).concatenate([plain, of_views], axis=1)

            return [
                Vote(
                    f"fall, {view}",
                    partial(pairs, view=view),
                    RidgeFall(self.alpha),
                    sizes=sizes,
                    most=most,
                )
                for view in VIEWS
            ]
        if kind == "slices for the two best outputs":
            read = partial(_ratios, names)
            return [Vote("two best outputs", read, ClassDistance(), sizes=sizes, most=most)]
        return super().votes_of(kind)


def _ratios(names: list[str], evidence: Evidence, columns: np.ndarray) -> np.ndarray:
    """Return the cosine of each kernel's slices for the two largest outputs, (N, 2 · kernels).

    With it is the logarithm of the ratio of their sizes (sums of absolute values).
    """
    best = evidence.slices(names, columns)
    others = evidence.logits.copy()
    others[np.arange(len(evidence)), evidence.predicted] = -np.inf
    labels = others.argmax(axis=1)
    second = np.empty((len(evidence), len(columns)), np.float32)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        criterion = Criterion([int(label)])
        second[rows] = evidence.rows(rows).contributions(criterion, names, columns)
    ends = np.cumsum([evidence.im.kernels[name].size for name in names])
    blocks = np.searchsorted(ends, columns, side="right")
    features = []
    for block in np.unique(blocks):
        a, b = best[:, blocks == block], second[:, blocks == block]
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        totals = [np.abs(one).sum(axis=1) for one in (a, b)]
        cosines = (a * b).sum(axis=1) / (lengths + 1e-9)
        features += [cosines, np.log((totals[0] + 1) / (totals[1] + 1))]
    return np.stack(features, axis=1)


EVIDENCE = (
    *("slice of the prediction", "local slices", "logit margin", "views", "texture"),
    *("spectrum", "local slices of views", "local slices, early", "joint slices of views"),
    *("falls of joint slices", "membership by local slices"),
    *("slices for the two best outputs", "residuals", "scaled slices of views"),
)
"""The kinds of evidence."""


SLICES = tuple(name for name in EVIDENCE if "slice" in name)
"""The kinds of evidence that are computed from slices."""

Scores = Mapping[str, np.ndarray]
"""Kind of evidence → scores (N,)."""


class Judge:
    """Computes the surprise (-log p, or a sum of them) of each kind of evidence on inputs.

    Scores are kept in the settings' working folder, by the inputs' content, and so is the detector,
    which learns from `normal` inputs when something is judged for the first time.
    """

    def __init__(
        self, s: EvidenceSettings | ChoiceSettings, slicer: Slicer, normal: np.ndarray
    ) -> None:
        self._slicer, self._normal, self._seed = slicer, normal, s.seed
        identity = {"model": slicer.im.fingerprint, "contribution": slicer.contribution}
        identity |= s.values("dataset", "train", "theta", "seed") | {"evidence": EVIDENCE}
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
        self._folder = s.work / "judges" / f"{s.model}-{digest}"
        self._store = Store(self._folder, identity, "scores of evidence")

    @cached_property
    def _detector(self) -> EvidenceDetector:
        path = self._folder.with_suffix(".npz")
        if path.exists():
            return EvidenceDetector.load(path, self._slicer)
        detector = EvidenceDetector(self._slicer, rng=self._seed).fit(self._normal)
        detector.save(path)
        return detector

    def __call__(self, name: str, x: np.ndarray) -> Scores:
        """Return kind → anomaly scores (N,)."""
        key = f"{name} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:12]}"
        if key not in self._store:
            detector = self._detector
            evidence = detector.evidence(detector.im.check(x))
            votes = {vote.name: vote for vote in detector.votes_}
            of_kinds = {k: [votes[v.name] for v in detector.votes_of(k)] for k in EVIDENCE}
            scores = {kind: detector.fuse(evidence, some) for kind, some in of_kinds.items()}
            self._store.save(key, {}, scores)
            print(f"{name}: {len(x)} images judged", flush=True)
        return self._store.load(key)[1]


def together(scores: Scores, kinds: Sequence[str]) -> np.ndarray:
    """Return the joint scores of kinds of evidence, (N,)."""
    return np.sum([scores[name] for name in kinds], axis=0)
