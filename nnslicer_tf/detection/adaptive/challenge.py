"""`challenge`: evaluate a detector against adaptive attackers, who know it.

A detector's results against attacks that do not know it say little: published detectors with good
results were broken by attackers who did (Carlini and Wagner, AISec 2017; Tramèr et al., NeurIPS
2020; Bryniarski et al., ICLR 2022). The attacks here target the pair: the model must be wrong and
the detector silent. The result includes sanity checks of the attacks; if one fails, the result
proves nothing.

Cost: about sixty gradients of the model and the detector for each norm, budget and white-box
attack; about a hundred scored inputs per image for each black-box attack. Finished parts are kept
in a folder, from which an interrupted challenge resumes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import as_generator, check_count, check_labels, check_logits, check_name
from nnslicer_tf._files import digest
from nnslicer_tf.detection.adaptive import checks
from nnslicer_tf.detection.adaptive.norms import NORMS
from nnslicer_tf.detection.adaptive.pair import Pair, excess_of
from nnslicer_tf.detection.adaptive.problem import Effort, Setting
from nnslicer_tf.detection.adaptive.result import ChallengeResult, Outcome
from nnslicer_tf.detection.adaptive.runs import Run
from nnslicer_tf.detection.adaptive.surrogate import DifferenceSurrogate, Surrogate
from nnslicer_tf.detection.adaptive.table import (
    ADAPTIVE_ATTACKS,
    TRANSFER,
    AdaptiveAttack,
)
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

# Safety margin of the transfer attack below the substitute's threshold, in spreads of the scores.
_LOWERED = 0.5
_STEEPNESS = 1.0


def challenge(
    detector: Any,
    im: InstrumentedModel,
    x: np.ndarray,
    y: ArrayLike,
    rng: int = 0,
    *,
    normal: np.ndarray | None = None,
    substitute: Detector | None = None,
    norms: Sequence[str] = ("linf", "l2"),
    budgets: Mapping[str, Sequence[float]] | None = None,
    attacks: Sequence[str] | None = None,
    effort: Effort | None = None,
    folder: str | os.PathLike | None = None,
    progress: bool = True,
) -> ChallengeResult:
    """Attack a model and its detector with adaptive attacks, which know both.

    Args:
        detector: A fitted detector: one of this package; an outlier estimator of scikit-learn,
            fitted on the inputs as vectors; or any object with `decision_function(x)`, above 0
            for flagged inputs, or with `score(x)` and `threshold_`. A `differentiable` detector
            (see `Detector`) is attacked with gradients, any other with score differences.
        im: The model that the detector guards.
        x: (N, *input_shape) normal inputs, new to the detector; those that the model
            misclassifies are skipped. Values are within `im.bounds`, 0 … 1 if it has none.
        y: (N,) their true classes.
        rng: The seed.
        normal: (M, *input_shape) normal inputs of all classes, to start from and to move towards;
            `x` by default.
        substitute: A differentiable detector fitted on other normal inputs, for the transfer
            attack; None skips that attack.
        norms: Any of `"linf"` and `"l2"`.
        budgets: Norm → largest changes, ascending; by default multiples, 1 to 4, of the median
            change that misleads the model alone.
        attacks: Names from `ADAPTIVE_ATTACKS`; all by default.
        effort: Numbers of steps, queries and rounds.
        folder: Where finished parts are kept and reused. A challenge with other budgets, attacks
            or norms reuses the parts that do not depend on them.
        progress: Show a progress bar.

    Raises:
        NotFittedError: if the detector is not fitted.
        InvalidArgumentError: for unknown names, labels that are not classes, a detector without
            a threshold or one that flags most normal inputs, no correctly classified image, no
            normal input of another class on which the detector is silent, unordered budgets.
        InputRangeError: for values outside the bounds.
        InputShapeError, NonFiniteActivationError: for bad data.
        ProfileMismatchError: if the folder belongs to another challenge.
    """
    chosen = _chosen(attacks, substitute)
    for norm in norms:
        check_name("norm", norm, NORMS)
    effort = effort or Effort()
    for name, value in asdict(effort).items():
        check_count(name, value)
    limits = None if budgets is None else _checked_budgets(budgets, norms)
    if isinstance(rng, np.random.Generator):
        raise InvalidArgumentError("rng must be an int, so that resumed parts can be reproduced.")
    as_generator(rng)
    excess = excess_of(detector)
    x, y, bounds = _checked(im, x, y)
    logits = im.classes.scores(im.logits(x))
    check_logits(logits)
    y = check_labels(y, len(x), logits.shape[1])
    index = np.flatnonzero(logits.argmax(axis=1) == y)
    if not len(index):
        raise InvalidArgumentError("The model is wrong on all the given inputs: none to attack.")
    x, y = x[index], y[index]
    pair = Pair(im, excess)
    clean = pair.excess(x)
    false_positives = float(np.mean(clean > 0))
    if false_positives > 0.5:
        raise InvalidArgumentError(
            f"The detector flags {false_positives:.0%} of the unchanged inputs: no attack could "
            "tell anything. Set its threshold by a false-positive rate."
        )
    surrogate: Surrogate = DifferenceSurrogate(pair, bounds, as_generator(rng))
    if isinstance(detector, Detector) and detector.differentiable:
        surrogate = Surrogate(im, detector)
    pool = x if normal is None else im.check(normal)
    setting = Setting(
        pair=pair,
        surrogate=surrogate,
        substitute=_substitute(im, substitute, clean),
        x=x,
        y=y,
        guides=_guides(pair, x, y, pool),
        bounds=bounds,
        scales=(_spread(pair.margins(x, y)), _spread(clean)),
        effort=effort,
        seed=int(rng),
    )
    store = None if folder is None else _store(folder, setting, detector, substitute, clean)
    outcomes = {}
    for norm in norms:
        run = Run(setting, norm, store, progress)
        outcomes[norm] = run.outcome(chosen, None if limits is None else limits[norm])
    found = (
        checks.unbounded(outcomes),
        checks.monotone(outcomes),
        checks.strongest(outcomes),
        *_checks_of_gradients(setting, outcomes),
    )
    return ChallengeResult(outcomes, index, false_positives, found)


def _chosen(names: Sequence[str] | None, substitute: Detector | None) -> list[AdaptiveAttack]:
    chosen = list(ADAPTIVE_ATTACKS if names is None else names)
    for name in chosen:
        check_name("attack", name, ADAPTIVE_ATTACKS)
    attacks = [ADAPTIVE_ATTACKS[name] for name in chosen]
    if substitute is None:
        if names is not None and any(attack.kind == TRANSFER for attack in attacks):
            raise InvalidArgumentError("transfer needs a substitute: a detector fitted elsewhere.")
        attacks = [attack for attack in attacks if attack.kind != TRANSFER]
    if not attacks:
        raise InvalidArgumentError("There is no attack to run: give names, or None for all.")
    return attacks


def _checked(
    im: InstrumentedModel, x: np.ndarray, y: ArrayLike
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    x = im.check(x)
    low, high = im.bounds or (0.0, 1.0)
    if x.min() < low or x.max() > high:
        raise InputRangeError(
            f"Attacks need the range of the inputs, here {low:g} … {high:g}; x has values from "
            f"{x.min():g} to {x.max():g}. Give InstrumentedModel its bounds."
        )
    return x, np.asarray(y), (float(low), float(high))


def _checked_budgets(
    budgets: Mapping[str, Sequence[float]], norms: Sequence[str]
) -> dict[str, np.ndarray]:
    checked = {}
    for norm in norms:
        limits = np.asarray(budgets.get(norm, ()), np.float64)
        if limits.ndim != 1 or not len(limits) or not (np.diff(limits, prepend=0) > 0).all():
            raise InvalidArgumentError(
                f"The budgets in {norm} must be changes above 0, ascending. Received: "
                f"{budgets.get(norm)}"
            )
        checked[norm] = limits
    return checked


def _substitute(
    im: InstrumentedModel, substitute: Detector | None, clean: np.ndarray
) -> tuple[Pair, Surrogate] | None:
    if substitute is None:
        return None
    if not isinstance(substitute, Detector) or not substitute.differentiable:
        raise InvalidArgumentError("The substitute must be a differentiable detector.")
    lowered = _LOWERED * _spread(clean)
    pair = Pair(im, excess_of(substitute), lowered)
    return pair, Surrogate(im, substitute, lowered)


def _guides(pair: Pair, x: np.ndarray, y: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Return each image's nearest normal input of another class that the detector passes."""
    classes = pair.im.classes.from_logits(pair.im.logits(pool))
    silent = pair.excess(pool) <= 0
    flat = pool.reshape(len(pool), -1)
    guides = np.empty_like(x)
    for i, image in enumerate(x):
        others = np.flatnonzero(silent & (classes != y[i]))
        if not len(others):
            raise InvalidArgumentError(
                f"There is no normal input of another class than {y[i]} on which the detector is "
                "silent. Give more as `normal`."
            )
        distance = ((flat[others] - image.ravel()) ** 2).sum(axis=1)
        guides[i] = pool[others[distance.argmin()]]
    return guides


