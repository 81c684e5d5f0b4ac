"""Which evidence detects what: attacks, adaptive attacks, out-of-distribution inputs, errors.

Every kind of evidence, pairs of them, and the detectors without each of them are compared against
normal test images on which nothing was chosen. Inputs from elsewhere are near or far as in OpenOOD
(Yang et al., "OpenOOD: Benchmarking generalized out-of-distribution detection", NeurIPS 2022);
plain errors are misclassified normal images, with the softmax as baseline (Weiss and Tonella,
"Simple techniques work surprisingly well for neural network test prioritization", ISSTA 2022).

`choose_evidence` compares all sets of kinds of evidence by their mean recall at 5 % false
positives, on training images from which neither the model nor a detector has learned.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import ndimage
from scipy.special import log_softmax

from nnslicer_tf import datasets
from nnslicer_tf.detection import PRESETS
from nnslicer_tf.detection.calibration import threshold_at
from reproduction.nnslicer.challenge import load_watched, run_challenges
from reproduction.nnslicer.detection import attacks_on, examples
from reproduction.nnslicer.kinds import EVIDENCE, SLICES, Judge, Scores, together
from reproduction.nnslicer.settings import (
    DEFAULT_RATE,
    ChoiceSettings,
    EvidenceSettings,
    split_names,
)
from reproduction.plots import plot_numbers
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note, versions
from reproduction.samples import first

SOFTMAX = "softmax"


def compare_evidence(s: EvidenceSettings) -> ExperimentResult:
    """Compare evidences: against attacks, inputs from elsewhere, and plain errors."""
    watched = load_watched(s)
    im = watched.slicer.im
    images = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.errors}]")
    right = im.logits(images.x).argmax(axis=1) == images.y
    normal = images.x[: s.normals][right[: s.normals]]

    # The sets of inputs to compare with the normal ones, by groups; sets of one are left out.
    attacked = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.attacked}]")
    specs = attacks_on(s.dataset, s.known)
    made = examples(im.model, specs, attacked, s.work, rng=s.seed)
    near, far = _elsewhere(s, normal)
    groups = {
        "attacks that know nothing": {spec.name: one.x[one.success] for spec, one in made},
        "attacks that know the detector": {  # the nearest inputs that evade it
            f"{name}, {norm}": outcome.examples[np.isfinite(outcome.pair)]
            for name, result in run_challenges(s, watched, split_names(s.methods))
            for norm, outcome in result.norms.items()
        },
        "near": near,
        "far": far,
        "plain errors": {"errors": images.x[~right]},
    }
    for group, members in groups.items():
        groups[group] = {name: x for name, x in members.items() if len(x) >= 2}
    groups = {group: members for group, members in groups.items() if members}

    # The scores of all kinds of evidence, and of the softmax.
    judge = Judge(s, watched.slicer, watched.normal)

    def judged(name: str, x: np.ndarray) -> Scores:
        return {**judge(name, x), SOFTMAX: -log_softmax(im.logits(x), axis=1).max(axis=1)}

    of_normal = judged("normal", normal)
    scores = {group: {n: judged(n, x) for n, x in of.items()} for group, of in groups.items()}
    detectors = {name: of for name, of in PRESETS.items() if set(of) <= set(EVIDENCE)}
    detectors["everything"] = EVIDENCE
    comparison = Comparison(of_normal, scores, s.resamples, s.seed)
    single = {name: (name,) for name in (*EVIDENCE, SOFTMAX)} | detectors
    pairs = {f"{a} + {b}": (a, b) for a, b in combinations(EVIDENCE, 2)}
    sizes = {name: ", ".join(f"{n} {len(x)}" for n, x in of.items()) for name, of in groups.items()}
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"{len(watched.normal)} of train; {len(normal)} test images to "
        f"compare with, of test[{s.skip}:{s.skip + s.normals}], which the model is right on",
        "sets": "; ".join(f"{group}: {names}" for group, names in sizes.items()),
        **{"resamples": s.resamples, "seed": s.seed},
        "libraries": versions("scikit-learn", "foolbox"),
    }
    grouped, name = comparison.by_group(single), f"{s.model}-{s.dataset}{s.ending}"
    tables = []
    for ending, what, table in (
        ("", "", grouped),
        ("-sets", ": every set", comparison.by_set(single)),
        ("-pairs", ": pairs", comparison.by_group(pairs)),
        ("-without", ": left out", comparison.without(detectors)),
    ):
        title = f"What each evidence tells{what}"
        tables.append(ExperimentTable(f"{name}{ending}", table, title, head, note("evidence")))
    return ExperimentResult(tables, [ExperimentFigure(name, plot(grouped))])


@dataclass(frozen=True)
class Comparison:
    """Areas under ROC curves with bootstrap intervals, for equal resamples of all evidence."""

    normal: Scores  # of the normal images
    scores: Mapping[str, Mapping[str, Scores]]  # group → set → scores
    resamples: int
    seed: int

    def by_group(self, kinds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return a row for each group and kind of evidence, averaged over the group's sets."""
        return pd.DataFrame(
            {"against": group, "evidence": kind, **self._figures(members.values(), parts)}
            for group, members in self.scores.items()
            for kind, parts in kinds.items()
        )

    def by_set(self, kinds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return a row for each set and kind of evidence."""
        return pd.DataFrame(
            {"against": group, "set": name, "evidence": kind, **self._figures([of], parts)}
            for group, members in self.scores.items()
            for name, of in members.items()
            for kind, parts in kinds.items()
        )

    def without(self, detectors: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return how each detector's area changes without one kind of evidence, or all slices."""
        rows = []
        for group, members in self.scores.items():
            for detector, parts in detectors.items():
                whole = self._areas(members.values(), parts)
                slices = [name for name in parts if name in SLICES]
                removed = {name: (name,) for name in parts} | {"all slices": tuple(slices)}
                for name, out in removed.items():
                    rest = [part for part in parts if part not in out]
                    if not rest or not out:
                        continue
                    change = self._areas(members.values(), rest) - whole
                    low, high = np.quantile(change[1:], [0.025, 0.975])
                    rows.append((group, detector, name, whole[0], change[0], low, high))
        columns = ["against", "detector", "left out", "auroc", "change", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _figures(self, members: Collection[Scores], parts: Sequence[str]) -> dict[str, float]:
        areas = self._areas(members, parts)
        low, high = np.quantile(areas[1:], [0.025, 0.975])
        normal = together(self.normal, parts)
        rates = [np.mean(normal >= np.quantile(together(m, parts), 0.05)) for m in members]
        limit = threshold_at(normal, DEFAULT_RATE)
        recall = float(np.mean([np.mean(together(m, parts) > limit) for m in members]))
        interval = {"auroc": areas[0], "low": low, "high": high}
        return {**interval, "fpr95": float(np.mean(rates)), "recall": recall}

    def _areas(self, members: Collection[Scores], parts: Sequence[str]) -> np.ndarray:
        """Return the mean area under the curve, then that of each resample."""
        rng = np.random.default_rng(self.seed)
        normal = together(self.normal, parts)
        areas = np.zeros(1 + self.resamples)
        for member in members:
            scores = together(member, parts)
            areas[0] += area(normal, scores)
            for i in range(1, 1 + self.resamples):
                one = normal[rng.integers(len(normal), size=len(normal))]
                areas[i] += area(one, scores[rng.integers(len(scores), size=len(scores))])
        return areas / len(members)


def area(normal: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the ROC curve: P(other > normal) + P(other = normal) / 2."""
    normal = np.sort(normal)
    below = np.searchsorted(normal, others, side="left")
    upto = np.searchsorted(normal, others, side="right")
    return float((below + upto).mean() / (2 * len(normal)))


def _elsewhere(s: EvidenceSettings, normal: np.ndarray) -> tuple[dict, dict]:
    """Return out-of-distribution inputs, near and far: of no class, or of unusual appearance."""
    rng, shape = np.random.default_rng(s.seed), normal.shape[1:]
    some = normal[: s.elsewhere]
    # Images rotated by 60 to 120 degrees.
    angles = rng.uniform(60, 120, len(some)) * rng.choice([-1, 1], len(some))
    options = {"reshape": False, "order": 1, "mode": "nearest"}
    turned = [ndimage.rotate(x, angle, **options) for x, angle in zip(some, angles, strict=True)]
    near = {"rotated": np.clip(np.stack(turned), 0, 1).astype(np.float32)}
    near["coloured"] = coloured(some, rng)
    far = {"noise": rng.random((s.elsewhere, *shape), np.float32)}
    for name in split_names(s.outside):
        if name != s.dataset:
            images = resized(datasets.load(name, f"test[:{s.elsewhere}]").x, shape)
            (near if is_near(name, s.dataset) else far)[name] = images
    return near, far


def is_near(name: str, dataset: str) -> bool:
    """Return whether a data set is near another, following OpenOOD."""
    digits = {"mnist", "fashion_mnist", "digits"}
    return (name in digits) == (dataset in digits)


def coloured(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images whose darkest and lightest values are mapped to other colours."""
    colours = rng.random((2, len(x), 1, 1, x.shape[-1]), np.float32)
    return colours[0] * (1 - x) + colours[1] * x


def resized(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return images with another height, width and number of channels (grey, or grey repeated)."""
    if x.shape[-1] != shape[-1]:
        x = np.repeat(x.mean(axis=-1, keepdims=True), shape[-1], axis=-1)
    factors = (1, shape[0] / x.shape[1], shape[1] / x.shape[2], 1)
    return np.clip(ndimage.zoom(x, factors, order=1), 0, 1).astype(np.float32)


def plot(table: pd.DataFrame) -> Figure:
    """Plot areas under the curve, groups by evidence, as an annotated heat map."""
    areas = table.pivot(index="evidence", columns="against", values="auroc")
    areas = areas.loc[table["evidence"].unique(), table["against"].unique()]
    best = areas.mean(axis=1)
    title = f"Area under the ROC curve: {best.idxmax()} {best.max():.2f} in the mean"
    return plot_numbers(areas, title, least=0.3)


_FEW = 20  # fewer examples say little


def choose_evidence(s: ChoiceSettings) -> ExperimentResult:
    """Compare all sets of evidence on training images."""
    # The scores of the normal images, and of each attack's successes.
    watched = load_watched(s)
    im = watched.slicer.im
    images = datasets.load(s.dataset, f"train[{s.skip}:{s.skip + s.images + s.normals}]")
    right = im.logits(images.x).argmax(axis=1) == images.y
    specs = attacks_on(s.dataset, s.attacks)
    made = examples(im.model, specs, first(images, s.images), s.work, rng=s.seed)
    sets = {spec.name: one.x[one.success] for spec, one in made if one.success.sum() > 1}
    judge = Judge(s, watched.slicer, watched.normal)
    normal = judge("normal", images.x[right])
    attacked = {name: judge(name, x) for name, x in sets.items()}
    choice = Choice(normal, attacked, s.resamples, s.seed)
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"train[:{s.train}] to learn from; {right.sum()} of "
        f"train[{s.skip}:{s.skip + s.images + s.normals}] for the false positives",
        "attacked images": f"train[{s.skip}:{s.skip + s.images}]",
        "slices": f"{s.contribution}s at θ = {s.theta:g}",
        "examples": ", ".join(f"{name} {len(x)}" for name, x in sets.items()),
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
    }
    name = f"{s.model}-{s.dataset}{s.ending}"
    title = "Evidence for a detector, chosen on training images"
    single, without = choice.single(), choice.without()
    tables = [
        ExperimentTable(name, choice.best(), title, head, note("choice")),
        ExperimentTable(f"{name}-single", single, f"{title}: alone", head, note("choice")),
        ExperimentTable(f"{name}-without", without, f"{title}: left out", head, note("left_out")),
    ]
    return ExperimentResult(tables)


@dataclass(frozen=True)
class Choice:
    """Sets of evidence, compared by recall."""

    normal: Scores  # of the normal images
    attacked: Mapping[str, Scores]  # attack → scores of its examples
    resamples: int  # of the images, by bootstrap, for an interval
    seed: int  # of the resamples

    def best(self) -> pd.DataFrame:
        """Return the best set of each size, of slices alone, of the rest, and of everything."""
        groups = {
            "slices": [kind for kind in self.normal if kind in SLICES],
            "no slices": [kind for kind in self.normal if kind not in SLICES],
            "everything": list(self.normal),
        }
        counts = {name: len(next(iter(of.values()))) for name, of in self.attacked.items()}
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
            many = {n: r for n, r in recalls.items() if counts[n] >= _FEW} or recalls
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
            for kind in self.normal
        )

    def without(self) -> pd.DataFrame:
        """Return how the recall of presets changes without each evidence, and without slices."""
        rows = []
        for preset, kinds in PRESETS.items():
            if not set(kinds) <= set(self.normal):
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
        seeds = np.random.SeedSequence(self.seed).spawn(self.resamples)
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

        threshold = threshold_at(scores_of(self.normal), DEFAULT_RATE)
        found = {name: scores_of(scores) > threshold for name, scores in self.attacked.items()}
        return {name: float(flagged.mean()) for name, flagged in found.items()}
