"""Index maps of routing operations, found by running them on indices."""

import keras
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import Operation

__all__ = ["INSERTED", "routing_map"]

INSERTED = -1

# Indices are sent through in two digits, so that float32 holds them exactly.
_BASE = 1 << 16


def routing_map(operation: Operation) -> np.ndarray:
    """Return where each output of a routing operation comes from.

    Args:
        operation: An operation of kind "routing".

    Returns:
        Array of the operation's shape, int64: the row-major index of the source among
        all inputs laid end to end, or -1 for a value that the operation inserts.

    Raises:
        UnsupportedLayerError: if the operation does more than move values.
    """
    sizes = [int(np.prod(shape)) for shape in operation.input_shapes]
    # From 1, so that the zeros that padding inserts are told from the first input.
    indices = np.arange(1, sum(sizes) + 1)
    digits = [_send(operation, digit, sizes) for digit in np.divmod(indices, _BASE)]
    source = digits[0] * _BASE + digits[1] - 1
    moved = source.ravel()[source.ravel() != INSERTED]
    if len(moved) and (moved.min() < 0 or moved.max() >= len(indices)):
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is registered as routing, but does more than move "
            "values. Register it as another kind."
        )
    return source


def _send(operation: Operation, digit: np.ndarray, sizes: list[int]) -> np.ndarray:
    parts = np.split(digit.astype(np.float32), np.cumsum(sizes)[:-1])
    tensors = [
        keras.ops.convert_to_tensor(part.reshape(1, *shape))
        for part, shape in zip(parts, operation.input_shapes, strict=True)
    ]
    sent = keras.ops.convert_to_numpy(operation.compute(*tensors))[0]
    if not np.array_equal(sent, np.round(sent)):
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is registered as routing, but changes values. "
            "Register it as another kind."
        )
    return sent.astype(np.int64)
