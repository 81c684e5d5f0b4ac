"""The measure of a deletion's effect on a prediction."""

import numpy as np


def lead(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each class's logit minus the largest other one, `(samples,)`.

    Args:
        logits: `(samples, classes)`.
        labels: The classes, `(samples,)`.
    """
    rows = np.arange(len(logits))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return logits[rows, labels] - others.max(axis=1)
