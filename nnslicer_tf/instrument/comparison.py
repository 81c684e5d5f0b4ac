"""The check that an instrumented graph computes what its model computes."""

from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.graph import Graph, in_half_precision
from nnslicer_tf.instrument.tokens import example


def compare_with_original(
    model: keras.Model, functional: keras.Model, graph: Graph
) -> dict[str, np.ndarray]:
    """Check that a graph's outputs equal those of the model that it was built from.

    Args:
        model: The model.
        functional: The same model in functional or sequential form.
        graph: The graph.

    Returns:
        Name of each output operation → its values for the samples of the comparison.

    Raises:
        UnsupportedLayerError: if an output differs by more than rounding.
    """
    x = [example(graph, graph.operations[name], samples=2) for name in graph.inputs]
    packed = keras.tree.pack_sequence_as(structure_of(functional, "input"), x)
    expected = keras.tree.flatten(model(packed, training=False))
    values = graph.run(list(map(keras.ops.convert_to_tensor, x)), graph.outputs)
    halves = any(in_half_precision(step.layer) for step in graph.wrappers.values())
    # Relative to the largest value; in half precision the original rounds coarsely.
    tolerance = 0.1 if halves else 1e-4
    examples = {}
    for name, original in zip(graph.outputs, expected, strict=True):
        ours, theirs = map(keras.ops.convert_to_numpy, (values[name], original))
        # Non-finite weights are accepted here: capturing reports the operation.
        theirs = theirs.astype(np.float64)  # NumPy does not compare bfloat16
        scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=1e-6)
        if not np.allclose(ours, theirs, rtol=1e-3, atol=tolerance * scale, equal_nan=True):
            raise UnsupportedLayerError(
                f"The instrumented model's output '{name}' differs from the original's by "
                f"{float(np.abs(ours - theirs).max()):.3g}: the registered operations of "
                "a layer do not compute what the layer computes."
            )
        examples[name] = ours
    return examples


def structure_of(model: keras.Model, which: str) -> Any:
    """Return the structure of a functional or sequential model's "input" or "output" tensors."""
    if isinstance(model, keras.Sequential):  # it may not have been called yet
        return getattr(model, f"{which}s")[0]
    return getattr(model, which)
