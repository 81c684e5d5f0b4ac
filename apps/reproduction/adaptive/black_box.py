"""Black-box attacks on a model and its detector, which query only scores or decisions.

- Square: random search with square windows (Andriushchenko et al., ECCV 2020); for L2, simplified:
  the windows are projected back into the ball.
- NES: gradients estimated from pairs of random directions (Ilyas et al., ICML 2018).
- Decision: a random walk from a normal image of another class (Brendel et al., ICLR 2018).

Cost: `queries` scored inputs per image.
"""

import numpy as np

from reproduction.adaptive.pair import slope_sum
from reproduction.adaptive.problem import Problem, Tried, column, nearer

# Share of the pixels in the first window of the square attack; it shrinks as queries are used up.
_WINDOW = 0.3
_PAIRS = 10  # of directions, for a gradient of NES
_BISECTIONS = 10


def objective(problem: Problem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return max(margin, excess), each divided by its spread, (N,) float64: below 0 is evasion."""
    of_margin, of_excess = problem.scales
    margins = problem.pair.margins(x, y) / of_margin
    return np.maximum(margins, problem.pair.excess(x) / of_excess)


def square(problem: Problem) -> Tried:
    """Run the square attack."""
    x, rng = problem.x, problem.rng
    shape = x.shape[1:] if x.ndim == 4 else (int(np.prod(x.shape[1:])), 1, 1)
    height, width, channels = shape
    # The size of a change, per element.
    amplitude = problem.step
    if problem.norm.name != "linf":
        amplitude /= np.sqrt(max(np.prod(shape) * _WINDOW / 4, 1))
    # Start from vertical stripes of random sign, as strong as the budget allows.
    signs = rng.choice([-1.0, 1.0], (len(x), 1, width, channels)).astype(np.float32)
    striped = x.reshape(-1, *shape) + amplitude * signs
    x = problem.within(striped.reshape(x.shape))
    loss = objective(problem, x, problem.y)
    for query in range(problem.effort.queries):
        active = np.flatnonzero(loss >= 0)
        if not len(active):
            break
        # Change one square window of each input, its sign random per channel.
        share = _WINDOW * 0.5 ** np.floor(6 * query / problem.effort.queries)
        side = int(np.clip(np.sqrt(share * height * width), 1, min(height, width)))
        if min(height, width) == 1:
            side = max(int(share * max(height, width)), 1)
        rows, columns = min(side, height), min(side, width)
        images = x[active].reshape(-1, *shape).copy()
        for image in images:
            top, left = rng.integers(height - rows + 1), rng.integers(width - columns + 1)
            window_signs = rng.choice([-1.0, 1.0], channels)
            image[top : top + rows, left : left + columns] += 2 * amplitude * window_signs
        moved = problem.within(images.reshape(-1, *x.shape[1:]), active)
        new = objective(problem, moved, problem.y[active])
        better = new < loss[active]
        x[active[better]], loss[active[better]] = moved[better], new[better]
    return Tried(x, problem.pair.succeeds(x, problem.y))


def nes(problem: Problem) -> Tried:
    """Run the NES attack."""
    x, found = problem.x.copy(), np.zeros(len(problem.x), bool)
    steps = max(problem.effort.queries // (2 * _PAIRS), 1)
    radius = problem.step_per_element / 4
    active = np.arange(len(x))
    for step in range(steps):
        directions = problem.rng.normal(size=(_PAIRS, *x[active].shape)).astype(np.float32)
        labels = problem.y[active]

        def lowered(moved: np.ndarray, labels: np.ndarray = labels) -> np.ndarray:
            return objective(problem, np.clip(moved, *problem.bounds), labels)

        gradient = slope_sum(lowered, x[active], directions, radius).astype(np.float32)
        size = problem.step * (0.4 - 0.35 * step / steps)
        x[active] = problem.within(x[active] - size * problem.norm.unit(gradient), active)
        found[active] = problem.pair.succeeds(x[active], problem.y[active])
        active = active[~found[active]]
        if not len(active):
            break
    return Tried(x, found)


def decision(problem: Problem) -> Tried:
    """Run the decision attack: start at the guides and reduce the change."""
    x = problem.guides.copy()
    found = problem.pair.succeeds(x, problem.y)
    x = nearer(problem, x, found, _BISECTIONS)
    step = np.full(len(x), 0.1)
    for _ in range(problem.effort.queries):
        delta = x - problem.x
        size = problem.norm.distance(delta)
        noise = problem.rng.normal(size=x.shape).astype(np.float32)
        noise *= column(step * size / np.sqrt(np.prod(x.shape[1:])), x)
        shrunk = problem.norm.project(delta + noise, size * (1 - step / 5))
        moved = np.clip(problem.x + shrunk, *problem.bounds)
        closer = problem.norm.distance(moved - problem.x) < size
        better = found & closer & problem.pair.succeeds(moved, problem.y)
        x[better] = moved[better]
        step = np.clip(np.where(better, step * 1.2, step * 0.95), 1e-3, 0.5)
    return Tried(x, found)
