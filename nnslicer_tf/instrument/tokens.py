"""Inputs that are tokens: their range, and example inputs."""

import numpy as np

from nnslicer_tf.instrument.graph import Graph
from nnslicer_tf.instrument.operations import Lookup, Operation


def vocabulary(graph: Graph, name: str) -> int | None:
    """Return the number of different tokens that an input accepts; None if it is not looked up.

    Args:
        graph: The graph.
        name: Name of the input operation.
    """
    rows = []
    waiting = [name]
    while waiting:
        for taker in graph.consumers[waiting.pop()]:
            if isinstance(taker.params, Lookup):
                rows.append(taker.params.shape[0])
            elif taker.kind == "routing":
                waiting.append(taker.name)
    return min(rows, default=None)


def example(graph: Graph, operation: Operation, samples: int) -> np.ndarray:
    """Return random inputs `(samples, *shape)` float32; tokens if the operation takes tokens.

    If the model has masks, the last sample ends with padding.
    """
    shape = (samples, *operation.shape)
    generator = np.random.default_rng(0)
    rows = vocabulary(graph, operation.name)
    if rows is None:
        x = generator.uniform(size=shape).astype(np.float32)
    else:
        x = generator.integers(min(1, rows - 1), rows, shape).astype(np.float32)
    masked = any(o.mask is not None for o in graph.operations.values())
    if masked and operation.shape:
        x[-1, -(-operation.shape[0] // 2) :] = 0
    return x
