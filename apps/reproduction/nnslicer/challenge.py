"""Detectors against adaptive attackers: smallest changes, curves and sanity checks.

Each detector is fitted as for Table 4, and attacked together with its model on test images that no
table has used. A detector of the same kind, fitted on other training images, is the substitute in
the transfer attack. Finished parts are kept in the working folder, from which an interrupted run
resumes. Remove its `challenges` after changing a detector's code.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets
from nnslicer_tf._checks import check_name
from nnslicer_tf.detection import Detector
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.adaptive import ChallengeResult, challenge
from reproduction.adaptive.result import MODEL, PAIR
from reproduction.adaptive.surrogate import is_differentiable
from reproduction.nnslicer.detection import DETECTORS
from reproduction.nnslicer.settings import ChallengeSettings, ChoiceSettings, split_names
from reproduction.plots import METHODS
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note, versions
from reproduction.tables import read_table
from reproduction.zoo.models import zoo

_NORMS = {"linf": "L∞", "l2": "L2"}
_GUIDES = 1000  # normal images to move towards


class Watched(NamedTuple):
    """A model's slicer, training images on which detectors are fitted, and as many others."""

    slicer: Slicer  # with the profile of `normal`
    normal: np.ndarray
    others: np.ndarray


def challenge_detectors(s: ChallengeSettings) -> ExperimentResult:
    """Attack detectors with adaptive attacks, which know them."""
    names = split_names(s.methods)
    for name in names:
        check_name("method", name, DETECTORS)
    watched = load_watched(s)
    results = dict(run_challenges(s, watched, names))
    size = len(next(iter(results.values())).index)
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"{len(watched.normal)} of train, a quarter held out for the threshold",
        "attacked images": f"test[{s.skip}:{s.skip + s.images}], the {size} the model is right on",
        "effort": f"{s.steps} steps, {s.queries} queries, {s.rounds} rounds",
        "theta of the slices": str(s.theta),
        "false-positive rate asked": str(s.false_positive_rate),
        "seed": str(s.seed),
        "libraries": versions("scikit-learn"),
    }
    name = f"{s.model}-{s.dataset}{s.ending}"
    title = "Detectors against attackers who know them"

    def together(frame_of: Callable[[ChallengeResult], pd.DataFrame]) -> pd.DataFrame:
        parts = [frame_of(result).assign(method=name) for name, result in results.items()]
        return pd.concat(parts, ignore_index=True)

    attacks = together(ChallengeResult.to_frame)
    for column in ("false_positives", "verdict"):
        attacks[column] = [getattr(results[name], column) for name in attacks["method"]]
    attacks.insert(0, "method", attacks.pop("method"))
    curves = together(ChallengeResult.success)[["method", "norm", "budget", MODEL, PAIR]]
    images = together(ChallengeResult.images)
    checks = pd.DataFrame(
        {"method": name, "check": c.name, "passed": c.passed, "figures": c.said}
        for name, result in results.items()
        for c in result.checks
    )
    tables = [
        ExperimentTable(name, attacks, title, head, note("challenge")),
        ExperimentTable(f"{name}-curves", curves, f"{title}: by budget", head),
        ExperimentTable(f"{name}-checks", checks, f"{title}: sanity checks", head),
        ExperimentTable(f"{name}-images", images, f"{title}: every image", head),
    ]
    credible = [name for name, result in results.items() if result.credible]
    return ExperimentResult(tables, [ExperimentFigure(name, plot(images, credible))])


def figures(images: Path) -> list[ExperimentFigure]:
    """Redraw the figure from its tables: that of all images, and that of the attacks beside it."""
    name = images.stem.removesuffix("-images")
    attacks = read_table(images.with_name(f"{name}.csv")).frame
    verdicts = attacks.groupby("method", sort=False)["verdict"].first()
    credible = [str(method) for method in verdicts.index[verdicts == "credible"]]
    return [ExperimentFigure(name, plot(read_table(images).frame, credible))]


