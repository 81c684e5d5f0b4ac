"""Index maps of routing operations, found by running them on indices."""

from typing import Any

import numpy as np

from nnslicer_tf._lazy import LazyModule
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import Operation

keras: Any = LazyModule("keras")

INSERTED = -1

# Indices pass through the operation as two digits, so that float32 holds them exactly.
_BASE = 1 << 16


def routing_map(operation: Operation) -> np.ndarray:
    """Return the source of each output of a routing operation.

    Args:
        operation: An operation of kind "routing".

    Returns:
        Array of the operation's shape, int64: the row-major index of the source in the
        concatenation of all flattened inputs, or -1 for a value that the operation inserts.

    Raises:
        UnsupportedLayerError: if the operation does more than move values.
    """
    sizes = [int(np.prod(shape)) for shape in operation.input_shapes]
    # From 1, to distinguish the first input from the zeros that padding inserts.
    indices = np.arange(1, sum(sizes) + 1)
    digits = [_send(operation, digit, sizes) for digit in np.divmod(indices, _BASE)]
    source = (digits[0] * _BASE + digits[1] - 1).astype(np.int64)
    _check(operation, source, sizes)
    return source


def _check(operation: Operation, source: np.ndarray, sizes: list[int]) -> None:
    """Check that the operation only moves values: random values must come out unchanged."""
    count = sum(sizes)
    moves_only = source.min(initial=0) >= INSERTED and source.max(initial=0) < count
    if moves_only:
        values = np.random.default_rng(0).uniform(1, 2, count).astype(np.float32)
        expected = np.where(source == INSERTED, 0, values[source])
        moves_only = np.array_equal(_send(operation, values, sizes), expected)
    if not moves_only:
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is registered as routing, but does more than move "
            "values. Register it as another kind."
        )


def _send(operation: Operation, values: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Run the operation on its concatenated inputs; return its output in float64."""
    parts = np.split(values.astype(np.float32), np.cumsum(sizes)[:-1])
    tensors = [
        keras.ops.convert_to_tensor(part.reshape(1, *shape))
        for part, shape in zip(parts, operation.input_shapes, strict=True)
    ]
    return keras.ops.convert_to_numpy(operation.compute(*tensors))[0].astype(np.float64)
