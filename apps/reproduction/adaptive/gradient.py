"""White-box attacks on a model and its detector: descent within a budget.

- Orthogonal PGD (Bryniarski et al., ICLR 2022): lowers the margin while the model is right, else
  the detector's score, along a gradient orthogonal to that of the other. Selective PGD (same
  paper): the same without the projection.
- Weighted sum (Carlini and Wagner, AISec 2017): lowers a weighted sum of the two; the weight is
  searched for each image.
- Feature matching (Sabour et al., ICLR 2016): starts as near a normal image of another class as the
  budget allows, approaches its representation, then runs orthogonal PGD.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from reproduction.adaptive.pair import Values
from reproduction.adaptive.problem import Problem, Tried, column

Direction = Callable[[Values, np.ndarray, np.ndarray, float], np.ndarray]
"""Values, inputs, indices of their images, share of the steps done → direction to descend."""

# First and last step size, as shares of the budget.
_FIRST, _LAST = 0.4, 0.01
# Longest step per element, as a share of the bounds' span; a long one along the gradient's sign
# changes elements that should stay as they are, and they do not move back.
_MAX_STEP = 0.04
# Steepness of the smoothed sign function of slices, at the first and the last step.
GENTLE, STEEP = 1.0, 4.0
# The true detector checks misclassified inputs whose surrogate score exceeds the threshold by at
# most this slack, in spreads of the scores; every so many steps it checks all misclassified inputs.
_THOROUGH, _SLACK = 10, 0.1
_TINY = 1e-20


def orthogonal(problem: Problem) -> Tried:
    """Attack by orthogonal PGD."""
    return descend(problem, problem.x, orthogonal_way)


def selective(problem: Problem) -> Tried:
    """Attack by selective PGD."""

    def way(values: Values, x: np.ndarray, index: np.ndarray, done: float) -> np.ndarray:
        wrong = column(values.margin < 0, x)
        return np.where(wrong, values.excess_gradient, values.margin_gradient)

    return descend(problem, problem.x, way)


def weighted(problem: Problem) -> Tried:
    """Attack by descent on a weighted sum, with bisection of the weight for each image."""

    def way(
        weights: np.ndarray, values: Values, x: np.ndarray, index: np.ndarray, done: float
    ) -> np.ndarray:
        share = column(weights[index], x)
        return share * normed(values.margin_gradient) + (1 - share) * normed(values.excess_gradient)

    low, high = np.zeros(len(problem.x)), np.ones(len(problem.x))
    x, found = problem.x.copy(), np.zeros(len(problem.x), bool)
    for _ in range(problem.effort.rounds):
        rows = np.flatnonzero(~found)
        if not len(rows):
            break
        weights = (low + high)[rows] / 2
        part = problem.rows(rows)
        tried = descend(part, part.x, partial(way, weights))
        x[rows], found[rows] = tried
        wrong = part.pair.margins(tried.x, part.y) < 0
        # Where the model is still right, its margin needs more weight.
        low[rows] = np.where(wrong, low[rows], weights)
        high[rows] = np.where(wrong, weights, high[rows])
    return Tried(x, found)


def matching(problem: Problem) -> Tried:
    """Attack by feature matching, starting near a normal image of another class."""
    goals = problem.pair.representation(problem.guides)

    def way(values: Values, x: np.ndarray, index: np.ndarray, done: float) -> np.ndarray:
        if done < 0.5:
            return problem.pair.toward(x, goals[index])
        return orthogonal_way(values, x, index, done)

    nearest = problem.within(problem.guides)  # that the budget allows
    return descend(problem, nearest, way)


def transfer(problem: Problem) -> Tried:
    """Attack a substitute by orthogonal PGD; the true pair judges the results."""
    assert problem.substitute is not None  # without one, the attack is not run
    x = orthogonal(replace(problem, pair=problem.substitute)).x
    return Tried(x, problem.pair.succeeds(x, problem.y))


def descend(problem: Problem, start: np.ndarray, direction: Direction) -> Tried:
    """Step against a direction, within the budget, until the pair is evaded."""
    x, found = start.copy(), np.zeros(len(start), bool)
    active, steps = np.arange(len(x)), problem.effort.steps
    spread = problem.norm.spread(x.shape[1:])
    longest = _MAX_STEP * (problem.bounds[1] - problem.bounds[0]) * spread
    for step in range(steps):
        done = step / max(steps - 1, 1)
        size = problem.step * (_LAST + (_FIRST - _LAST) * (1 + np.cos(np.pi * done)) / 2)
        size = min(size, longest)
        steepness, radius = GENTLE + (STEEP - GENTLE) * done, float(size / spread)
        values = problem.pair.values(x[active], problem.y[active], steepness, radius)
        hit = hits(problem, x[active], active, values, step % _THOROUGH == 0)
        found[active[hit]] = True
        way = direction(values, x[active], active, done)[~hit]
        active = active[~hit]
        if not len(active):
            break
        x[active] = problem.within(x[active] - size * problem.norm.unit(way), active)
    if len(active):
        found[active] = problem.pair.succeeds(x[active], problem.y[active])
    return Tried(x, found)


def hits(
    problem: Problem, x: np.ndarray, index: np.ndarray, values: Values, thorough: bool
) -> np.ndarray:
    """Return which inputs evade the pair; only apparent successes are checked."""
    hit = values.margin < 0
    if not thorough:
        hit &= values.excess <= _SLACK * problem.scales[1]
    rows = np.flatnonzero(hit)
    if len(rows):
        hit[rows] = problem.pair.succeeds(x[rows], problem.y[index[rows]])
    return hit


def orthogonal_way(values: Values, x: np.ndarray, index: np.ndarray, done: float) -> np.ndarray:
    """Return the gradient of one score, orthogonal to that of the other; see `descend`."""
    wrong = column(values.margin < 0, x)
    one, other = values.margin_gradient, values.excess_gradient
    way, kept = np.where(wrong, other, one), np.where(wrong, one, other)
    axes = tuple(range(1, x.ndim))
    share = (way * kept).sum(axis=axes) / np.maximum((kept**2).sum(axis=axes), _TINY)
    return way - column(share, x) * kept


def normed(gradient: np.ndarray) -> np.ndarray:
    """Return the gradients scaled to length 1; zero gradients stay zero."""
    size = np.sqrt((gradient**2).sum(axis=tuple(range(1, gradient.ndim))))
    return gradient / column(np.maximum(size, _TINY), gradient)