def load_watched(s: ChallengeSettings | ChoiceSettings) -> Watched:
    """Load the model and the normal images, and profile the model."""
    im = InstrumentedModel(zoo.load(s.model, s.dataset), bounds=(0.0, 1.0))
    train = datasets.load(s.dataset, f"train[:{2 * s.train}]").x
    normal, others = train[: s.train], train[s.train :]
    kind = s.contribution if isinstance(s, ChoiceSettings) else "count"
    slicer = Slicer(im, Profile.from_data(im, normal), s.theta, contribution=kind)
    return Watched(slicer, normal, others)


def run_challenges(
    s: ChallengeSettings, watched: Watched, names: list[str]
) -> Iterator[tuple[str, ChallengeResult]]:
    """Yield each detector's name and result; fitted detectors and finished attacks are kept."""
    images = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.images}]")
    attacks = split_names(s.attacks) or None

    def folder_of(name: str, *made_from: object) -> Path:
        digest = hashlib.sha256(json.dumps([s.dataset, *made_from]).encode()).hexdigest()[:12]
        return s.work / "challenges" / f"{s.model}-{name.replace(' ', '-')}-{digest}"

    def fitted(name: str, normal: np.ndarray, role: str) -> Detector:
        options = {"false_positive_rate": s.false_positive_rate, "rng": s.seed}
        detector = DETECTORS[name](watched.slicer, **options)
        folder = folder_of(name, s.train, s.theta, s.false_positive_rate, s.seed)
        path = folder.with_name(f"{folder.name}-{role}.npz")
        if path.exists():
            return type(detector).load(path, getattr(detector, detector.source))
        path.parent.mkdir(parents=True, exist_ok=True)
        detector.fit(normal).save(path)
        return detector

    for name in names:
        detector = fitted(name, watched.normal, "detector")
        transfers = is_differentiable(detector) and (attacks is None or "transfer" in attacks)
        effort = s.values("steps", "queries", "rounds")
        made_from = s.values("train", "images", "skip") | effort
        made_from |= s.values("theta", "false_positive_rate", "seed")
        options = {"norms": split_names(s.norms), "attacks": attacks, **effort}
        options["folder"] = folder_of(name, *made_from.values(), transfers)
        options["substitute"] = fitted(name, watched.others, "substitute") if transfers else None
        guides = watched.others[:_GUIDES]
        im = watched.slicer.im
        result = challenge(detector, im, images.x, images.y, s.seed, normal=guides, **options)
        print(f"{name}: {result}", flush=True)
        yield name, result


def plot(images: pd.DataFrame, credible: Collection[str]) -> Figure:
    """Plot the success rate of the best attack by the size of the change."""
    norms = list(images["norm"].unique())
    figure = Figure(figsize=(max(7, 4.2 * len(norms)), 4), layout="constrained")
    ratios: dict[str, float] = {}
    for axis, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
        of_norm = images[images["norm"] == norm]
        # Any example found misleads the model, whichever detector it was made against.
        alone = of_norm.groupby("image")[MODEL].min()
        of_method = {str(name): part for name, part in of_norm.groupby("method", sort=False)}
        largest = of_norm[[MODEL, PAIR]].to_numpy()
        places = np.linspace(0, 1.05 * largest[np.isfinite(largest)].max(), 400)

        def shares(distances: pd.Series, budgets: np.ndarray = places) -> list[float]:
            return [np.mean(distances <= budget) for budget in budgets]

        axis.step(places, shares(alone), color="#8a8f98", linewidth=2, label=MODEL)
        for name, part in of_method.items():
            style = "-" if name in credible else "--"
            label = name if name in credible else f"{name} (not credible)"
            axis.step(places, shares(part[PAIR]), style, color=METHODS[name], label=label)
            ratios.setdefault(name, part[PAIR].median() / part[MODEL].median())  # as in the table
        axis.set(xlabel=f"size of the change, {_NORMS[norm]}", ylim=(-0.02, 1.02))
        axis.set_ylabel("share of images evaded")
        axis.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    measured = {name: ratio for name, ratio in ratios.items() if name in credible}
    title = "No attack on these detectors is credible"
    if measured:
        best = max(measured, key=measured.__getitem__)
        title = f"Evading model and {best} takes {ratios[best]:.2f} times\nthe change that "
        title += f"misleads the model alone ({_NORMS[norms[0]]}, medians)"
    figure.axes[0].set_title(title, fontsize=10)
    return figure
