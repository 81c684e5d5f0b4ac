"""Choose which evidence a detector should fuse, on training images only.

Every set of kinds of evidence (from `kinds.EVIDENCE`) defines a detector. Their anomaly scores
are computed once; then all sets are compared by the mean recall over attacks at 5 % false
positives, on training images from which neither the model nor a detector has learned. The best set
of each size is shown. No test images are used.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    first = slice(0, s.images)
    made = examples(
        im.model,
        attacks_on(s.dataset, s.attacks),
        images.x[first],
        images.y[first],
        s.work,
        rng=s.seed,
    )
    sets = {spec.name: one.x[one.success] for spec, one in made if one.success.sum() > 1}
    judge = KeptJudge(s, watched.slicer, watched.normal)
    normal, attacked = (
        judge("normal", images.x[right]),
        {name: judge(name, x) for name, x in sets.items()},
    )
    table = Choice(normal, attacked, s.resamples, s.seed)
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"train[:{s.train}] to learn from; {len(next(iter(normal.values())))} of "
        f"train[{s.skip}:{s.skip + s.images + s.normals}] for the false positives",
        "attacked images": f"train[{s.skip}:{s.skip + s.images}]",
        "examples": ", ".join(
            f"{name} {len(next(iter(of.values())))}" for name, of in attacked.items()
        ),
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
    }
    name = f"{s.model}-{s.dataset}{s.ending}"
    title = "Evidence for a detector, chosen on training images"
    return ExperimentResult(
        [
            ExperimentTable(name, table.best(), title, head, _TEXT),
            ExperimentTable(f"{name}-single", table.single(), f"{title}: alone", head, _TEXT),
            ExperimentTable(
                f"{name}-without", table.without(), f"{title}: left out", head, _LEFT_OUT
            ),
        ]
    )


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
        return pd.DataFrame(
            {"among": among, "kinds": size, **self._row(chosen), **self._gain(chosen, other)}
            for (among, size), chosen in best.items()
        )

    def single(self) -> pd.DataFrame:
        """Return the recall of each kind of evidence alone, by attack."""
        rows = [
            {"evidence": kind, **dict(self._recalls((kind,)))} | {"mean": self._mean((kind,))}
            for kind in self._kinds
        ]
        return pd.DataFrame(rows)

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

    def _row(self, kinds: Sequence[str]) -> dict[str, object]:
        recalls = dict(self._recalls(kinds))
        many = {name: r for name, r in recalls.items() if self._count(name) >= _FEW} or recalls
        weakest = min(many, key=lambda name: many[name])
        low, high = np.quantile(self._resampled_means(kinds), [0.025, 0.975])
        return {
            "evidence": " + ".join(kinds),
            "recall": self._mean(kinds),
            "low": low,
            "high": high,
            "weakest": weakest,
            "weakest_recall": many[weakest],
        }

    def _gain(self, kinds: Sequence[str], other: Sequence[str]) -> dict[str, float]:
        """Return the gain of one set over another; empty if there is no other."""
        if not other:
            return {}
        gains = self._resampled_means(kinds) - self._resampled_means(other)
        low, high = np.quantile(gains, [0.025, 0.975])
        gain = self._mean(kinds) - self._mean(other)
        return {"gain": gain, "gain_low": low, "gain_high": high}

    def _count(self, attack: str) -> int:
        return len(next(iter(self._attacked[attack].values())))

    def _mean(self, kinds: Sequence[str], rng: np.random.Generator | None = None) -> float:
        return float(np.mean([recall for _, recall in self._recalls(kinds, rng)]))

    def _recalls(
        self, kinds: Sequence[str], rng: np.random.Generator | None = None
    ) -> Iterator[tuple[str, float]]:
        """Yield each attack and its recall, on resampled images if there is a generator."""
        threshold = threshold_at(_resampled(together(self._normal, kinds), rng), DEFAULT_RATE)
        for name, scores in self._attacked.items():
            found = _resampled(together(scores, kinds), rng) > threshold
            yield name, float(found.mean())


def _resampled(scores: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    return scores if rng is None else scores[rng.integers(len(scores), size=len(scores))]
