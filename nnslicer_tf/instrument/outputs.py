"""The end of a model: the softmax or sigmoid of an output, and its meaning for classes."""

from dataclasses import replace

import keras
import numpy as np

from nnslicer_tf._numerics import FINAL_ACTIVATIONS, OutputClasses, output_classes
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.graph import Graph
from nnslicer_tf.instrument.operations import Elementwise, Operation, Softmax


def final_activation(graph: Graph, output: str) -> Operation | None:
    """Return the softmax, log-softmax or sigmoid that ends an output operation, or None.

    Identities, casts, and reshapes that keep the order of the values may follow it.
    """
    operation = graph.operations[output]
    while _keeps_values(operation):
        operation = graph.operations[operation.inputs[0]]
    is_activation = isinstance(operation.params, Elementwise)
    if is_activation and operation.params.function in FINAL_ACTIVATIONS:
        return operation
    return None


def logits_of(graph: Graph, output: str) -> str:
    """Return the operation before an output's final activation, or the output without one.

    Of logits that are a vector but for axes of size 1, as is the output, it is the vector.
    """
    final = final_activation(graph, output)
    if final is None:
        return output
    logits = operation = graph.operations[final.inputs[0]]
    axis = final.params.axes[0] if isinstance(final.params, Softmax) else -1
    if len(graph.operations[output].shape) == 1 and (1, *final.shape)[axis] == final.size:
        while len(operation.shape) > 1 and _keeps_values(operation):
            operation = graph.operations[operation.inputs[0]]
    return operation.name if len(operation.shape) == 1 else logits.name


def mark_final(graph: Graph) -> None:
    """Turn final softmaxes into elementwise operations, which are captured but not walked.

    Raises:
        UnsupportedLayerError: if a function that mixes its inputs is not at the end.
    """

    def is_read(name: str) -> bool:
        """Whether an operation other than an identity or a reshape reads a value."""
        return any(not _keeps_values(o) or is_read(o.name) for o in graph.consumers[name])

    finals = set()
    for output in graph.outputs:
        final = final_activation(graph, output)
        if final is not None and not is_read(final.name):
            finals.add(final.name)
            if final.kind == "softmax":
                graph.operations[final.name] = replace(final, kind="elementwise")
    vars(graph).pop("consumers", None)  # it holds the replaced operations
    for operation in graph.operations.values():
        mixes = operation.kind == "elementwise" and getattr(operation.params, "mixes", False)
        if mixes and operation.name not in finals:
            raise UnsupportedLayerError(
                f"Operation '{operation.name}' applies {operation.params.function}, whose outputs "
                "depend on several inputs. It has a rule only at the end of a model; inside, only "
                "softmax has. Use softmax, or register operations for the layer with "
                "nnslicer_tf.register_layer."
            )


def classes_of(graph: Graph, output: str, example: np.ndarray) -> OutputClasses:
    """Return how an output gives classes; `example` has some of its values `(samples, …)`."""
    final = final_activation(graph, output)
    if final is None:
        operation = graph.operations[output]
        shape = operation.shape
        # Some of a softmax's values are probabilities, even if they do not sum to 1.
        while operation.kind == "routing" and len(operation.inputs) == 1:
            operation = graph.operations[operation.inputs[0]]
        function = getattr(operation.params, "function", None)
        if function in ("softmax", "sparsemax", "sigmoid") and np.prod(shape) > 1:
            return OutputClasses("distribution", shape)
        return output_classes("", shape, example)
    logits = graph.operations[logits_of(graph, output)]
    if len(logits.shape) == 1:
        return output_classes(final.params.function, logits.shape, example)
    axes = final.params.axes if isinstance(final.params, Softmax) else (-1,)
    rank = len(final.shape) + 1
    return output_classes(final.params.function, final.shape, example, axes[0] % rank - rank)


def _keeps_values(operation: Operation) -> bool:
    """Whether an operation returns its input's values in their order, perhaps reshaped."""
    if operation.kind != "routing" or len(operation.inputs) != 1:
        return False
    shape = operation.input_shapes[0]
    if np.prod(shape) != operation.size:
        return False
    values = np.random.default_rng(0).uniform(1, 2, (1, *shape)).astype(np.float32)
    moved = keras.ops.convert_to_numpy(operation.compute(keras.ops.convert_to_tensor(values)))
    return np.array_equal(moved.ravel(), values.ravel())
