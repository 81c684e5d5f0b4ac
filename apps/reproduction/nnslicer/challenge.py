"""Detectors against adaptive attackers: smallest changes, curves and sanity checks.

Each detector is fitted as for Table 4, and attacked together with its model on test images that no
table has used. A detector of the same kind, fitted on other training images, is the substitute in
the transfer attack. Finished parts are kept in the working folder, from which an interrupted run
resumes. Remove its `challenges` after changing a detector's code.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import check_name
from nnslicer_tf.detection import Detector, challenge
from nnslicer_tf.detection.adaptive.result import MODEL, PAIR, ChallengeResult
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.nnslicer.detection import DETECTORS
from reproduction.nnslicer.settings import ChallengeSettings, ChoiceSettings
from reproduction.palette import METHODS
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, versions
from reproduction.tables import read_table

_NORMS = {"linf": "L∞", "l2": "L2"}
_GUIDES = 1000  # normal images to move towards

_TEXT = (
    "`median`: smallest change that succeeds, in the median over the images; `ratio`: to that of "
    "the model alone; `best`: share of the images on which the attack is the best; `≤ 2×`: share "
    "of the images with a success within twice the median of the model alone. `verdict`: what the "
    "sanity checks say of the attacks; where they are not credible, a detector's figures are upper "
    "bounds of what it withstands, and nothing more. No detector is called robust."
)


@dataclass(frozen=True, eq=False)
class Watched:
    """A model, its slicer, and normal images.

    Attributes:
        slicer: The slicer, with the profile of `normal`.
        normal: Training images on which detectors are fitted.
        others: The same number of other training images.
    """

    slicer: Slicer
    normal: np.ndarray
    others: np.ndarray


def challenge_detectors(s: ChallengeSettings) -> ExperimentResult:
    """Attack detectors with adaptive attacks, which know them."""
    names = [name.strip() for name in s.methods.split(",") if name.strip()]
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
    parts = [result.success().assign(method=name) for name, result in results.items()]
    curves = pd.concat(parts, ignore_index=True)[["method", "norm", "budget", MODEL, PAIR]]
    rows = [
        {"method": name, "check": c.name, "passed": c.passed, "figures": c.said}
        for name, result in results.items()
        for c in result.checks
    ]
    return ExperimentResult(
        [
            ExperimentTable(name, _attacks(results), title, head, _TEXT),
            ExperimentTable(f"{name}-curves", curves, f"{title}: by budget", head),
            ExperimentTable(f"{name}-checks", pd.DataFrame(rows), f"{title}: sanity checks", head),
            ExperimentTable(f"{name}-images", _images(results), f"{title}: every image", head),
        ],
        [
            ExperimentFigure(
                name,
                plot(
                    _images(results), [name for name, result in results.items() if result.credible]
                ),
            )
        ],
    )


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
    return Watched(Slicer(im, Profile.from_data(im, normal), s.theta), normal, others)


def run_challenges(
    s: ChallengeSettings, watched: Watched, names: list[str]
) -> Iterator[tuple[str, ChallengeResult]]:
    """Yield each detector's name and result."""
    images = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.images}]")
    norms = [name.strip() for name in s.norms.split(",")]
    attacks = [name.strip() for name in s.attacks.split(",") if name.strip()] or None
    for name in names:
        detector = _fitted(s, watched.slicer, name, watched.normal, "detector")
        transfers = detector.differentiable and (attacks is None or "transfer" in attacks)
        substitute = None
        if transfers:
            substitute = _fitted(s, watched.slicer, name, watched.others, "substitute")
        what: list[float] = [s.train, s.images, s.skip, s.steps, s.queries, s.rounds]
        what += [s.theta, s.false_positive_rate, s.seed, transfers]
        result = challenge(
            detector,
            watched.slicer.im,
            images.x,
            images.y,
            s.seed,
            normal=watched.others[:_GUIDES],
            substitute=substitute,
            norms=norms,
            attacks=attacks,
            steps=s.steps,
            queries=s.queries,
            rounds=s.rounds,
            folder=_folder(s, name, *what),
        )
        print(f"{name}: {result}", flush=True)
        yield name, result


def _fitted(
    s: ChallengeSettings, slicer: Slicer, name: str, normal: np.ndarray, which: str
) -> Detector:
    """Return a detector fitted on normal inputs, loaded from the working folder if available."""
    common = {"false_positive_rate": s.false_positive_rate, "rng": s.seed}
    detector = DETECTORS[name](slicer, **common)
    folder = _folder(s, name, s.train, s.theta, s.false_positive_rate, s.seed)
    path = folder.with_name(f"{folder.name}-{which}.npz")
    if path.exists():
        return type(detector).load(path, getattr(detector, detector.source))
    detector.fit(normal)
    path.parent.mkdir(parents=True, exist_ok=True)
    detector.save(path)
    return detector


def _folder(s: ChallengeSettings, name: str, *what: object) -> Path:
    digest = hashlib.sha256(json.dumps([s.dataset, *what]).encode()).hexdigest()[:12]
    return s.work / "challenges" / f"{s.model}-{name.replace(' ', '-')}-{digest}"


def _attacks(results: dict[str, ChallengeResult]) -> pd.DataFrame:
    parts = []
    for name, result in results.items():
        frame = result.to_frame()
        frame.insert(0, "method", name)
        frame["false_positives"] = result.false_positives
        frame["verdict"] = result.verdict
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def _images(results: dict[str, ChallengeResult]) -> pd.DataFrame:
    parts = [result.images().assign(method=name) for name, result in results.items()]
    return pd.concat(parts, ignore_index=True)


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
        axis.step(places, _shares(alone, places), color="#8a8f98", linewidth=2, label=MODEL)
        for name, part in of_method.items():
            style = "-" if name in credible else "--"
            label = name if name in credible else f"{name} (not credible)"
            axis.step(places, _shares(part[PAIR], places), style, color=METHODS[name], label=label)
            ratios.setdefault(name, part[PAIR].median() / part[MODEL].median())  # as in the table
        axis.set(xlabel=f"size of the change, {_NORMS[norm]}", ylim=(-0.02, 1.02))
        axis.set_ylabel("share of images evaded")
        axis.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    measured = {name: ratio for name, ratio in ratios.items() if name in credible}
    title = "No attack on these detectors is credible"
    if measured:
        best = max(measured, key=measured.__getitem__)
        title = (
            f"Evading model and {best} takes {ratios[best]:.2f} times\nthe change that misleads "
            f"the model alone ({_NORMS[norms[0]]}, medians)"
        )
    figure.axes[0].set_title(title, fontsize=10)
    return figure


def _shares(distances: pd.Series, budgets: np.ndarray) -> np.ndarray:
    return np.array([np.mean(distances <= budget) for budget in budgets])
