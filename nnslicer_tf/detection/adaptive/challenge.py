"""`challenge`: attack a detector as one who knows it.

Figures of a detector against attacks that do not know it say little: published detectors with good
ones fell to attackers who did (Carlini and Wagner, AISec 2017; Tramèr et al., NeurIPS 2020;
Bryniarski et al., ICLR 2022). Here attacks aim at the pair: the model wrong and the detector
silent. Sanity checks of the attacks are part of the result; where one fails, nothing is known.

Cost: for each norm, budget and white-box attack some sixty gradients of the model and the detector;
for each black-box attack some hundred inputs scored for each image. Finished parts are kept in a
folder, from which an interrupted challenge continues.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from nnslicer_tf._checks import check_count, check_labels, check_logits
from nnslicer_tf._names import check_name
from nnslicer_tf._progress import track
from nnslicer_tf._random import as_generator
from nnslicer_tf.detection.adaptive import checks
from nnslicer_tf.detection.adaptive.black_box import nearer
from nnslicer_tf.detection.adaptive.gradient import orthogonal
from nnslicer_tf.detection.adaptive.norms import NORMS
from nnslicer_tf.detection.adaptive.pair import Pair, excess_of
from nnslicer_tf.detection.adaptive.problem import Effort, Problem, Tried
from nnslicer_tf.detection.adaptive.result import ChallengeResult, Outcome
from nnslicer_tf.detection.adaptive.surrogate import DifferenceSurrogate, Surrogate
from nnslicer_tf.detection.adaptive.table import (
    ADAPTIVE_ATTACKS,
    BLACK,
    TRANSFER,
    WHITE,
    AdaptiveAttack,
)
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

# Budgets, as multiples of the smallest change that misleads the undefended model, in the median.
_MULTIPLES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
# Budgets that the undefended model is attacked with, as shares of the largest change.
_UNDEFENDED = 2.0 ** np.arange(-9, 0.5)
_BISECTIONS = 6
_UNDEFENDED_ATTACK = "undefended"
# A transferred attack goes below the substitute's threshold by so many spreads of its scores.
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
    """Attack a model and its detector by attackers who know both.

    Args:
        detector: A fitted detector: of this package; an outlier estimator of scikit-learn, fitted
            on the inputs as vectors; or any object with `decision_function(x)`, above 0 for
            flagged inputs, or with `score(x)` and `threshold_`. What is `differentiable` (see
            `Detector`) is attacked by gradients, all else by differences of its scores.
        im: The model that it watches.
        x: (N, *input_shape) normal inputs, new to the detector; those that the model is wrong on
            are left alone. Values are within `im.bounds`, 0 … 1 if it has none.
        y: (N,) their true classes.
        rng: The seed.
        normal: (M, *input_shape) normal inputs of all classes, to start from and to move towards;
            `x` by default.
        substitute: A differentiable detector fitted on other normal inputs, for transfer; None:
            no such attack.
        norms: Of `"linf"` and `"l2"`.
        budgets: Norm → largest changes, ascending; by default multiples, 0.5 to 4, of the median
            change that misleads the model alone.
        attacks: Names of `ADAPTIVE_ATTACKS`; all by default.
        effort: How hard the attacks try.
        folder: Finished parts are kept there, and not made again.
        progress: Show a progress bar.

    Raises:
        NotFittedError: if the detector is not fitted.
        InvalidArgumentError: for unknown names, labels that are no classes, a detector without
            a threshold or one that flags most normal inputs, no image that the model is right on,
            no normal input of another class on which the detector is silent, budgets out of order.
        InputRangeError: for values beyond the bounds.
        InputShapeError, NonFiniteActivationError: for bad data.
        ProfileMismatchError: if the folder is of another challenge.
    """
    chosen = _chosen(attacks, substitute)
    for norm in norms:
        check_name("norm", norm, NORMS)
    effort = effort or Effort()
    for name, value in asdict(effort).items():
        check_count(name, value)
    as_generator(rng)
    excess = excess_of(detector)
    x, y, bounds = _checked(im, x, y)
    logits = im.logits(x)
    check_logits(logits)
    y = check_labels(y, len(x), logits.shape[1])
    index = np.flatnonzero(logits.argmax(axis=1) == y)
    if not len(index):
        raise InvalidArgumentError("The model is wrong on all the given inputs: none to attack.")
    x, y = x[index], y[index]
    pair = Pair(im, excess)
    clean = pair.excess(x)
    _check_rate(clean)
    pool = x if normal is None else im.check(normal)
    setting = _Setting(
        pair=pair,
        surrogate=_surrogate(im, detector, pair, bounds, rng),
        substitute=_substitute(im, substitute, clean),
        x=x,
        y=y,
        guides=_guides(pair, x, y, pool),
        bounds=bounds,
        scales=(_spread(pair.margins(x, y)), _spread(clean)),
        effort=effort,
        seed=int(rng) if not isinstance(rng, np.random.Generator) else 0,
    )
    store = None if folder is None else _store(folder, setting, detector, substitute, clean)
    outcomes = {}
    with_bar = track(norms, "Challenge", len(norms), progress)
    for norm in with_bar:
        run = _Run(setting, norm, store, progress)
        outcomes[norm] = run.outcome(chosen, None if budgets is None else budgets[norm])
    found = (
        checks.unbounded(outcomes),
        checks.monotone(outcomes),
        checks.strongest(outcomes),
        *_checks_of_gradients(setting, outcomes),
    )
    return ChallengeResult(outcomes, index, float(np.mean(clean > 0)), found)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What the runs of all norms share; see `Problem`."""

    pair: Pair
    surrogate: Surrogate
    substitute: tuple[Pair, Surrogate] | None
    x: np.ndarray
    y: np.ndarray
    guides: np.ndarray
    bounds: tuple[float, float]
    scales: tuple[float, float]
    effort: Effort
    seed: int

    def alone(self) -> "_Setting":
        """Return the setting without the detector."""
        im = self.pair.im
        return replace(self, pair=Pair(im, None), surrogate=Surrogate(im, None), substitute=None)


