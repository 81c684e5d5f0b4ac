"""`Run`: the adaptive attacks in one norm, budget by budget, saved as they finish."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from nnslicer_tf._environment import track
from nnslicer_tf._files import digest
from nnslicer_tf.detection.adaptive.black_box import nearer
from nnslicer_tf.detection.adaptive.gradient import orthogonal
from nnslicer_tf.detection.adaptive.minimum import minimum
from nnslicer_tf.detection.adaptive.norms import NORMS
from nnslicer_tf.detection.adaptive.pair import Pair
from nnslicer_tf.detection.adaptive.problem import Problem, Setting, Tried
from nnslicer_tf.detection.adaptive.result import Outcome
from nnslicer_tf.detection.adaptive.surrogate import Surrogate
from nnslicer_tf.detection.adaptive.table import BLACK, WHITE, AdaptiveAttack
from nnslicer_tf.engine import Store

# Budgets, as multiples of the median smallest change that misleads the undefended model.
_MULTIPLES = (1.0, 1.5, 2.0, 4.0)
# Budgets of the attack on the undefended model, as shares of the largest change.
_UNDEFENDED = 2.0 ** np.arange(-9, 0.5)
_BISECTIONS = 6
_UNDEFENDED_ATTACK = "undefended"


class Run:
    """The attacks in one norm.

    Args:
        setting: What is attacked.
        norm: Name of the norm.
        store: Keeps finished parts; None: nothing is kept.
        progress: Show a progress bar.
    """

    def __init__(self, setting: Setting, norm: str, store: Store | None, progress: bool) -> None:
        self._setting, self._norm, self._store = setting, NORMS[norm], store
        self._progress = progress
        low, high = setting.bounds
        self._largest = self._norm.largest(setting.x.shape[1:], high - low)

    def outcome(self, attacks: Sequence[AdaptiveAttack], budgets: np.ndarray | None) -> Outcome:
        """Run the attacks; by default, budgets are derived from the undefended model."""
        alone = self._undefended(self._largest * _UNDEFENDED)
        limits = budgets
        if limits is None:
            limits = np.array([float(f"{m * np.median(alone):.3g}") for m in _MULTIPLES])
            limits = limits[limits < self._largest]
        parts: list[tuple[str, Tried]] = []
        rows: list[tuple[str, float, float, float]] = []
        runs = list(_runs(attacks, limits))
        from_images = WHITE if _has_white(attacks) else BLACK
        reached = {limit: np.zeros(len(alone), bool) for limit in (*limits, np.inf)}
        for attack, limit in track(runs, self._norm.name, len(runs), self._progress):
            key = f"{self._norm.name}-{attack.name}-{limit:.6g}"
            problem = self._problem(self._setting, limit, limits.max(), key)
            if attack.refines:
                best, x = np.full(len(alone), np.inf), self._setting.guides.copy()
                for _, tried in parts:
                    self._take_nearer(best, x, tried)
                problem = replace(problem, guides=x)
            partial_run = np.isinf(limit) and not attack.smallest and reached[limit].any()
            if partial_run:
                missing = np.flatnonzero(~reached[limit])
                tried = Tried(problem.x.copy(), np.zeros(len(problem.x), bool))
                if len(missing):
                    some = problem.rows(missing)
                    part = self._kept(key, some, partial(attack.run, some))
                    tried.x[missing], tried.found[missing] = part.x, part.found
            else:
                tried = self._kept(key, problem, partial(attack.run, problem))
            parts.append((attack.name, tried))
            if not attack.from_guides and attack.kind == from_images:
                self._reach(reached, [limit] if not attack.smallest else list(reached), tried)
            # Unbounded, later attacks run only on the images not yet reached.
            success = np.nan if partial_run else np.mean(tried.found)
            rows.append((attack.name, limit, float(success), float(np.mean(reached[limit]))))
        return self._summed(alone, limits, parts, rows)

    def _summed(
        self, alone: np.ndarray, limits: np.ndarray, parts: list[tuple[str, Tried]], rows: list
    ) -> Outcome:
        """Return the smallest changes over all budgets, refined by bisection."""
        setting = self._setting
        problem = self._problem(setting, self._largest, self._largest, "summed")
        examples, nearest = setting.x.copy(), np.full(len(setting.x), np.inf)
        distances: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for name, _ in parts):
            best, x = np.full(len(setting.x), np.inf), setting.x.copy()
            for tried in (tried for of, tried in parts if of == name):
                self._take_nearer(best, x, tried)
            found = np.isfinite(best)
            key = f"{self._norm.name}-{name}-nearest"
            make = partial(_nearer, problem, x, found)
            moved = self._kept(key, problem, make, x, found).x
            best = np.where(found, self._norm.distance(moved - setting.x), np.inf)
            distances[name] = best
            closer = best < nearest
            examples[closer], nearest[closer] = moved[closer], best[closer]
        undefended = np.minimum(alone, nearest)  # what evades the pair misleads the model
        frame = pd.DataFrame(rows, columns=["attack", "budget", "success", "together"])
        return Outcome(limits, undefended, distances, frame, examples)

    def _undefended(self, budgets: np.ndarray) -> np.ndarray:
        """Return the smallest changes that mislead the model alone, (N,).

        Args:
            budgets: The budgets to try, ascending; an image is attacked until one succeeds.
        """
        im = self._setting.pair.im
        setting = replace(
            self._setting, pair=Pair(im, None), surrogate=Surrogate(im, None), substitute=None
        )
        best, x = np.full(len(setting.x), np.inf), setting.x.copy()
        for budget in budgets:
            key = f"{self._norm.name}-{_UNDEFENDED_ATTACK}-{budget:.6g}"
            problem = self._problem(setting, budget, budget, key)
            rows = np.flatnonzero(best > budget)
            if len(rows):
                attack = partial(_attack_some, problem, rows)
                self._take_nearer(best, x, self._kept(key, problem, attack, rows))
        found = np.isfinite(best)
        usual = np.median(best[found]) if found.any() else self._largest
        problem = self._problem(setting, self._largest, _MULTIPLES[-1] * usual, "alone")
        # Searched as thoroughly as the pair, so that the two are comparable.
        key = f"{self._norm.name}-{_UNDEFENDED_ATTACK}-minimum"
        self._take_nearer(best, x, self._kept(key, problem, partial(minimum, problem)))
        moved = nearer(problem, x, np.isfinite(best), _BISECTIONS)
        return np.where(np.isfinite(best), self._norm.distance(moved - setting.x), np.inf)

    def _problem(self, setting: Setting, budget: float, step: float, key: str) -> Problem:
        text = f"{setting.seed} {key}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
        return Problem(
            **vars(setting),
            norm=self._norm,
            budget=min(budget, self._largest),
            step=min(budget, step),
            rng=np.random.default_rng(seed),
        )

    def _reach(
        self, reached: dict[float, np.ndarray], budgets: Sequence[float], tried: Tried
    ) -> None:
        """Record, in place, on which images an attack succeeded within each budget."""
        sizes = self._norm.distance(tried.x - self._setting.x)
        for budget in budgets:
            reached[budget] |= tried.found & (sizes <= budget * (1 + 1e-5))

    def _kept(
        self, name: str, problem: Problem, make: Callable[[], Tried], *given: np.ndarray
    ) -> Tried:
        """Return a part from the store; compute and save it if it is missing.

        Args:
            name: Name of the part.
            problem: The problem that it solves.
            make: Computes it.
            *given: What it is computed from besides the problem.
        """
        if self._store is None:
            return make()
        # With other budgets or attacks, a part of the same name may start from other inputs.
        key = f"{name}-{_digest(problem, *given)}"
        if key in self._store:
            with self._store.open(key) as file:
                x = file.array("x", np.floating, problem.x.shape)
                return Tried(x, file.array("found", np.bool_, (len(x),)))
        tried = make()
        self._store.save(key, {}, {"x": tried.x, "found": tried.found})
        return tried

    def _take_nearer(self, best: np.ndarray, x: np.ndarray, tried: Tried) -> None:
        """Record, in place, successes that are nearer to their images."""
        distance = self._norm.distance(tried.x - self._setting.x)
        closer = tried.found & (distance < best)
        best[closer], x[closer] = distance[closer], tried.x[closer]


def _digest(problem: Problem, *given: np.ndarray) -> str:
    """Return a digest of what varies between problems in one store, and of further arrays."""
    numbers = [float(number) for number in (*problem.bounds, problem.budget, problem.step)]
    arrays = (problem.x, problem.y, problem.guides, *given)
    return digest([repr(numbers).encode(), *arrays])[:12]


def _nearer(problem: Problem, x: np.ndarray, found: np.ndarray) -> Tried:
    return Tried(nearer(problem, x, found, _BISECTIONS), found)


def _attack_some(problem: Problem, rows: np.ndarray) -> Tried:
    """Attack some of the images with orthogonal PGD, and leave the others unchanged."""
    x, found = problem.x.copy(), np.zeros(len(problem.x), bool)
    part = orthogonal(problem.rows(rows))
    x[rows], found[rows] = part.x, part.found
    return Tried(x, found)


def _runs(
    attacks: Sequence[AdaptiveAttack], limits: np.ndarray
) -> Iterator[tuple[AdaptiveAttack, float]]:
    """Yield each attack with each budget; those that start at the image also unbounded."""
    white = _has_white(attacks)
    for attack in sorted(attacks, key=lambda one: one.refines):
        if attack.smallest:
            yield attack, np.inf
            continue
        for limit in limits:
            yield attack, float(limit)
        if not attack.from_guides and attack.kind == (WHITE if white else BLACK):
            yield attack, np.inf


def _has_white(attacks: Sequence[AdaptiveAttack]) -> bool:
    return any(attack.kind == WHITE and not attack.from_guides for attack in attacks)