def _spread(values: np.ndarray) -> float:
    return max(float(np.std(values)), 1e-9)


def _checks_of_gradients(
    setting: Setting, outcomes: Mapping[str, Outcome]
) -> Iterator[checks.Check]:
    """Yield the checks of the surrogate: its scores, and its gradients at the images."""
    x = np.concatenate([setting.x, *(outcome.examples for outcome in outcomes.values())])
    y = np.tile(setting.y, 1 + len(outcomes))
    radius = np.mean([outcome.budgets[0] for outcome in outcomes.values()]) / 4
    values = setting.surrogate(x, y, _STEEPNESS, float(radius))
    if setting.surrogate.approximate:
        yield checks.correlated(values.excess, setting.pair.excess(x))
    yield checks.sloping(values.excess_gradient[: len(setting.x)])


def _store(
    folder: str | os.PathLike,
    setting: Setting,
    detector: Any,
    substitute: Detector | None,
    clean: np.ndarray,
) -> Store:
    identity = {
        "model": setting.pair.im.fingerprint,
        "detector": type(detector).__name__,
        "scores": f"{clean.mean():.4g}, {clean.std():.4g}",
        "substitute": None if substitute is None else f"{substitute.threshold_:.4g}",
        "data": digest([setting.x, setting.y, setting.guides]),
        "effort": asdict(setting.effort),
        "seed": setting.seed,
    }
    return Store(folder, identity, "part of a challenge")
