"""Inputs that are tokens: their range."""

from nnslicer_tf.instrument.graph import Graph
from nnslicer_tf.instrument.operations import Lookup


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
