"""Index maps of routing operations, found by running them on indices."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import keras
from nnslicer_tf._numerics import parted
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import Operation

INSERTED = -1

# Indices pass through the operation as two digits, so that float32 holds them exactly.
_BASE = 1 << 16


def routing_map(operation: Operation) -> np.ndarray:
    """Return the source of each output of a routing operation, int64 of the operation's shape.

    A source is a row-major index into all flattened inputs, concatenated; -1 is an inserted value.
    Raises UnsupportedLayerError if the operation does more than move values.
    """
    source = sources_of(operation.compute, operation.input_shapes)
    if source is None:
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is registered as routing, but does more than move "
            "values. Register it as another kind."
        )
    return source


def moves_values(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a function of tensors only moves values; shapes are without batch axes."""
    return sources_of(function, shapes) is not None


def sources_of(
    function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]
) -> np.ndarray | None:
    """Return the source of each output as `routing_map` does; None if values are changed."""
    count = sum(int(np.prod(shape)) for shape in shapes)

    def send(values: np.ndarray) -> np.ndarray:
        parts = parted(values.astype(np.float32), dict(enumerate(shapes))).values()
        tensors = map(keras.ops.convert_to_tensor, parts)
        return keras.ops.convert_to_numpy(function(*tensors)).astype(np.float64)

    # From 1, to distinguish the first input from the zeros that padding inserts.
    high, low = (send(digit[None])[0] for digit in np.divmod(np.arange(1, count + 1), _BASE))
    source = high * _BASE + low - 1
    if not (source >= INSERTED).all() or not (source < count).all() or (source % 1).any():
        return None
    source = source.astype(np.int64)
    # Random values of both signs and all magnitudes, since a bound may be far away, must come out
    # unchanged, those of every sample for itself.
    magnitudes = np.array([[1.0], [1e-3], [1e3], [1e6]])
    values = np.random.default_rng(0).normal(size=(len(magnitudes), count))
    values = (values * magnitudes).astype(np.float32)
    expected = np.where(source == INSERTED, 0, values[:, source])
    return source if np.array_equal(send(values), expected) else None
