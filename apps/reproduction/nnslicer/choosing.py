"""Choose which evidence a detector should fuse, on training images only.

Every set of kinds of evidence (from `kinds.EVIDENCE`) defines a detector. Their anomaly scores
are computed once; then all sets are compared by the mean recall over attacks at 5 % false
positives, on training images from which neither the model nor a detector has learned. The best set
of each size is shown. No test images are used.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf.detection import PRESETS
from nnslicer_tf.detection.calibration import threshold_at
from reproduction.nnslicer.adversarial import attacks_on, examples
from reproduction.nnslicer.challenge import load_watched
from reproduction.nnslicer.judging import SLICES, KeptJudge, Scores, together
from reproduction.nnslicer.settings import DEFAULT_RATE, ChoiceSettings
from reproduction.result import ExperimentResult, ExperimentTable, versions

_TEXT = (
    "`among`: slices alone, evidence other than slices, or all of it; for each number of kinds of "
    "evidence, the set with the highest mean recall over the attacks, at 5 % false positives on "
    "the normal images; `low`, `high`: its 95 % interval by the bootstrap over images; `weakest`: "
    "the lowest recall of an attack with 20 examples or more; `gain`: recall beyond that of the "
    "best set without slices, of whatever size, with a 95 % interval by the same resamples."
)
_LEFT_OUT = (
    "`recall`: mean over the attacks, of the preset; `change`: what it changes by without some of "
    "its evidence, with a 95 % interval by the bootstrap over images (`low`, `high`)."
)
_FEW = 20  # fewer examples say little


def choose_evidence(s: ChoiceSettings) -> ExperimentResult:
    """Compare all sets of evidence on training images."""
    # The scores of the normal images, and of each attack's successes.
    watched = load_watched(s)
    im = watched.slicer.im
    images = datasets.load(s.dataset, f"train[{s.skip}:{s.skip + s.images + s.normals}]")
    right = im.logits(images.x).argmax(axis=1) == images.y
    specs, first = attacks_on(s.dataset, s.attacks), slice(0, s.images)
    made = examples(im.model, specs, images.x[first], images.y[first], s.work, rng=s.seed)
    sets = {spec.name: one.x[one.success] for spec, one in made if one.success.sum() > 1}
    judge = KeptJudge(s, watched.slicer, watched.normal)
    normal = judge("normal", images.x[right])
    attacked = {name: judge(name, x) for name, x in sets.items()}
    choice = Choice(normal, attacked, s.resamples, s.seed)
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"train[:{s.train}] to learn from; {right.sum()} of "
        f"train[{s.skip}:{s.skip + s.images + s.normals}] for the false positives",
        "attacked images": f"train[{s.skip}:{s.skip + s.images}]",
        "examples": ", ".join(f"{name} {len(x)}" for name, x in sets.items()),
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
    }
    name = f"{s.model}-{s.dataset}{s.ending}"
    title = "Evidence for a detector, chosen on training images"
    tables = [
        ExperimentTable(name, choice.best(), title, head, _TEXT),
        ExperimentTable(f"{name}-single", choice.single(), f"{title}: alone", head, _TEXT),
        ExperimentTable(f"{name}-without", choice.without(), f"{title}: left out", head, _LEFT_OUT),
    ]
    return ExperimentResult(tables)


class Choice:
    """Sets of evidence, compared by recall.

    Args:
        normal: Scores of the normal images.
        attacked: Attack → scores of its examples.
        resamples: Number of bootstrap resamples of the images for an interval.
        seed: Seed of the resamples.
    """

    def __init__(
        self, normal: Scores, attacked: Mapping[str, Scores], resamples: int, seed: int
    ) -> None:
        self._normal, self._attacked = normal, attacked
        self._kinds = tuple(normal)
        self._counts = {name: len(next(iter(of.values()))) for name, of in attacked.items()}
        self._resamples, self._seed = resamples, seed

    def best(self) -> pd.DataFrame:
        """Return the best set of each size, of slices alone, of the rest, and of everything."""
        groups = {
            "slices": [kind for kind in self._kinds if kind in SLICES],
            "no slices": [kind for kind in self._kinds if kind not in SLICES],
            "everything": self._kinds,
        }
        best = {
            (among, size): max(combinations(kinds, size), key=self._mean)
            for among, kinds in groups.items()
            for size in range(1, len(kinds) + 1)
        }
        others = [chosen for (among, _), chosen in best.items() if among == "no slices"]
        other = max(others, key=self._mean, default=())
        rows = []
        for (among, size), chosen in best.items():
            recalls, resampled = self._recalls(chosen), self._resampled_means(chosen)
            many = {n: r for n, r in recalls.items() if self._counts[n] >= _FEW} or recalls
            weakest = min(many, key=many.__getitem__)
            low, high = np.quantile(resampled, [0.025, 0.975])
            row = {"among": among, "kinds": size, "evidence": " + ".join(chosen)}
            row |= {"recall": self._mean(chosen), "low": low, "high": high}
            row |= {"weakest": weakest, "weakest_recall": many[weakest]}
            if other:
                low, high = np.quantile(resampled - self._resampled_means(other), [0.025, 0.975])
                gain = self._mean(chosen) - self._mean(other)
                row |= {"gain": gain, "gain_low": low, "gain_high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def single(self) -> pd.DataFrame:
        """Return the recall of each kind of evidence alone, by attack."""
        return pd.DataFrame(
            {"evidence": kind, **self._recalls((kind,)), "mean": self._mean((kind,))}
            for kind in self._kinds
        )

    def without(self) -> pd.DataFrame:
        """Return how the recall of presets changes without each evidence, and without slices."""
        rows = []
        for preset, kinds in PRESETS.items():
            if not set(kinds) <= set(self._kinds):
                continue
            slices = tuple(kind for kind in kinds if kind in SLICES)
            whole = self._resampled_means(kinds)
            removed = {kind: (kind,) for kind in kinds} | {"all slices": slices}
            for name, out in removed.items():
                rest = [kind for kind in kinds if kind not in out]
                if not rest or (name == "all slices" and len(slices) == 1):
                    continue
                low, high = np.quantile(self._resampled_means(rest) - whole, [0.025, 0.975])
                recall = self._mean(kinds)
                rows.append((preset, name, recall, self._mean(rest) - recall, low, high))
        columns = ["preset", "left out", "recall", "change", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _resampled_means(self, kinds: Sequence[str]) -> np.ndarray:
        """Return the mean recall of each resample, using the same images for all evidence."""
        seeds = np.random.SeedSequence(self._seed).spawn(self._resamples)
        return np.array([self._mean(kinds, np.random.default_rng(seed)) for seed in seeds])

    def _mean(self, kinds: Sequence[str], rng: np.random.Generator | None = None) -> float:
        return float(np.mean(list(self._recalls(kinds, rng).values())))

    def _recalls(
        self, kinds: Sequence[str], rng: np.random.Generator | None = None
    ) -> dict[str, float]:
        """Return attack → recall, on resampled images if there is a generator."""

        def scores_of(scores: Scores) -> np.ndarray:
            found = together(scores, kinds)
            return found if rng is None else found[rng.integers(len(found), size=len(found))]

        threshold = threshold_at(scores_of(self._normal), DEFAULT_RATE)
        return {
            name: float((scores_of(scores) > threshold).mean())
            for name, scores in self._attacked.items()
        }
