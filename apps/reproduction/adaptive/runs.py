"""`Run`: the adaptive attacks in one norm, budget by budget, saved as they finish."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from nnslicer_tf._environment import track
from nnslicer_tf._files import digest
from nnslicer_tf.engine import Store
from reproduction.adaptive.gradient import orthogonal
from reproduction.adaptive.minimum import minimum
from reproduction.adaptive.pair import Pair
from reproduction.adaptive.problem import NORMS, Nearest, Problem, Tried, nearer
from reproduction.adaptive.result import Outcome
from reproduction.adaptive.table import BLACK, WHITE, AdaptiveAttack

# Budgets, as multiples of the median smallest change that misleads the undefended model.
_MULTIPLES = (1.0, 1.5, 2.0, 4.0)
# Budgets of the attack on the undefended model, as shares of the largest change.
_UNDEFENDED = 2.0 ** np.arange(-9, 0.5)
_BISECTIONS = 6


class Run:
    """The attacks in one norm; a store saves finished parts."""

    def __init__(self, problem: Problem, norm: str, store: Store | None, progress: bool) -> None:
        self._base = replace(problem, norm=NORMS[norm])
        self._norm, self._store, self._progress = NORMS[norm], store, progress
        low, high = problem.bounds
        self._largest = (high - low) * self._norm.spread(problem.x.shape[1:])

    def outcome(self, attacks: Sequence[AdaptiveAttack], budgets: np.ndarray | None) -> Outcome:
        """Run the attacks; by default, budgets are derived from the undefended model."""
        alone = self._undefended()
        limits = budgets
        if limits is None:
            limits = np.array([float(f"{m * np.median(alone):.3g}") for m in _MULTIPLES])
            limits = limits[limits < self._largest]
        # Each attack with each budget; those that start at the image also unbounded.
        has_white = any(attack.kind == WHITE and not attack.from_guides for attack in attacks)
        from_images = WHITE if has_white else BLACK
        runs = []
        for attack in sorted(attacks, key=lambda one: one.refines):
            unbounded = not attack.from_guides and attack.kind == from_images
            if not attack.smallest:
                runs += [(attack, float(limit)) for limit in limits]
            if attack.smallest or unbounded:
                runs.append((attack, np.inf))
        parts: list[tuple[str, Tried]] = []
        rows: list[tuple[str, float, float, float]] = []
        reached = {limit: np.zeros(len(alone), bool) for limit in (*limits, np.inf)}
        for attack, limit in track(runs, self._norm.name, len(runs), self._progress):
            key = f"{self._norm.name}-{attack.name}-{limit:.6g}"
            problem = self._problem(self._base, limit, limits.max(), key)
            if attack.refines:
                nearest = Nearest(problem, problem.guides)
                for _, tried in parts:
                    nearest.take(tried)
                problem = replace(problem, guides=nearest.x)
            # Unbounded, later attacks run only on the images not yet reached.
            partial_run = np.isinf(limit) and not attack.smallest and reached[limit].any()
            if partial_run:
                missing = np.flatnonzero(~reached[limit])
                tried = Tried(problem.x.copy(), np.zeros(len(problem.x), bool))
                if len(missing):
                    some = problem.rows(missing)
                    part = self._kept(key, some, partial(attack.run, some))
                    tried.x[missing], tried.found[missing] = part
            else:
                tried = self._kept(key, problem, partial(attack.run, problem))
            parts.append((attack.name, tried))
            if not attack.from_guides and attack.kind == from_images:
                sizes = self._norm.distance(tried.x - problem.x)
                for budget in reached if attack.smallest else [limit]:
                    reached[budget] |= tried.found & (sizes <= budget * (1 + 1e-5))
            success = np.nan if partial_run else np.mean(tried.found)
            rows.append((attack.name, limit, float(success), float(np.mean(reached[limit]))))
        # The smallest changes over all budgets, refined by bisection.
        problem = self._problem(self._base, self._largest, self._largest, "summed")
        best = Nearest(problem, problem.x)
        distances: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for name, _ in parts):
            nearest = Nearest(problem, problem.x)
            for tried in (tried for of, tried in parts if of == name):
                nearest.take(tried)
            key, x, found = f"{self._norm.name}-{name}-nearest", nearest.x, nearest.found
            moved = self._kept(key, problem, partial(_refined, problem, x, found), x, found).x
            distances[name] = np.where(found, self._norm.distance(moved - problem.x), np.inf)
            best.take(Tried(moved, found))
        undefended = np.minimum(alone, best.sizes)  # what evades the pair misleads the model
        frame = pd.DataFrame(rows, columns=["attack", "budget", "success", "together"])
        return Outcome(limits, undefended, distances, frame, best.x)

    def _undefended(self) -> np.ndarray:
        """Return the smallest changes that mislead the model alone, (N,), by ascending budget."""
        alone = replace(self._base, pair=Pair(self._base.pair.im), substitute=None)
        best = Nearest(alone, alone.x)
        for budget in self._largest * _UNDEFENDED:
            key = f"{self._norm.name}-undefended-{budget:.6g}"
            problem = self._problem(alone, budget, budget, key)
            rows = np.flatnonzero(best.sizes > budget)
            if len(rows):
                best.take(self._kept(key, problem, partial(_attack_some, problem, rows), rows))
        usual = np.median(best.sizes[best.found]) if best.found.any() else self._largest
        problem = self._problem(alone, self._largest, _MULTIPLES[-1] * usual, "alone")
        # Searched as thoroughly as the pair, so that the two are comparable.
        key = f"{self._norm.name}-undefended-minimum"
        best.take(self._kept(key, problem, partial(minimum, problem)))
        moved = nearer(problem, best.x, best.found, _BISECTIONS)
        return np.where(best.found, self._norm.distance(moved - alone.x), np.inf)

    def _problem(self, problem: Problem, budget: float, step: float, key: str) -> Problem:
        text = f"{problem.seed} {key}".encode()
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:4], "big"))
        budget, step = min(budget, self._largest), min(budget, step)
        return replace(problem, budget=budget, step=step, rng=rng)

    def _kept(
        self, name: str, problem: Problem, make: Callable[[], Tried], *arrays: np.ndarray
    ) -> Tried:
        """Return a part from the store, or compute and save it; `arrays` are further inputs."""
        if self._store is None:
            return make()
        # With other budgets or attacks, a part of the same name may start from other inputs.
        numbers = [float(number) for number in (*problem.bounds, problem.budget, problem.step)]
        inputs = [problem.x, problem.y, problem.guides, *arrays]
        made_from: list[bytes | np.ndarray] = [repr(numbers).encode(), *inputs]
        key = f"{name}-{digest(made_from)[:12]}"
        if key in self._store:
            with self._store.open(key) as file:
                x = file.array("x", np.floating, problem.x.shape)
                return Tried(x, file.array("found", np.bool_, (len(x),)))
        tried = make()
        self._store.save(key, {}, {"x": tried.x, "found": tried.found})
        return tried


def _attack_some(problem: Problem, rows: np.ndarray) -> Tried:
    """Attack some of the images with orthogonal PGD and leave the others unchanged."""
    x, found = problem.x.copy(), np.zeros(len(problem.x), bool)
    x[rows], found[rows] = orthogonal(problem.rows(rows))
    return Tried(x, found)


def _refined(problem: Problem, x: np.ndarray, found: np.ndarray) -> Tried:
    return Tried(nearer(problem, x, found, _BISECTIONS), found)
