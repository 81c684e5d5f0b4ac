"""Checks of what users give, the same everywhere."""

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf.errors import InvalidArgumentError

__all__ = ["check_labels"]


def check_labels(y: ArrayLike, samples: int, classes: int | None = None) -> np.ndarray:
    """Return class labels `(samples,)` int64.

    Args:
        y: The labels, one for each sample.
        samples: Number of samples.
        classes: Number of classes the labels must lie in; None: not checked.

    Raises:
        InvalidArgumentError: if there are no samples, the labels are not one integer for
            each, or one is negative or no class.
    """
    if not samples:
        raise InvalidArgumentError("The data set is empty: no samples were given.")
    labels = np.asarray(y)
    if labels.shape != (samples,) or labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"y must be one class index for each of {samples} samples, integers of shape "
            f"({samples},). Received: {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < 0 or (classes is not None and labels.max() >= classes):
        expected = "0 or more" if classes is None else f"in 0 … {classes - 1}"
        raise InvalidArgumentError(
            f"Class labels must be {expected}; leave out samples without a class. Received: "
            f"labels from {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64)
