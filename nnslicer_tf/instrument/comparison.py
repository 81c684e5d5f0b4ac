"""The check that an instrumented graph, or a copy, computes what its model computes.

Both run on a few inputs of the declared dtypes: negative, large, small and zero values, or tokens.
It costs two forward passes of two samples, of more if they are small. The error names a layer.
"""

import inspect
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.data import Bounds
from nnslicer_tf.instrument.expansion import Constant
from nnslicer_tf.instrument.functional import structure_of
from nnslicer_tf.instrument.graph import HALVES, Graph
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.instrument.tracing import TensorAt, Trace

SCALES = (1.0, 50.0, 0.01, 0.0, 5.0)
_COMPANIES = ([2, 3], [1, 0], [4, 2])  # rows that are run again
MIN_VALUES = 2048  # in all samples together
MAX_SAMPLES = 32
MAX_VALUES_OF_TWO = 50_000  # of a sample
MAX_WEIGHTS_OF_MANY = 10_000_000  # larger models are compared on one sample of each scale


def compare_with_original(
    model: keras.Model, functional: keras.Model, graph: Graph, trace: Trace, bounds: Bounds | None
) -> dict[str, np.ndarray]:
    """Check that a graph's outputs equal those of the model that it was built from.

    `functional` is the model in functional or sequential form, `trace` the calls behind the graph.
    Returns the outputs' values for the samples that were compared. Raises UnsupportedLayerError if
    an output differs by more than rounding.
    """
    largest = max(max(1, graph.operations[name].size) for name in graph.inputs)
    samples = int(np.clip(MIN_VALUES // largest, 2, MAX_SAMPLES))
    of_keras = all(type(c.layer).__module__.startswith("keras.") for c in trace.calls)
    padded = any(o.mask is not None for o in graph.operations.values())
    if largest > MAX_VALUES_OF_TWO and of_keras and not padded:
        samples = 1
    elif functional.count_params() > MAX_WEIGHTS_OF_MANY:  # a subclassed model may not be built
        samples = min(samples, len(SCALES))
    samples = free_count(samples, graph.operations.values())
    rng = np.random.default_rng(0)
    x = []
    for name, tensor in zip(graph.inputs, functional.inputs, strict=True):
        shape, tokens = (samples, *graph.operations[name].shape), graph.vocabulary(name)
        x.append(random_input(rng, shape, tensor.dtype, tokens, bounds, padded, name))
    structure = structure_of(functional, "input")

    def outputs(x: list[Any]) -> list[Any]:
        return keras.tree.flatten(model(keras.tree.pack_sequence_as(structure, x), training=False))

    outputs = compiled_function(outputs) if graph.has_long_loops else outputs
    try:
        expected = outputs(x)
    except Exception:  # integers may be indices, such as positions
        x = [v % 2 if v.dtype.kind in "iu" else v for v in x]
        expected = outputs(x)
    tensors = [keras.ops.convert_to_tensor(one.astype(np.float32)) for one in x]
    values = graph.run(tensors, graph.outputs)
    # In half precision the original rounds coarsely.
    halves = graph.has_halves or any(tensor.dtype in HALVES for tensor in functional.inputs)
    tolerance = 0.1 if halves else 1e-4

    def rounded(_: str, value: Any) -> Any:
        """Add noise of the size of rounding errors, except to integers such as tokens."""
        noise = 1 + 0.01 * tolerance * rng.normal(size=value.shape).astype(np.float32)
        return keras.ops.where(value == keras.ops.round(value), value, value * noise)

    def is_rounding(worst: float) -> bool:
        """Whether a difference is not much larger than what rounding errors may grow to."""
        noisy = graph.run(tensors, graph.outputs, rounded)
        grown = max(difference(examples[n], noisy[n], tolerance, 1) for n in graph.outputs)
        return worst <= 10 * grown

    examples, worst = {}, 0.0
    for name, original in zip(graph.outputs, expected, strict=True):
        examples[name] = keras.ops.convert_to_numpy(values[name])
        # Large samples may overflow in one of the two; capturing reports the operation.
        worst = max(worst, difference(original, examples[name], tolerance, finite_rows=1))
    if worst > 1:
        # Where an operation overflows, what follows may be finite, and wrong; capturing says so.
        every = map(keras.ops.convert_to_numpy, graph.run(tensors, graph.operations).values())
        finite = np.all([np.isfinite(v.reshape(samples, -1)).all(axis=1) for v in every], axis=0)
        finite[0] = True
        worst = max(
            difference(_rows(original, finite), examples[name][finite], tolerance)
            for name, original in zip(graph.outputs, expected, strict=True)
        )
    if worst > 1:
        _explain(graph, trace, tensors, tolerance)
        if not is_rounding(worst):
            raise UnsupportedLayerError(
                f"The outputs of model '{model.name}' ({type(model).__name__}) differ from those "
                "of its layers, each of which computes what is expected. Its own call must do the "
                "same for all values: write it without Python conditions on values."
            )
    # A sample gives the same in other company; loops are compiled, for this number of samples only.
    few_rows = free_count(2, graph.operations.values())
    companies: list[list[int]] = [np.resize(rows, few_rows).tolist() for rows in _COMPANIES]
    if graph.has_long_loops:
        companies = [[0] * samples] if samples > 1 else []
    for rows in companies if any(_may_mix(call.layer) for call in trace.calls) else ():
        rows = [row % samples for row in rows]
        pairs = zip(expected, outputs([v[rows] for v in x]), strict=True)
        mixed = [difference(_rows(batch, rows), few, tolerance, 1) for batch, few in pairs]
        if max(mixed) > 1 and not is_rounding(max(mixed)):
            few = graph.run([_rows(t, rows) for t in tensors], graph.operations)
            batch = graph.run(tensors, graph.operations)
            differs = (n for n in few if difference(_rows(batch[n], rows), few[n], tolerance) > 1)
            raise UnsupportedLayerError(
                f"Model '{model.name}' mixes samples: what it answers to one depends on the others "
                f"of its batch, from operation '{next(differs, graph.outputs[0])}' on. Slices are "
                "of single samples; compute along the other axes only."
            )
    return examples


def free_count(least: int, operations: Iterable[Operation]) -> int:
    """Return a number of samples that no axis of an operation has, at least `least`.

    Where the samples are as many as the channels, `keras.ops.add` on TensorFlow takes `(samples,
    1)` for a bias, and adds it along the other axis: the original's values would be wrong.
    """
    taken = {extent for operation in operations for extent in operation.shape}
    return next(n for n in count(least) if n not in taken)


def _may_mix(layer: Any) -> bool:
    """Whether a layer is not one of Keras's own along other axes than that of the samples."""
    is_own = not isinstance(layer, keras.layers.Layer) or isinstance(layer, keras.layers.Lambda)
    axes = [axis for axis in np.ravel(getattr(layer, "axis", -1)) if axis is not None]
    is_own |= not type(layer).__module__.startswith("keras.")
    return is_own or any(axis == 0 or axis < -1 for axis in axes)


def _rows(values: Any, rows: list[int] | np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(values)[rows]


def random_input(
    rng: np.random.Generator,
    shape: tuple[int, ...],  # with the number of samples
    dtype: Any,
    tokens: int | None = None,  # size of the vocabulary; None for numbers
    bounds: Bounds | None = None,
    padded: bool = False,  # whether the last sample ends with padding
    name: str = "",  # of the input: integers called a mask are 1, and 0 at the end
) -> np.ndarray:
    """Return random samples for an input of a dtype; half precision is returned as float32."""
    dtype = keras.backend.standardize_dtype(dtype)
    x: np.ndarray
    if tokens is None and "int" in dtype and name.endswith("mask") and len(shape) > 1:
        lengths = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
        return (np.arange(shape[-1]) < lengths).astype(dtype)
    if tokens is not None:
        x = rng.integers(min(1, tokens - 1), tokens, shape)
    elif dtype == "bool":
        x = rng.integers(0, 2, shape)
    elif bounds is not None:
        x = rng.uniform(*bounds, shape)
    elif "int" in dtype:
        low, high = (0 if dtype[0] == "u" else -100), (128 if dtype == "int8" else 256)
        x = rng.integers(low, high, shape)
    else:
        scales = np.resize(SCALES, shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
        x = rng.normal(size=shape) * scales * (rng.uniform(size=shape) > 0.1)
    if padded and len(shape) > 1:
        x[-1, -(-shape[1] // 2) :] = 0
    if dtype in HALVES:
        return keras.ops.convert_to_numpy(keras.ops.cast(keras.ops.cast(x, dtype), "float32"))
    return x.astype(dtype)


def difference(
    expected: Any, values: Any, tolerance: float, finite_rows: int | None = None
) -> float:
    """Return the largest difference between values `(samples, …)`, relative to allowed rounding.

    Allowed are ten times `tolerance` of the value itself, and `tolerance` times the largest value
    of the sample, or times what that usually is (the median over samples) if it is more: a sum may
    be nearly 0. The first `finite_rows` samples, by default all, must be finite at the same places.
    """
    theirs, ours = (keras.ops.convert_to_numpy(v).astype(np.float64) for v in (expected, values))
    if ours.shape != theirs.shape:
        return np.inf
    ours, theirs = (v.reshape(len(v), -1) for v in (ours, theirs))
    finite = np.isfinite(theirs) & np.isfinite(ours)
    differs = (np.isfinite(ours) != np.isfinite(theirs))[:finite_rows]
    if differs.any() and (finite_rows is None or finite[:finite_rows].any()):
        return np.inf
    ours, theirs = (np.where(finite, v, 0) for v in (ours, theirs))
    scale = np.abs(theirs).max(axis=1, keepdims=True, initial=1e-6)
    scale = np.maximum(scale, np.median(scale)) if len(scale) else scale
    allowed = tolerance * scale + min(10 * tolerance, 0.01) * np.abs(theirs)
    return float((np.abs(ours - theirs) / allowed).max(initial=0))


def _explain(graph: Graph, trace: Trace, inputs: Sequence[Any], tolerance: float) -> None:
    """Raise UnsupportedLayerError for the first layer that differs on the graph's own values."""
    values = graph.run(inputs, graph.operations)
    for call in trace.calls:
        if call.mask_function is not None:
            continue
        # What the layer itself computes
        tensors = []
        for tensor, dtype, mask in zip(call.inputs, call.dtypes, call.masks, strict=True):
            tensors.append(keras.ops.cast(values[graph.names[tensor]], dtype))
            if mask is not None:
                tensors[-1]._keras_mask = keras.ops.cast(values[graph.names[mask]], "bool")

        def now(value: Any, tensors: list[Any] = tensors) -> Any:
            if isinstance(value, TensorAt):
                return tensors[value.place]
            return value.like(tensors[0]) if isinstance(value, Constant) else value

        arguments = keras.tree.map_structure(now, dict(call.arguments))
        if isinstance(call.layer, keras.layers.Layer):  # only tensors may be positional
            first, *others = arguments.items()
            result = call.layer(first[1], **dict(others))
        else:
            bound = inspect.BoundArguments(inspect.signature(call.layer.call), arguments)
            result = call.layer(*bound.args, **bound.kwargs)
        for tensor, original in zip(call.outputs, keras.tree.flatten(result), strict=False):
            ours = values[graph.names[tensor]]
            if difference(original, ours, tolerance, finite_rows=1) <= 1:
                continue
            ours, original = map(keras.ops.convert_to_numpy, (ours, original))
            worst = float(np.abs(ours - original.astype(np.float64)).max())
            what = "Layer" if isinstance(call.layer, keras.layers.Layer) else "Operation"
            integers = [t for t in (*call.dtypes, original.dtype.name) if "int" in t]
            remedy = (
                f"The model computes in {integers[0]} there, without fractions; cast to float32 "
                "before."
                if integers
                else "If it is your own, correct what you registered with "
                "nnslicer_tf.register_layer; otherwise register operations that compute it."
            )
            raise UnsupportedLayerError(
                f"{what} '{call.path}' ({type(call.layer).__name__}) does not compute what its "
                f"registered operations compute: its output differs by {worst:.3g} on the same "
                f"input. {remedy}"
            )
