"""The check that an instrumented graph computes what its model computes.

Both run on a few inputs of the declared dtypes: negative, large, small and zero values, or
tokens of the vocabulary. It costs two forward passes of two samples, more samples if they are
small. If outputs differ, each layer runs on its own, so that the error names the first one.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument._trace import Call, TensorAt, Trace, functional_class
from nnslicer_tf.instrument.data import Bounds
from nnslicer_tf.instrument.graph import Graph, in_half_precision
from nnslicer_tf.instrument.tokens import vocabulary

_SCALES = (1.0, 50.0, 0.01, 5.0)
_VALUES = 2048  # in all samples together, at least
_MAX_SAMPLES = 32
_ROUNDING = 0.05  # the largest difference that rounding in a deep model may sum up to

_REMEDY = (
    "If it is your own, correct what you registered with nnslicer_tf.register_layer; otherwise "
    "register operations that compute it."
)


def compare_with_original(
    model: keras.Model, functional: keras.Model, graph: Graph, trace: Trace, bounds: Bounds | None
) -> dict[str, np.ndarray]:
    """Check that a graph's outputs equal those of the model that it was built from.

    Args:
        model: The model.
        functional: The same model in functional or sequential form.
        graph: The graph.
        trace: The calls that it was built from.
        bounds: Smallest and largest value of the inputs, if they are known.

    Returns:
        Name of each output operation → its values for the samples of the comparison.

    Raises:
        UnsupportedLayerError: if an output differs by more than rounding.
    """
    x = _examples(functional, graph, bounds)
    packed = keras.tree.pack_sequence_as(structure_of(functional, "input"), x)
    expected = keras.tree.flatten(model(packed, training=False))
    tensors = [keras.ops.convert_to_tensor(one.astype(np.float32)) for one in x]
    values = graph.run(tensors, graph.outputs)
    halves = any(in_half_precision(step.layer) for step in graph.wrappers.values())
    halves |= any(tensor.dtype in ("bfloat16", "float16") for tensor in functional.inputs)
    examples, worst = {}, 0.0
    for name, original in zip(graph.outputs, expected, strict=True):
        examples[name] = keras.ops.convert_to_numpy(values[name])
        worst = max(worst, _difference(examples[name], original, halves))
    if worst > 1:
        _explain(model, graph, trace, tensors, halves)
        if worst > _ROUNDING / 1e-4 or not isinstance(model, functional_class()):
            raise UnsupportedLayerError(
                f"The outputs of model '{model.name}' ({type(model).__name__}) differ from those "
                "of its layers, each of which computes what is expected. Its own call must do the "
                "same for all values: write it without Python conditions on values."
            )
    return examples


def structure_of(model: keras.Model, which: str) -> Any:
    """Return the structure of a functional or sequential model's "input" or "output" tensors."""
    if isinstance(model, keras.Sequential):  # it may not have been called yet
        return getattr(model, f"{which}s")[0]
    return getattr(model, which)


