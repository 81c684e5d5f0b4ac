"""Detectors against attackers who know them: smallest changes, curves and sanity checks.

Each detector is fitted as for Table 4, and attacked together with its model on test images that no
table has used. A detector of the same kind, fitted on other training images, is the substitute of
the transfer attack. Finished parts are kept in the working folder, from which an interrupted run
continues. Remove its `challenges` after changing a detector's code.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf._names import check_name
from nnslicer_tf.detection import ChallengeResult, Detector, Effort, challenge
from nnslicer_tf.detection.adaptive.result import MODEL, PAIR
from nnslicer_tf.experiments.nnslicer.detection import DETECTORS
from nnslicer_tf.experiments.nnslicer.settings import ChallengeSettings, ChoiceSettings
from nnslicer_tf.experiments.result import (
    ExperimentFigure,
    ExperimentResult,
    ExperimentTable,
    versions,
)
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.palette import METHODS
from nnslicer_tf.slicing import Profile, Slicer

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
        slicer: With the profile of `normal`.
        normal: Training images that detectors are fitted on.
        others: As many others.
    """

    slicer: Slicer
    normal: np.ndarray
    others: np.ndarray


def challenge_detectors(s: ChallengeSettings) -> ExperimentResult:
    """Attack detectors as one who knows them."""
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
    return ExperimentResult(
        [
            ExperimentTable(name, _attacks(results), title, head, _TEXT),
            ExperimentTable(f"{name}-curves", _curves(results), f"{title}: by budget", head),
            ExperimentTable(f"{name}-checks", _checks(results), f"{title}: sanity checks", head),
            ExperimentTable(f"{name}-images", _images(results), f"{title}: every image", head),
        ],
        [ExperimentFigure(name, _plot(results))],
    )


def load_watched(s: ChallengeSettings | ChoiceSettings) -> Watched:
    """Load the model and the normal images, and profile it."""
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
            *(detector, watched.slicer.im, images.x, images.y, s.seed),
            normal=watched.others[:_GUIDES],
            substitute=substitute,
            norms=norms,
            attacks=attacks,
            effort=Effort(s.steps, s.queries, s.rounds),
            folder=_folder(s, name, *what),
        )
        print(f"{name}: {result}", flush=True)
        yield name, result


def _fitted(
    s: ChallengeSettings, slicer: Slicer, name: str, normal: np.ndarray, which: str
) -> Detector:
    """Return a detector fitted on normal inputs, read from the working folder if it is there."""
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


def _curves(results: dict[str, ChallengeResult]) -> pd.DataFrame:
    parts = [result.success().assign(method=name) for name, result in results.items()]
    return pd.concat(parts, ignore_index=True)[["method", "norm", "budget", MODEL, PAIR]]


def _checks(results: dict[str, ChallengeResult]) -> pd.DataFrame:
    rows = [
        {"method": name, "check": c.name, "passed": c.passed, "figures": c.said}
        for name, result in results.items()
        for c in result.checks
    ]
    return pd.DataFrame(rows)


def _images(results: dict[str, ChallengeResult]) -> pd.DataFrame:
    parts = [result.images().assign(method=name) for name, result in results.items()]
    return pd.concat(parts, ignore_index=True)


def _plot(results: dict[str, ChallengeResult]) -> Figure:
    """Draw the share of images that the best attack reaches, by the size of the change."""
    norms = list(next(iter(results.values())).norms)
    figure = Figure(figsize=(5 * len(norms), 4), layout="constrained")
    for axis, norm in zip(figure.subplots(1, len(norms), squeeze=False)[0], norms, strict=True):
        limit = max(result.norms[norm].budgets.max() for result in results.values())
        places = np.linspace(0, limit, 200)
        # Any example that was found misleads the model, whichever detector it was made against.
        alone = np.min([r.norms[norm].undefended for r in results.values()], axis=0)
        axis.plot(places, _shares(alone, places), color="#8a8f98", linewidth=2, label=MODEL)
        for name, result in results.items():
            style = "-" if result.credible else "--"
            shares = _shares(result.norms[norm].pair, places)
            label = name if result.credible else f"{name} (not credible)"
            axis.plot(places, shares, style, color=METHODS[name], label=label)
        axis.set(xlabel="largest change", title={"linf": "L∞", "l2": "L2"}[norm])
        axis.set_ylabel("share of images with a success")
        axis.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.suptitle("Model wrong, detector silent: best attack", fontsize=11)
    return figure


def _shares(distances: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    return np.array([np.mean(distances <= budget) for budget in budgets])