class _Run:
    """The attacks in one norm.

    Args:
        setting: What is attacked.
        norm: Name of the norm.
        store: Keeps finished parts; None: nothing is kept.
        progress: Show a progress bar.
    """

    def __init__(self, setting: _Setting, norm: str, store: Store | None, progress: bool) -> None:
        self._setting, self._norm, self._store = setting, NORMS[norm], store
        self._progress = progress
        low, high = setting.bounds
        self._largest = self._norm.largest(setting.x.shape[1:], high - low)

    def outcome(
        self, attacks: Sequence[AdaptiveAttack], budgets: Sequence[float] | None
    ) -> Outcome:
        """Run the attacks; without budgets, those are chosen by the undefended model."""
        alone = self._undefended()
        limits = self._budgets(alone, budgets)
        parts, rows = [], []
        reached: dict[float, np.ndarray] = {}
        runs = list(_runs(attacks, limits))
        for attack, limit in track(runs, self._norm.name, len(runs), self._progress):
            key = f"{self._norm.name}-{attack.name}-{limit:.6g}"
            problem = self._problem(self._setting, limit, limits.max(), key)
            earlier = [budget for budget in reached if np.isinf(budget)]
            if attack.kind == WHITE and np.isinf(limit):
                tried = self._rest(key, attack, problem, reached.get(limit))
            else:
                tried = self._kept(key, partial(attack.run, problem))
            parts.append((attack.name, tried))
            if not attack.from_guides and (attack.kind == WHITE or not _has_white(attacks)):
                before = reached.get(limit, np.zeros(len(tried.found), bool))
                reached[limit] = before | tried.found
            together = np.mean(reached[limit]) if limit in reached else np.nan
            # Without a bound, later attacks are run on the images that are left alone.
            success = np.mean(tried.found) if limit not in earlier else np.nan
            rows.append((attack.name, limit, float(success), float(together)))
        return self._summed(alone, limits, parts, rows)

    def _summed(
        self, alone: np.ndarray, limits: np.ndarray, parts: list[tuple[str, Tried]], rows: list
    ) -> Outcome:
        """Return the smallest changes over all budgets, made smaller still by bisection."""
        setting = self._setting
        problem = self._problem(setting, self._largest, self._largest, "summed")
        examples, nearest = setting.x.copy(), np.full(len(setting.x), np.inf)
        distances: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for name, _ in parts):
            best, x = np.full(len(setting.x), np.inf), setting.x.copy()
            for tried in (tried for of, tried in parts if of == name):
                self._take_nearer(best, x, tried)
            found = np.isfinite(best)
            moved = self._kept_nearer(name, problem, x, found)
            best = np.where(found, self._norm.distance(moved - setting.x), np.inf)
            distances[name] = best
            closer = best < nearest
            examples[closer], nearest[closer] = moved[closer], best[closer]
        undefended = np.minimum(alone, nearest)  # what evades the pair misleads the model
        frame = pd.DataFrame(rows, columns=["attack", "budget", "success", "together"])
        return Outcome(limits, undefended, distances, frame, examples)

    def _kept_nearer(
        self, name: str, problem: Problem, x: np.ndarray, found: np.ndarray
    ) -> np.ndarray:
        key = f"{self._norm.name}-{name}-nearest"
        return self._kept(key, lambda: Tried(nearer(problem, x, found, _BISECTIONS), found)).x

    def _undefended(self) -> np.ndarray:
        """Return the smallest changes that mislead the model alone, (N,)."""
        setting = self._setting.alone()
        best, x = np.full(len(setting.x), np.inf), setting.x.copy()
        for budget in self._largest * _UNDEFENDED:
            key = f"{self._norm.name}-{_UNDEFENDED_ATTACK}-{budget:.6g}"
            problem = self._problem(setting, budget, budget, key)
            rows = np.flatnonzero(np.isinf(best))
            if not len(rows):
                break

            def attack(problem: Problem = problem, rows: np.ndarray = rows) -> Tried:
                part = orthogonal(problem.rows(rows))
                moved, found = problem.x.copy(), np.zeros(len(problem.x), bool)
                moved[rows], found[rows] = part.x, part.found
                return Tried(moved, found)

            self._take_nearer(best, x, self._kept(key, attack))
        found = np.isfinite(best)
        problem = self._problem(setting, self._largest, self._largest, "alone")
        moved = nearer(problem, x, found, _BISECTIONS)
        return np.where(found, self._norm.distance(moved - setting.x), np.inf)

    def _budgets(self, alone: np.ndarray, given: Sequence[float] | None) -> np.ndarray:
        if given is None:
            chosen = np.array([float(f"{m * np.median(alone):.3g}") for m in _MULTIPLES])
            return chosen[chosen < self._largest]
        limits = np.asarray(given, np.float64)
        if limits.ndim != 1 or not len(limits) or (np.diff(limits, prepend=0) <= 0).any():
            raise InvalidArgumentError(
                f"The budgets in {self._norm.name} are changes above 0, ascending. Received: "
                f"{given}"
            )
        return limits

    def _problem(self, setting: _Setting, budget: float, step: float, key: str) -> Problem:
        text = f"{setting.seed} {key}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
        return Problem(
            pair=setting.pair,
            surrogate=setting.surrogate,
            substitute=setting.substitute,
            x=setting.x,
            y=setting.y,
            guides=setting.guides,
            norm=self._norm,
            budget=min(budget, self._largest),
            step=min(budget, step),
            bounds=setting.bounds,
            scales=setting.scales,
            effort=setting.effort,
            rng=np.random.default_rng(seed),
        )

    def _rest(
        self, key: str, attack: AdaptiveAttack, problem: Problem, reached: np.ndarray | None
    ) -> Tried:
        """Attack the images that no earlier attack without a bound has reached."""
        if reached is None or not reached.any() or attack.from_guides:
            return self._kept(key, lambda: attack.run(problem))
        rows = np.flatnonzero(~reached)
        x, found = problem.x.copy(), np.zeros(len(problem.x), bool)
        if len(rows):
            part = self._kept(key, lambda: attack.run(problem.rows(rows)))
            x[rows], found[rows] = part.x, part.found
        return Tried(x, found)

    def _kept(self, key: str, make: Callable[[], Tried]) -> Tried:
        """Return a part from the store; make and keep it if it is missing."""
        if self._store is not None and key in self._store:
            arrays = self._store.load(key)[1]
            return Tried(arrays["x"], arrays["found"])
        tried = make()
        if self._store is not None:
            self._store.save(key, {}, {"x": tried.x, "found": tried.found})
        return tried

    def _take_nearer(self, best: np.ndarray, x: np.ndarray, tried: Tried) -> None:
        """Take over, in place, successes that are nearer to their images."""
        distance = self._norm.distance(tried.x - self._setting.x)
        closer = tried.found & (distance < best)
        best[closer], x[closer] = distance[closer], tried.x[closer]


