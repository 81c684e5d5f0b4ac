"""Checks of arguments and of model outputs that several packages share."""

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf.errors import InvalidArgumentError


def check_count(name: str, value: object) -> None:
    """Refuse anything but an int of at least 1.

    Args:
        name: Name of the argument, for the message.
        value: Its value.

    Raises:
        InvalidArgumentError: if it is anything else.
    """
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidArgumentError(f"{name} must be a positive int. Received: {value!r}")


def check_labels(y: ArrayLike, samples: int, classes: int | None = None) -> np.ndarray:
    """Return class labels `(samples,)` int64.

    Args:
        y: The labels, one for each sample.
        samples: Number of samples.
        classes: Number of classes, which every label must be below; None: not checked.

    Raises:
        InvalidArgumentError: if there are no samples, the labels are not one integer for
            each, or a label is not a class.
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


def check_logits(logits: np.ndarray) -> None:
    """Refuse outputs that are not logits.

    A model that ends in a softmax layer is accepted: its logits are read before that layer.

    Args:
        logits: (N, …) the model's outputs.

    Raises:
        InvalidArgumentError: if they are not vectors of at least two values, or are
            probabilities.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InvalidArgumentError(
            f"The model must be a classifier with logits (N, classes). It gave {logits.shape}."
        )
    if (logits >= 0).all() and np.allclose(logits.sum(axis=1), 1, atol=1e-4):
        raise InvalidArgumentError(
            "The model outputs probabilities, but it does not end in a softmax that can be "
            "removed. Give a model that ends in logits or in a softmax."
        )
