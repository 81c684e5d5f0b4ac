"""Validation of the points and targets that callers pass."""

import numpy as np

from nnslicer_tf._checks import as_array
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, NonFiniteActivationError
from nnslicer_tf.instrument import InstrumentedModel


def check_points(
    x: np.ndarray, name: str, shape: tuple[int, ...], batch_axes: int = 0
) -> np.ndarray:
    """Validate points of the model's input space and return them as float64.

    Args:
        x: One point of shape `shape`, or several along a batch axis.
        name: Name of the argument, for messages.
        shape: The model's input shape.
        batch_axes: 0 for one point, 1 for several.

    Raises:
        InputShapeError: if they have another shape, or are not numeric.
        NonFiniteActivationError: if they are NaN or infinite.
    """
    try:
        x = np.asarray(as_array(x), np.float64)
    except (TypeError, ValueError) as error:
        raise InputShapeError(f"{name} must be an array of numbers. Received: {x!r}") from error
    if x.ndim != batch_axes + len(shape) or x.shape[batch_axes:] != tuple(shape):
        lead = "a batch axis before it" if batch_axes else "no batch axis"
        raise InputShapeError(
            f"{name} must have the model's input shape {shape}, with {lead}. "
            f"Received shape: {x.shape}"
        )
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise NonFiniteActivationError(f"{name} is NaN or infinite at index {where}.")
    return x


def check_ratios(ratios: np.ndarray) -> np.ndarray:
    """Validate places on a line and return them as float64, `(n,)`.

    Raises:
        InvalidArgumentError: if one is not in [0, 1].
    """
    ratios = np.atleast_1d(np.asarray(ratios, np.float64))
    if not ((ratios >= 0) & (ratios <= 1)).all():
        raise InvalidArgumentError(f"Ratios must be in [0, 1]. Received: {ratios}")
    return ratios


def check_target(im: InstrumentedModel, target: int) -> None:
    """Reject anything but the index of a logit.

    Raises:
        InvalidArgumentError: if there is no such logit.
    """
    size = im[im.logit_operation].size
    if not isinstance(target, (int, np.integer)) or not 0 <= target < size:
        raise InvalidArgumentError(
            f"target must be the index of one of {size} logits. Received: {target!r}"
        )
