"""The Jacobian-based saliency map attack (Papernot et al., EuroS&P 2016, algorithms 2 and 3).

In every step the pair of values that most raises the target class's logit and lowers the others is
set to its maximum. It is chosen among the best values by three orderings, not among all pairs. A
step costs two gradients for all images not yet misclassified.
"""

import numpy as np
from foolbox.distances import l0

from nnslicer_tf._checks import check_number
from reproduction.nnslicer.attacks.array_attack import ArrayAttack, Query

_CANDIDATES = 32  # from each of the three orderings


class JSMAAttack(ArrayAttack):
    """JSMA, towards the second most likely class; at most `share` of the values, (0, 1], change."""

    distance = l0

    def __init__(self, share: float = 0.145):
        self.share = check_number("share", share, "(0, 1]")

    def perturb(self, query: Query, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the attacked images."""
        flat = x.reshape(len(x), -1)  # a view: writing to it writes to x
        logits = query.logits(x)
        classes = logits.shape[1]
        predicted = logits.argmax(axis=1)
        logits[np.arange(len(x)), labels] = -np.inf
        target = np.eye(classes)[logits.argmax(axis=1)]
        free = flat < query.high
        active = np.flatnonzero(predicted == labels)
        for _ in range(int(self.share * flat.shape[1] / 2)):
            if not len(active):
                break
            towards = query.gradient(x[active], target[active])
            away = query.gradient(x[active], 1 - target[active])
            towards, away = (g.reshape(len(active), -1) for g in (towards, away))
            pairs, found = best_pairs(towards, away, free[active])
            active, pairs = active[found], pairs[found]
            flat[active[:, None], pairs] = query.high
            free[active[:, None], pairs] = False
            if len(active):
                active = active[query.predict(x[active]) == labels[active]]
        return x


def best_pairs(
    towards: np.ndarray, away: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each image's pair of values with the largest saliency, (N, 2), and if any, (N,) bool.

    The saliency of (p, q) is -(t_p + t_q)(a_p + a_q), for a positive first and a negative second
    factor; t (`towards`) is the target logit's gradient, a (`away`) that of the other logits' sum,
    both (N, values). Only `free` values may change.
    """
    up = np.where(free, towards, -np.inf)
    down = np.where(free, -away, -np.inf)
    up_scale, down_scale = (np.abs(g).max(1, keepdims=True) + 1e-12 for g in (towards, away))
    both = up / up_scale + down / down_scale
    count = min(_CANDIDATES, towards.shape[1] - 1)
    best = [np.argpartition(-order, count, axis=1)[:, :count] for order in (up, down, both)]
    index = np.concatenate(best, axis=1)
    up = np.take_along_axis(up, index, 1)
    down = np.take_along_axis(down, index, 1)
    gain = up[:, :, None] + up[:, None, :]
    loss = down[:, :, None] + down[:, None, :]
    allowed = (gain > 0) & (loss > 0) & (index[:, :, None] != index[:, None, :])
    saliency = np.where(allowed, np.where(allowed, gain, 0) * np.where(allowed, loss, 0), -np.inf)
    best = saliency.reshape(len(index), -1).argmax(axis=1)
    first, second = np.divmod(best, index.shape[1])
    rows = np.arange(len(index))
    pairs = np.stack([index[rows, first], index[rows, second]], axis=1)
    return pairs, allowed.any(axis=(1, 2))
