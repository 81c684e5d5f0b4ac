"""`challenge`: evaluate a detector against adaptive attacks.

Published detectors that withstood attacks unaware of them were broken by adaptive ones (Carlini
and Wagner, AISec 2017; Tramèr et al., NeurIPS 2020; Bryniarski et al., ICLR 2022).

Cost: about sixty gradients for each norm, budget and white-box attack; about a hundred scored
inputs per image for each black-box attack.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._checks import ArrayLike, as_generator, check_count, check_labels, check_name
from nnslicer_tf._files import digest
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.plausibility import check_logits
from reproduction.adaptive import result
from reproduction.adaptive.pair import Pair
from reproduction.adaptive.problem import NORMS, Effort, Problem
from reproduction.adaptive.runs import Run
from reproduction.adaptive.surrogate import is_differentiable
from reproduction.adaptive.table import ADAPTIVE_ATTACKS, TRANSFER

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
    steps: int = 60,
    queries: int = 400,
    rounds: int = 4,
    folder: str | os.PathLike | None = None,
    progress: bool = True,
) -> result.ChallengeResult:
    """Attack a model and its detector with adaptive attacks, which know both.

    An attack succeeds if the model is wrong and the detector silent. If a sanity check of the
    attacks fails, the result proves nothing.

    Args:
        detector: A fitted detector of this package; an outlier estimator of scikit-learn, fitted on
            the inputs as vectors; or an object with `decision_function(x)`, above 0 for flagged
            inputs. One without a surrogate is attacked with score differences instead of
            gradients.
        im: The model that the detector guards.
        x: (N, *input_shape) normal inputs, new to the detector; misclassified ones are skipped.
            Values are within `im.bounds`, 0 … 1 if it has none.
        y: (N,) their true classes.
        rng: The seed.
        normal: (M, *input_shape) normal inputs of all classes, as starting points and targets; `x`
            by default.
        substitute: A differentiable detector fitted on other normal inputs, for the transfer
            attack; None skips that attack.
        norms: Any of `"linf"` and `"l2"`.
        budgets: Norm → largest changes, ascending; by default multiples, 1 to 4, of the median
            change that misleads the model alone.
        attacks: Names from `ADAPTIVE_ATTACKS`; all by default.
        steps: Gradient steps of a white-box attack.
        queries: Inputs that a black-box attack submits, per image.
        rounds: Weights that the weighted sum tries, and rounds of `minimum` and `approach`.
        folder: Where finished parts are saved, to resume from, also with other budgets, attacks or
            norms.
        progress: Show a progress bar.

    Raises:
        NotFittedError: if the detector is not fitted.
        InvalidArgumentError: for unknown names, labels that are not classes, unordered budgets, a
            detector without a threshold or that flags most normal inputs, or no image to attack or
            to start from.
        InputRangeError: for values outside the bounds.
        InputShapeError, NonFiniteActivationError: for bad data.
        ProfileMismatchError: if the folder belongs to another challenge.
    """
    # Check the arguments.
    names = list(ADAPTIVE_ATTACKS if attacks is None else attacks)
    for name in names:
        check_name("attack", name, ADAPTIVE_ATTACKS)
    chosen = [ADAPTIVE_ATTACKS[name] for name in names]
    if substitute is None:
        if attacks is not None and any(attack.kind == TRANSFER for attack in chosen):
            raise InvalidArgumentError(
                "The attack 'transfer' needs substitute=: another fitted detector."
            )
        chosen = [attack for attack in chosen if attack.kind != TRANSFER]
    elif not isinstance(substitute, Detector) or not is_differentiable(substitute):
        raise InvalidArgumentError("The substitute must be a differentiable detector.")
    if not chosen:
        raise InvalidArgumentError("There is no attack to run: pass names, or None for all.")
    limits: dict[str, np.ndarray | None] = dict.fromkeys(norms)
    for norm in norms:
        check_name("norm", norm, NORMS)
        if budgets is not None:
            limits[norm] = changes = np.asarray(budgets.get(norm, ()), np.float64)
            if changes.ndim != 1 or not len(changes) or not (np.diff(changes, prepend=0) > 0).all():
                raise InvalidArgumentError(
                    f"The budgets in {norm} must be changes above 0, ascending. Received: "
                    f"{budgets.get(norm)}"
                )
    effort = Effort(steps, queries, rounds)
    for name, value in effort._asdict().items():
        check_count(name, value)
    if isinstance(rng, np.random.Generator):
        raise InvalidArgumentError("rng must be an int, so that resumed parts can be reproduced.")
    low, high = map(float, im.bounds or (0, 1))
    pair = Pair(im, detector, bounds=(low, high), rng=as_generator(rng))
    x = im.check(x)
    if x.min() < low or x.max() > high:
        raise InputRangeError(
            f"x ranges from {x.min():g} to {x.max():g}, outside the attacks' bounds {low:g} … "
            f"{high:g}. Pass the range of the inputs: InstrumentedModel(model, bounds=…)."
        )
    # Keep the images that the model classifies correctly.
    logits = im.classes.scores(im.logits(x))
    check_logits(logits)
    y = check_labels(y, len(x), logits.shape[1])
    index = np.flatnonzero(logits.argmax(axis=1) == y)
    if not len(index):
        raise InvalidArgumentError("The model misclassifies all inputs: there is none to attack.")
    x, y = x[index], y[index]
    clean = pair.excess(x)
    false_positives = float(np.mean(clean > 0))
    if false_positives > 0.5:
        raise InvalidArgumentError(
            f"The detector flags {false_positives:.0%} of the unchanged inputs: attacks on it "
            "prove nothing. Set its threshold by a false-positive rate."
        )
    spread = _spread(clean)
    problem = Problem(
        pair=pair,
        substitute=None if substitute is None else Pair(im, substitute, _LOWERED * spread),
        x=x,
        y=y,
        guides=_guides(pair, x, y, x if normal is None else im.check(normal)),
        bounds=(low, high),
        scales=(_spread(pair.margins(x, y)), spread),
        effort=effort,
        seed=int(rng),
    )
    store = None
    if folder is not None:
        identity = {
            "model": im.fingerprint,
            "detector": type(detector).__name__,
            "scores": f"{clean.mean():.4g}, {clean.std():.4g}",
            "substitute": None if substitute is None else f"{substitute.threshold_:.4g}",
            "data": digest([x, y, problem.guides]),
            "effort": effort._asdict(),
            "seed": problem.seed,
        }
        store = Store(folder, identity, "part of a challenge")
    runs = {norm: Run(problem, norm, store, progress) for norm in norms}
    outcomes = {norm: run.outcome(chosen, limits[norm]) for norm, run in runs.items()}
    # Check the attacks, and the surrogate at the images and at the nearest examples.
    checks = list(result.check_outcomes(outcomes))
    places = np.concatenate([x, *(outcome.examples for outcome in outcomes.values())])
    radius = np.mean([outcome.budgets[0] for outcome in outcomes.values()]) / 4
    labels = np.tile(y, 1 + len(outcomes))
    values = pair.values(places, labels, _STEEPNESS, float(radius))
    if pair.differentiable:
        checks.append(result.check_scores(values.excess, pair.excess(places)))
    checks.append(result.check_gradients(values.excess_gradient[: len(x)]))
    return result.ChallengeResult(outcomes, index, false_positives, tuple(checks))


def _guides(pair: Pair, x: np.ndarray, y: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Return each image's nearest normal input of another class that the detector does not flag."""
    classes = pair.im.classes.from_logits(pair.im.logits(pool))
    silent = pair.excess(pool) <= 0
    flat = pool.reshape(len(pool), -1)
    guides = np.empty_like(x)
    for i, image in enumerate(x):
        others = np.flatnonzero(silent & (classes != y[i]))
        if not len(others):
            raise InvalidArgumentError(
                f"`normal` needs unflagged inputs of another class than {y[i]}: pass more."
            )
        distance = ((flat[others] - image.ravel()) ** 2).sum(axis=1)
        guides[i] = pool[others[distance.argmin()]]
    return guides


def _spread(values: np.ndarray) -> float:
    return max(float(np.std(values)), 1e-9)
