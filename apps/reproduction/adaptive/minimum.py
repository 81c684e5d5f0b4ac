"""White-box attacks that minimise the change, for all budgets at once.

Fast minimum-norm attacks (Pintor et al., NeurIPS 2021) on a pair: a radius bounds the change; it
shrinks where the pair is evaded and grows elsewhere. Steps pursue the farther goal, a wrong model
or a silent detector, along the gradient itself; its sign would change all elements, and those that
should not change, such as a black background, would not move back.

Minimum starts at the image, approach at the nearest success of other attacks or a normal image of
another class. Both restart `rounds` times from the smallest change so far, at the cost of `rounds`
· `steps` gradients.
"""

import numpy as np
from scipy.special import expit

from reproduction.adaptive.gradient import GENTLE, STEEP, hits, normed
from reproduction.adaptive.problem import Nearest, Problem, Tried, column, nearer

_BISECTIONS = 10
# Length of the first and the last step, as shares of the largest budget, both root mean square
# over elements.
_FIRST, _LAST = 0.08, 0.0008
# Distances to the goals that differ by less than this share of the largest budget count as equal.
_WIDTH = 0.01
_TINY = 1e-12
_CLOSER = 1e-3  # a change must be smaller by this share to count as smaller
# Share by which the radius shrinks or grows, at the first and the last step of a round.
_FASTEST, _SLOWEST = 0.05, 0.001
# Later rounds only refine: their first steps and shares are smaller by this factor.
_LATER = 0.4


def minimum(problem: Problem) -> Tried:
    """Find the smallest change, starting at the image."""
    return _shrink(problem, problem.x, wide=0)


def approach(problem: Problem) -> Tried:
    """Find the smallest change, starting at the guides."""
    found = problem.pair.succeeds(problem.guides, problem.y)
    return _shrink(problem, nearer(problem, problem.guides, found, _BISECTIONS), wide=1)


def _shrink(problem: Problem, start: np.ndarray, wide: int) -> Tried:
    """Run all rounds, each from long to short steps; round number `wide` takes the longest."""
    best = Nearest(problem, start)
    steps, elements = problem.effort.steps, np.prod(start.shape[1:])
    unit = problem.step_per_element
    width = float(_WIDTH * unit * np.sqrt(elements))
    for number in range(problem.effort.rounds):
        scale = 1.0 if number == wide else _LATER
        x, radius = best.x.copy(), np.minimum(best.sizes, problem.budget)
        for step in range(steps):
            done = step / max(steps - 1, 1)
            left = (1 + np.cos(np.pi * done)) / 2
            size = unit * (_LAST + (_FIRST * scale - _LAST) * left)
            share = _SLOWEST + (_FASTEST * scale - _SLOWEST) * left
            steepness = GENTLE + (STEEP - GENTLE) * done
            values = problem.pair.values(x, problem.y, steepness, size)
            sizes = problem.norm.distance(x - problem.x)
            evaded = (values.margin < 0) & (values.excess <= 0)
            # Checking costs as much as a gradient, so only smaller changes are checked.
            smaller = sizes < best.sizes * (1 - _CLOSER)
            rows = np.flatnonzero(smaller)
            if len(rows):
                evaded[rows] = hits(problem, x[rows], rows, values.rows(rows), thorough=False)
                best.take(Tried(x, evaded & smaller))
                best.x[~best.found] = x[~best.found]  # the latest attempts
            shrunk, grown = np.minimum(radius, sizes) * (1 - share), radius * (1 + share)
            radius = np.minimum(np.where(evaded, shrunk, grown), best.sizes)
            # The direction is the gradient of the goal that is farther away, its distance being its
            # value divided by the gradient's length; within `width` of equal distance, a mix of
            # both, as alternating steps would stall far from the smallest change.
            gradients = values.margin_gradient, values.excess_gradient
            lengths = [np.linalg.norm(g.reshape(len(g), -1), axis=1) + _TINY for g in gradients]
            apart = values.margin / lengths[0] - values.excess / lengths[1]
            of_margin = column(expit(apart / width), x)
            margin, excess = map(normed, gradients)
            way = normed(of_margin * margin + (1 - of_margin) * excess)
            moved = x - size * np.sqrt(elements) * way
            change = problem.norm.project(moved - problem.x, radius)
            x = np.clip(problem.x + change, *problem.bounds).astype(np.float32)
    return Tried(best.x, best.found & (best.sizes <= problem.budget * (1 + 1e-6)))
