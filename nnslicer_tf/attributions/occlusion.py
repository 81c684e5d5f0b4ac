"""Occlusion (Zeiler and Fergus, ECCV 2014): how much an output falls if the input is partly hidden.

Cost: a forward pass for each position of the window, at most about 200.
"""

import numpy as np

from nnslicer_tf.exactline._points import check_points, check_target
from nnslicer_tf.instrument import InstrumentedModel

_PLACES = 14  # positions of the window along an axis of an image


def occlusion(
    im: InstrumentedModel, x: np.ndarray, baseline: np.ndarray, target: int
) -> np.ndarray:
    """Return, for each feature, the mean decrease of the logit over the windows that hide it.

    Windows are squares with all channels; their side is twice the step, which is a fourteenth of
    the image. In samples with one axis, features are hidden one at a time.

    Args:
        im: The model.
        x: A sample, of the model's input shape.
        baseline: Values that replace hidden features, of the same shape.
        target: Index of the logit.

    Raises:
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    check_target(im, target)
    x = check_points(x, "x", im.input_shape).astype(np.float32)
    baseline = check_points(baseline, "baseline", im.input_shape).astype(np.float32)
    hidden = _windows(x.shape)
    axes = hidden.shape[1:]
    wide = hidden.reshape(*hidden.shape, *[1] * (x.ndim - len(axes)))
    inputs = np.where(wide, baseline, x)
    before = im.logits(x[None])[0].ravel()[target]
    falls = before - im.logits(inputs).reshape(len(inputs), -1)[:, target].astype(np.float64)
    flat = hidden.reshape(len(hidden), -1)
    mean = (falls @ flat) / np.maximum(flat.sum(axis=0), 1)
    return np.broadcast_to(mean.reshape(wide.shape[1:]), x.shape).copy()


def _windows(shape: tuple[int, ...]) -> np.ndarray:
    """Return masks of hidden features, `(windows, *axes)` bool, without an image's channel axis."""
    axes = shape[:2] if len(shape) == 3 else shape[:1]
    if len(axes) == 1:
        return np.eye(axes[0], dtype=bool)
    sides = []
    for length in axes:
        step = max(1, -(-length // _PLACES))
        starts = range(1 - step, length, step) if step > 1 else range(length)
        place = np.arange(length)
        sides.append([(place >= s) & (place < s + 2 * step) for s in starts])
    return np.array([np.outer(rows, columns) for rows in sides[0] for columns in sides[1]])