def _runs(
    attacks: Sequence[AdaptiveAttack], limits: np.ndarray
) -> Iterator[tuple[AdaptiveAttack, float]]:
    """Yield each attack with each budget; those that start at the image also without one."""
    white = _has_white(attacks)
    for attack in attacks:
        if attack.smallest:
            yield attack, np.inf
            continue
        for limit in limits:
            yield attack, float(limit)
        if not attack.from_guides and attack.kind == (WHITE if white else BLACK):
            yield attack, np.inf


def _has_white(attacks: Sequence[AdaptiveAttack]) -> bool:
    return any(attack.kind == WHITE and not attack.from_guides for attack in attacks)


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


def _check_rate(clean: np.ndarray) -> None:
    rate = float(np.mean(clean > 0))
    if rate > 0.5:
        raise InvalidArgumentError(
            f"The detector flags {rate:.0%} of the unchanged inputs: no attack could tell "
            "anything. Set its threshold by a false-positive rate."
        )


def _surrogate(
    im: InstrumentedModel, detector: Any, pair: Pair, bounds: tuple[float, float], rng: int
) -> Surrogate:
    if isinstance(detector, Detector) and detector.differentiable:
        return Surrogate(im, detector)
    return DifferenceSurrogate(pair, bounds, as_generator(rng))


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
    """Return the nearest normal input of another class on which the detector is silent."""
    classes = pair.im.logits(pool).argmax(axis=1)
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
    setting: _Setting, outcomes: Mapping[str, Outcome]
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
    setting: _Setting,
    detector: Any,
    substitute: Detector | None,
    clean: np.ndarray,
) -> Store:
    data = hashlib.sha256()
    for array in (setting.x, setting.y, setting.guides):
        data.update(np.ascontiguousarray(array).tobytes())
    identity = {
        "model": setting.pair.im.fingerprint,
        "detector": type(detector).__name__,
        "scores": f"{clean.mean():.4g}, {clean.std():.4g}",
        "substitute": None if substitute is None else f"{substitute.threshold_:.4g}",
        "data": data.hexdigest(),
        "effort": asdict(setting.effort),
        "seed": setting.seed,
    }
    return Store(folder, identity, "part of a challenge")
