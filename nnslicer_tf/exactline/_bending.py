"""Transformers of operations that bend lines: they add points."""

import keras
import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import _kernels
from nnslicer_tf.exactline._affine import broadcast_taps
from nnslicer_tf.exactline.curve import TOLERANCE, CommonRows, Curve, regrouped
from nnslicer_tf.instrument import Operation

__all__ = ["General", "MaximumMerge", "MaximumPool", "Rectify"]

_PROBES = np.linspace(-1.0, 1.0, 7)[1:-1]  # where a function is tried between its knots


class Rectify:
    """max(x, 0), or that clipped from above (theorem 2 of the paper)."""

    def __init__(self, operation: Operation) -> None:
        self.knots = np.asarray(operation.params.knots, np.float64)

    def __call__(self, x: Curve) -> Curve:
        """Return the rectified values, with points where a value passes a knot."""
        x = _bent_at_knots(x, self.knots)
        values = np.maximum(x.values, 0.0)
        if len(self.knots) > 1:
            np.minimum(values, self.knots[1], out=values)
        return x.with_values(values)


class General:
    """Any continuous piecewise-linear function of single values: the general rule.

    Such a function is known from its values at the knots and its slope on either side.
    Both are read from the function, for every neuron, when the transformer is made, and
    some points between the knots show whether they are right.

    Raises:
        InvalidArgumentError: if the function is not linear between its knots, or the
            backend does not compute in float64.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._shape = operation.shape
        self._knots = np.unique(np.asarray(operation.params.knots, np.float64))
        self._ends = self._knots if len(self._knots) else np.zeros(1)
        places = np.concatenate([[self._ends[0] - 1], self._ends, [self._ends[-1] + 1]])
        values = self._compute(places)
        widths = np.diff(places).reshape(-1, *(1,) * (values.ndim - 1))
        self._first = _by_position(values[1], self._shape)
        self._slopes = [_by_position(v, self._shape) for v in np.diff(values, axis=0) / widths]
        self._check()

    def __call__(self, x: Curve) -> Curve:
        """Return the function's values, with points where a value passes a knot."""
        x = _bent_at_knots(regrouped(x, self._shape), self._knots)
        slopes = [x.rows_of(slope) for slope in self._slopes]
        return x.with_values(self._evaluate(x.values, x.rows_of(self._first), slopes))

    def _evaluate(self, x: np.ndarray, first: np.ndarray, slopes: list[np.ndarray]) -> np.ndarray:
        out = first + slopes[0] * np.minimum(x - self._ends[0], 0)
        for k, slope in enumerate(slopes[1:-1]):
            low, high = self._ends[k], self._ends[k + 1]
            out += slope * np.clip(x - low, 0, high - low)
        out += slopes[-1] * np.maximum(x - self._ends[-1], 0)
        return out

    def _compute(self, places: np.ndarray) -> np.ndarray:
        """Run the function with all neurons at one place after the other, in float64."""
        x = np.broadcast_to(
            places.reshape(-1, *(1,) * len(self._shape)), (len(places), *self._shape)
        )
        tensor = keras.ops.convert_to_tensor(x, dtype="float64")
        out = keras.ops.convert_to_numpy(self._operation.compute(tensor))
        if out.dtype != np.float64:
            raise InvalidArgumentError(
                f"Operation '{self._operation.name}' computes in {out.dtype} for float64 inputs. "
                "Let the function keep the dtype of its input; on JAX set JAX_ENABLE_X64=1."
            )
        return out

    def _check(self) -> None:
        reach = np.concatenate([[self._ends[0] - 4], self._ends, [self._ends[-1] + 4]])
        middles, halves = (reach[1:] + reach[:-1]) / 2, (reach[1:] - reach[:-1]) / 2
        places = (middles[:, None] + halves[:, None] * _PROBES).ravel()
        computed = self._compute(places).reshape(len(places), -1, self._shape[-1])
        for place, expected in zip(places, computed, strict=True):
            value = self._evaluate(np.full_like(expected, place), self._first, self._slopes)
            if not np.allclose(value, expected, rtol=1e-9, atol=1e-9):
                raise InvalidArgumentError(
                    f"Operation '{self._operation.name}' ({self._operation.params.function}) is "
                    f"not continuous and linear between its knots {tuple(self._knots)}: at "
                    f"{place:.3g} it gives {expected.ravel()[0]:.6g}, not "
                    f"{value.ravel()[0]:.6g}. Give all inputs at which its slope changes as knots."
                )


class MaximumPool:
    """Max pooling: the line is followed until the maximum of a window changes.

    With a floor of 0 it is max pooling and ReLU in one (appendix G): a value that passes
    zero, or another value, below the window's maximum makes no point.
    """

    def __init__(self, operation: Operation) -> None:
        taps = operation.params.taps
        # Padding takes no part: its place is taken by a value that is in the window.
        valid = np.take_along_axis(taps, np.argmax(taps >= 0, axis=1)[:, None], axis=1)
        self._taps = np.where(taps >= 0, taps, valid)
        self._input_shape = operation.input_shapes[0]
        self.floor = -np.inf

    def __call__(self, x: Curve) -> Curve:
        """Return the windows' maxima, with points where they pass to another value."""
        x = regrouped(x, self._input_shape)
        window = CommonRows([x], [self._taps]).gathered()[0]
        return _bent_maximum(window, x.channels, self.floor)


class MaximumMerge:
    """The maximum or minimum of tensors."""

    def __init__(self, operation: Operation) -> None:
        self._sign = -1.0 if operation.kind == "minimum_merge" else 1.0
        self._shapes = operation.input_shapes
        self._taps = broadcast_taps(operation)
        self._channels = operation.shape[-1]

    def __call__(self, *inputs: Curve) -> Curve:
        """Return the maxima, with points where they pass to another tensor."""
        inputs = [regrouped(x, shape) for x, shape in zip(inputs, self._shapes, strict=True)]
        rows = CommonRows(inputs, self._taps)
        size = (len(rows), self._channels)
        parts = [self._sign * np.broadcast_to(c.values, size) for c in rows.gathered()]
        window = Curve(rows.lines, rows.start, rows.ratio, np.hstack(parts))
        largest = _bent_maximum(window, self._channels, -np.inf)
        return largest.with_values(self._sign * largest.values)


def _bent_at_knots(x: Curve, knots: np.ndarray) -> Curve:
    return x.insert(*_kernels.knot_crossings(x.values, x.start, x.ratio, knots, TOLERANCE))


def _bent_maximum(window: Curve, channels: int, floor: float) -> Curve:
    """Return the maximum over the taps of `(rows, taps · channels)`, and of `floor`."""
    crossings = _kernels.window_crossings(
        window.values, window.start, window.ratio, channels, floor, TOLERANCE
    )
    window = window.insert(*crossings)
    largest = window.values.reshape(len(window.ratio), -1, channels).max(axis=1)
    return window.with_values(np.maximum(largest, floor))


def _by_position(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return `(positions, channels)`, one position if all are equal."""
    table = array.reshape(-1, shape[-1])
    return table[:1] if (table == table[:1]).all() else table