def _examples(model: keras.Model, graph: Graph, bounds: Bounds | None) -> list[np.ndarray]:
    """Return random samples for each input in its own dtype.

    If the model has masks, the last sample ends with padding.
    """
    sizes = [max(1, graph.operations[name].size) for name in graph.inputs]
    samples = int(np.clip(_VALUES // max(sizes), 2, _MAX_SAMPLES))
    masked = any(o.mask is not None for o in graph.operations.values())
    rng = np.random.default_rng(0)
    examples = []
    for name, tensor in zip(graph.inputs, model.inputs, strict=True):
        shape = (samples, *graph.operations[name].shape)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        rows = vocabulary(graph, name)
        x: np.ndarray
        if rows is not None:
            x = rng.integers(min(1, rows - 1), rows, shape)
        elif dtype == "bool":
            x = rng.integers(0, 2, shape)
        elif bounds is not None:
            x = rng.uniform(*bounds, shape)
        elif "int" in dtype:
            low, high = (0 if dtype[0] == "u" else -100), (128 if dtype == "int8" else 256)
            x = rng.integers(low, high, shape)
        else:
            scales = np.resize(_SCALES, samples).reshape(-1, *(1,) * (len(shape) - 1))
            x = rng.normal(size=shape) * scales * (rng.uniform(size=shape) > 0.1)
        if masked and len(shape) > 1:
            x[-1, -(-shape[1] // 2) :] = 0
        half = dtype in ("bfloat16", "float16")
        x = keras.ops.convert_to_numpy(keras.ops.cast(x, dtype)) if half else x.astype(dtype)
        examples.append(x.astype(np.float32) if half else x)
    return examples


def _difference(ours: Any, theirs: Any, halves: bool) -> float:
    """Return the largest difference between two values, relative to what rounding may cause.

    Values are compared sample by sample, relative to the sample's largest value. Non-finite
    values are accepted here, where both have them: capturing reports the operation.
    """
    ours, theirs = (keras.ops.convert_to_numpy(v).astype(np.float64) for v in (ours, theirs))
    if ours.shape != theirs.shape:
        return np.inf
    ours, theirs = (v.reshape(len(v), -1) for v in (ours, theirs))
    finite = np.isfinite(theirs) & np.isfinite(ours)
    if finite[:1].any() and (np.isfinite(ours) != np.isfinite(theirs))[:1].any():
        return np.inf
    ours, theirs = (np.where(finite, v, 0) for v in (ours, theirs))
    scale = np.abs(theirs).max(axis=1, keepdims=True, initial=1e-6)
    # In half precision the original rounds coarsely.
    allowed = (0.1 if halves else 1e-4) * scale + 1e-3 * np.abs(theirs)
    return float((np.abs(ours - theirs) / allowed).max(initial=0))


def _explain(
    model: keras.Model, graph: Graph, trace: Trace, inputs: Sequence[Any], halves: bool
) -> None:
    """Run each layer on the values that the graph gives it.

    Raises:
        UnsupportedLayerError: that names the first layer whose values differ.
    """
    values = graph.run(inputs, graph.operations)
    for call in trace.calls:
        if call.mask_function is not None:
            continue
        theirs = _values_of(call, graph, values)
        for tensor, original in zip(call.outputs, theirs, strict=False):
            name = graph.names[tensor]
            if _difference(values[name], original, halves) > 1:
                ours, original = map(keras.ops.convert_to_numpy, (values[name], original))
                what = "Layer" if isinstance(call.layer, keras.layers.Layer) else "Operation"
                integers = [t for t in (*call.input_dtypes, original.dtype.name) if "int" in t]
                raise UnsupportedLayerError(
                    f"{what} '{call.path}' ({type(call.layer).__name__}) computes something else "
                    "than the operations that are known for it: its output differs by "
                    f"{float(np.abs(ours - original.astype(np.float64)).max()):.3g} on the same "
                    f"input. {_in_integers(integers[0]) if integers else _REMEDY}"
                )


def _in_integers(dtype: str) -> str:
    return f"The model computes in {dtype} there, without fractions; cast to float32 before."


def _values_of(call: Call, graph: Graph, values: dict[str, Any]) -> list[Any]:
    """Return what a layer itself computes, from the graph's values of its inputs."""
    tensors = []
    for tensor, dtype, mask in zip(call.inputs, call.input_dtypes, call.masks, strict=True):
        value = keras.ops.cast(values[graph.names[tensor]], dtype)
        if mask is not None:
            present = keras.ops.cast(values[graph.names[mask]], "bool")
            value._keras_mask = present
        tensors.append(value)
    arguments = keras.tree.map_structure(
        lambda v: tensors[v.place] if isinstance(v, TensorAt) else v, dict(call.arguments)
    )
    first, *_ = arguments
    return keras.tree.flatten(call.layer(arguments.pop(first), **arguments))
