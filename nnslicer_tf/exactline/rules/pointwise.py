"""Exact lines through operations on single values: rectify, other activations, scales."""

import numpy as np

from nnslicer_tf._environment import keras
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import bends
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.steps import Steps
from nnslicer_tf.instrument.operations import Affine, Elementwise, Operation

_PROBES = np.linspace(-1.0, 1.0, 7)[1:-1]  # points at which to test between the knots


class _KnotLine(bends.GradientTransformer):
    """A transformer of a function of single values, which bends where a value passes a knot."""

    knots: np.ndarray

    @property
    def bends(self) -> bends.Bends:
        return bends.Bends(1, self.knots)

    def pull(self, g: Steps) -> list[Steps]:
        return [g]


class RectifyLine(_KnotLine):
    """The transformer of max(x, 0), possibly clipped from above (theorem 2)."""

    def __init__(self, operation: Operation) -> None:
        self.knots = np.asarray(operation.params.knots, np.float64)
        self._highest = self.knots[1] if len(self.knots) > 1 else np.inf

    def window(self, x: Curve) -> Curve:
        """Return the input."""
        return x

    def finish(self, window: Curve) -> Curve:
        """Return the rectified values."""
        return window.with_values(np.clip(window.values, 0.0, self._highest))

    def slopes(self, middles: Curve) -> np.ndarray:
        """Return 1 where the value is between the knots, else 0."""
        is_between = (middles.values > 0) & (middles.values < self._highest)
        return is_between.astype(np.float64)


class PiecewiseLine(_KnotLine):
    """The transformer of any continuous piecewise-linear function of single values.

    Values at the knots and the slopes between them are computed for every neuron, and checked at
    points in between. Raises UnsupportedLayerError if the operation has no knots, and
    InvalidArgumentError if it is not linear between them or the backend does not use float64.
    """

    def __init__(self, operation: Operation) -> None:
        if not isinstance(operation.params, Elementwise) or operation.params.knots is None:
            raise bends.not_piecewise_linear(operation)
        self._shape = operation.shape or (1,)
        self.knots = np.unique(np.asarray(operation.params.knots, np.float64))
        self._ends = ends = self.knots if len(self.knots) else np.zeros(1)
        places = np.concatenate([[ends[0] - 1], ends, [ends[-1] + 1]])
        values = self._compute(operation, places)
        self._first = values[1]
        self._slopes = list(np.diff(values, axis=0) / np.diff(places)[:, None, None])

        reach = np.concatenate([[ends[0] - 4], ends, [ends[-1] + 4]])
        middles, halves = (reach[1:] + reach[:-1]) / 2, (reach[1:] - reach[:-1]) / 2
        places = (middles[:, None] + halves[:, None] * _PROBES).ravel()
        for place, expected in zip(places, self._compute(operation, places), strict=True):
            value = self._evaluate(np.full_like(expected, place), self._first, self._slopes)
            if not np.allclose(value, expected, rtol=1e-9, atol=1e-9):
                raise InvalidArgumentError(
                    f"Operation '{operation.name}' ({operation.params.function}) is "
                    f"not continuous and linear between its knots {tuple(self.knots)}: at "
                    f"{place:.3g} it gives {expected.ravel()[0]:.6g}, not "
                    f"{value.ravel()[0]:.6g}. Give all inputs at which its slope changes as knots."
                )
        # Tables with one position where all positions have the same function.
        tables = (self._first, *self._slopes)
        self._first, *self._slopes = (t[:1] if (t == t[:1]).all() else t for t in tables)

    def window(self, x: Curve) -> Curve:
        """Return the input, reshaped to the operation's shape."""
        return x.regrouped(self._shape)

    def finish(self, window: Curve) -> Curve:
        """Return the function's values."""
        slopes = [window.rows_of(slope) for slope in self._slopes]
        first = window.rows_of(self._first)
        return window.with_values(self._evaluate(window.values, first, slopes))

    def slopes(self, middles: Curve) -> np.ndarray:
        """Return the function's slopes."""
        out = middles.values * 0 + middles.rows_of(self._slopes[0])
        for end, slope in zip(self._ends, self._slopes[1:], strict=True):
            np.copyto(out, middles.rows_of(slope), where=middles.values > end)
        return out

    def _evaluate(self, x: np.ndarray, first: np.ndarray, slopes: list[np.ndarray]) -> np.ndarray:
        out = first + slopes[0] * np.minimum(x - self._ends[0], 0)
        for k, slope in enumerate(slopes[1:-1]):
            low, high = self._ends[k], self._ends[k + 1]
            out += slope * np.clip(x - low, 0, high - low)
        out += slopes[-1] * np.maximum(x - self._ends[-1], 0)
        return out

    def _compute(self, operation: Operation, places: np.ndarray) -> np.ndarray:
        """Return the values `(places, positions, channels)` of all neurons at each place."""
        shape = (len(places), *self._shape)
        x = np.broadcast_to(places.reshape(-1, *(1,) * len(self._shape)), shape)
        tensor = keras.ops.convert_to_tensor(x, dtype="float64")
        out = keras.ops.convert_to_numpy(operation.compute(tensor))
        if out.dtype != np.float64:
            raise InvalidArgumentError(
                f"Operation '{operation.name}' computes in {out.dtype} for float64 inputs. "
                "Let the function keep the dtype of its input; on JAX set JAX_ENABLE_X64=1."
            )
        return out.reshape(len(places), -1, self._shape[-1])


class ScaleLine:
    """The transformer of x · factor + offset, if constant, else UnsupportedLayerError."""

    def __init__(self, operation: Operation) -> None:
        if not isinstance(operation.params, Affine):
            raise bends.not_piecewise_linear(operation)
        self._shape = shape = operation.shape or (1,)

        def table(array: np.ndarray) -> np.ndarray:
            """Return an array as `(positions or 1, channels)` float64."""
            array = np.asarray(array, np.float64)
            if array.size == 1 or array.size == array.shape[-1]:
                return np.broadcast_to(array.reshape(1, -1), (1, shape[-1]))
            return np.broadcast_to(array, shape).reshape(-1, shape[-1])

        self._factor, self._offset = map(table, operation.params.read())

    def per_channel(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return factor and offset `(channels,)`, or None if they differ by position."""
        if len(self._factor) > 1 or len(self._offset) > 1:
            return None
        return self._factor[0], self._offset[0]

    def __call__(self, x: Curve) -> Curve:
        """Return the scaled values."""
        x = x.regrouped(self._shape)
        values = x.values * x.rows_of(self._factor)
        values += x.rows_of(self._offset)
        return x.with_values(values)

    def pull(self, g: Steps) -> list[Steps]:
        """Return the gradient of the input, given that of the output."""
        return [g.scaled(self._factor)]


bends.register_transformer("rectify", RectifyLine)
bends.register_transformer("elementwise", PiecewiseLine)
bends.register_transformer("scale", ScaleLine)
