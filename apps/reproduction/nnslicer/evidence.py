"""Which evidence detects what: attacks, adaptive attacks, out-of-distribution inputs, errors.

Every kind of evidence, pairs of them, and the detectors without each of them are compared against
normal test images on which nothing was chosen. Inputs from elsewhere are near or far as in OpenOOD
(Yang et al., "OpenOOD: Benchmarking generalized out-of-distribution detection", NeurIPS 2022);
plain errors are misclassified normal images, with the softmax as baseline (Weiss and Tonella,
"Simple techniques work surprisingly well for neural network test prioritization", ISSTA 2022).
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import ndimage
from scipy.special import log_softmax

from nnslicer_tf import datasets
from nnslicer_tf.detection import PRESETS
from nnslicer_tf.detection.calibration import threshold_at
from reproduction.nnslicer.adversarial import attacks_on, examples
from reproduction.nnslicer.challenge import load_watched, run_challenges
from reproduction.nnslicer.judging import SLICES, KeptJudge, Scores, chosen_kinds, together
from reproduction.nnslicer.settings import DEFAULT_RATE, EvidenceSettings, split_names
from reproduction.plots import plot_numbers
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, versions

SOFTMAX = "softmax"

_TEXT = (
    "`auroc`: area under the ROC curve against the normal test images, with a 95 % interval by the "
    "bootstrap over images (`low`, `high`); of several sets the mean. `fpr95`: share of the normal "
    "images that is flagged where 95 % of the others are; `recall`: share of the others that is "
    "flagged where 5 % of the normal images are (means, too)."
)


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
    made = examples(im.model, specs, attacked.x, attacked.y, s.work, rng=s.seed)
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
    several = {
        group: {name: x for name, x in members.items() if len(x) >= 2}
        for group, members in groups.items()
    }
    groups = {group: members for group, members in several.items() if members}

    # The scores of all kinds of evidence, and of the softmax.
    kinds = chosen_kinds(s)
    judge = KeptJudge(s, watched.slicer, watched.normal)

    def judged(name: str, x: np.ndarray) -> Scores:
        return {**judge(name, x), SOFTMAX: -log_softmax(im.logits(x), axis=1).max(axis=1)}

    of_normal = judged("normal", normal)
    scores = {
        group: {name: judged(name, x) for name, x in members.items()}
        for group, members in groups.items()
    }
    detectors = {name: of for name, of in PRESETS.items() if set(of) <= set(kinds)}
    detectors["everything"] = kinds
    comparison = Comparison(of_normal, scores, s.resamples, s.seed)
    single = {name: (name,) for name in (*kinds, SOFTMAX)} | detectors
    pairs = {f"{a} + {b}": (a, b) for a, b in combinations(kinds, 2)}
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"{len(watched.normal)} of train; {len(normal)} test images to "
        f"compare with, of test[{s.skip}:{s.skip + s.normals}], which the model is right on",
        "sets": "; ".join(
            f"{group}: {', '.join(f'{name} {len(x)}' for name, x in members.items())}"
            for group, members in groups.items()
        ),
        "resamples": s.resamples,
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
    }
    grouped = comparison.by_group(single)
    name = f"{s.model}-{s.dataset}{s.ending}"
    tables = [
        ExperimentTable(f"{name}{ending}", table, f"What each evidence tells{what}", head, _TEXT)
        for ending, what, table in (
            ("", "", grouped),
            ("-sets", ": every set", comparison.by_set(single)),
            ("-pairs", ": pairs", comparison.by_group(pairs)),
            ("-without", ": left out", comparison.without(detectors)),
        )
    ]
    return ExperimentResult(tables, [ExperimentFigure(name, plot(grouped))])


class Comparison:
    """Areas under ROC curves with paired bootstrap intervals.

    Args:
        normal: Evidence → scores of the normal images.
        scores: Group → set → evidence → scores.
        resamples: Number of resamples.
        seed: Seed of the resamples, which are the same for all evidence, so differences are paired.
    """

    def __init__(
        self,
        normal: Mapping[str, np.ndarray],
        scores: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
        resamples: int,
        seed: int,
    ) -> None:
        self._normal, self._scores = normal, scores
        self._resamples, self._seed = resamples, seed

    def by_group(self, kinds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return a row for each group and kind of evidence, averaged over the group's sets."""
        return pd.DataFrame(
            {"against": group, "evidence": kind, **self._figures(members.values(), parts)}
            for group, members in self._scores.items()
            for kind, parts in kinds.items()
        )

    def by_set(self, kinds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return a row for each set and kind of evidence."""
        return pd.DataFrame(
            {"against": group, "set": name, "evidence": kind, **self._figures([of], parts)}
            for group, members in self._scores.items()
            for name, of in members.items()
            for kind, parts in kinds.items()
        )

    def without(self, detectors: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """Return how each detector's area changes without one kind of evidence, or all slices."""
        rows = []
        for group, members in self._scores.items():
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

    def _figures(
        self, members: Collection[Mapping[str, np.ndarray]], parts: Sequence[str]
    ) -> dict[str, float]:
        areas = self._areas(members, parts)
        low, high = np.quantile(areas[1:], [0.025, 0.975])
        normal = together(self._normal, parts)
        rates = [np.mean(normal >= np.quantile(together(m, parts), 0.05)) for m in members]
        limit = threshold_at(normal, DEFAULT_RATE)
        recall = float(np.mean([np.mean(together(m, parts) > limit) for m in members]))
        interval = {"auroc": areas[0], "low": low, "high": high}
        return {**interval, "fpr95": float(np.mean(rates)), "recall": recall}

    def _areas(
        self, members: Collection[Mapping[str, np.ndarray]], parts: Sequence[str]
    ) -> np.ndarray:
        """Return the mean area under the curve, then that of each resample."""
        rng = np.random.default_rng(self._seed)
        normal = together(self._normal, parts)
        areas = np.zeros(1 + self._resamples)
        for member in members:
            scores = together(member, parts)
            areas[0] += area(normal, scores)
            for i in range(1, 1 + self._resamples):
                one = normal[rng.integers(len(normal), size=len(normal))]
                areas[i] += area(one, scores[rng.integers(len(scores), size=len(scores))])
        return areas / len(members)


def area(normal: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the ROC curve: P(other > normal) + P(other = normal) / 2."""
    normal = np.sort(normal)
    below = np.searchsorted(normal, others, side="left")
    upto = np.searchsorted(normal, others, side="right")
    return float((below + upto).mean() / (2 * len(normal)))


def _elsewhere(
    s: EvidenceSettings, normal: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return out-of-distribution inputs, near and far: of no class, or of unusual appearance."""
    rng, shape = np.random.default_rng(s.seed), normal.shape[1:]
    some = normal[: s.elsewhere]
    # Images rotated by 60 to 120 degrees.
    angles = rng.uniform(60, 120, len(some)) * rng.choice([-1, 1], len(some))
    turned = [
        ndimage.rotate(image, angle, reshape=False, order=1, mode="nearest")
        for image, angle in zip(some, angles, strict=True)
    ]
    near = {
        "rotated": np.clip(np.stack(turned), 0, 1).astype(np.float32),
        "coloured": coloured(some, rng),
    }
    far = {"noise": rng.random((s.elsewhere, *shape), np.float32)}
    for name in split_names(s.outside):
        if name == s.dataset:
            continue
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
