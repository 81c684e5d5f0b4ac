"""ADef: adversarial deformations (Alaifari, Alberti, Gauksson, ICLR 2019, algorithm 1).

A smooth vector field τ deforms an image, x(s) ↦ x(s + τ(s)). To first order, the logit difference f
to another class changes by ⟨α, τ⟩ with α the product of f's gradient and the image's derivative.
The smoothed field of least norm that brings f to zero is applied repeatedly, with one gradient per
candidate class and step for all images not yet misclassified.
"""

from dataclasses import dataclass

import numpy as np
from foolbox.distances import linf
from scipy.ndimage import gaussian_filter

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer.attacks.array_attack import ArrayAttack, Query


@dataclass(eq=False)
class ADefAttack(ArrayAttack):
    """ADef, as a Foolbox attack."""

    steps: int = 50  # largest number of deformations
    candidates: int = 10  # number of classes considered, including the label's
    # standard deviation in pixels of the field's Gaussian smoothing; 0 for none
    smoothness: float = 1.0
    max_shift: float = 3.0  # largest total displacement in pixels; the attack gives up beyond it
    overshoot: float = 0.1  # the field is multiplied by 1 + overshoot, to pass the boundary
    distance = linf

    def __post_init__(self) -> None:
        numbers = self.steps, self.candidates, self.smoothness, self.max_shift
        if self.steps < 1 or self.candidates < 2 or self.smoothness < 0 or self.max_shift <= 0:
            raise InvalidArgumentError(
                "ADef needs steps ≥ 1, candidates ≥ 2, smoothness ≥ 0 and max_shift > 0. "
                f"Received: {', '.join(map(str, numbers))}"
            )

    def perturb(self, query: Query, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the attacked images."""
        logits = query.logits(x)
        active = np.flatnonzero(logits.argmax(axis=1) == labels)
        logits[np.arange(len(x)), labels] = -np.inf
        others = np.argsort(-logits, axis=1)[:, : min(self.candidates, logits.shape[1]) - 1]
        shift = np.zeros((*x.shape[:3], 2))
        for _ in range(self.steps):
            if not len(active):
                break
            field = self._field(query, x[active], labels[active], others[active])
            shift[active] += field
            kept = np.linalg.norm(shift[active], axis=-1).max(axis=(1, 2)) <= self.max_shift
            active, field = active[kept], field[kept]
            x[active] = np.clip(deform(x[active], field), query.low, query.high)
            if len(active):
                active = active[query.predict(x[active]) == labels[active]]
        return x

    def _field(
        self, query: Query, x: np.ndarray, labels: np.ndarray, others: np.ndarray
    ) -> np.ndarray:
        """Return the smallest field (N, height, width, 2) towards any candidate class."""
        logits = query.logits(x)
        rows = np.arange(len(x))
        slopes = np.stack(np.gradient(x, axis=(1, 2)), axis=-1)
        best = np.zeros((*x.shape[:3], 2))
        smallest = np.full(len(x), np.inf)
        for other in others.T:
            weights = np.zeros_like(logits)
            weights[rows, other] = 1
            weights[rows, labels] = -1
            difference = logits[rows, other] - logits[rows, labels]
            alpha = np.einsum("nhwc,nhwcd->nhwd", query.gradient(x, weights), slopes)
            smooth = self._smooth(alpha)
            scale = -difference / ((smooth**2).sum(axis=(1, 2, 3)) + 1e-12)
            field = (1 + self.overshoot) * scale[:, None, None, None] * self._smooth(smooth)
            size = np.linalg.norm(field, axis=-1).max(axis=(1, 2))
            better = size < smallest
            best[better], smallest[better] = field[better], size[better]
        return best

    def _smooth(self, field: np.ndarray) -> np.ndarray:
        # Zero outside the image makes the filter its own adjoint, as the derivation needs.
        sigma = (0, self.smoothness, self.smoothness, 0)
        return gaussian_filter(field, sigma, mode="constant")


def deform(x: np.ndarray, field: np.ndarray) -> np.ndarray:
    """Return x(s + field(s)), bilinear with repeated edges; the field is (N, height, width, 2)."""
    count, height, width, _ = x.shape
    rows = np.clip(np.arange(height)[:, None] + field[..., 0], 0, height - 1)
    columns = np.clip(np.arange(width) + field[..., 1], 0, width - 1)
    top = np.minimum(rows.astype(int), max(height - 2, 0))
    left = np.minimum(columns.astype(int), max(width - 2, 0))
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    below, beside = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    n = np.arange(count)[:, None, None]
    upper = x[n, top, left] * (1 - right) + x[n, top, beside] * right
    lower = x[n, below, left] * (1 - right) + x[n, below, beside] * right
    return upper * (1 - down) + lower * down
