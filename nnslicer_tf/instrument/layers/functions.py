"""Functions of `keras.ops` called in a model: by a table, or recognised by what they compute.

A function of one tensor is run when a model is wrapped (see `probing`); one of several tensors may
only move values. Constants are read anew in every run, so that they follow the weights.
"""

import inspect
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf._numerics import parted
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.expansion import Constant, current, variables_of
from nnslicer_tf.instrument.index_maps import moves_values
from nnslicer_tf.instrument.layers.embeddings import lookup_step
from nnslicer_tf.instrument.layers.masks import is_set, mask_step
from nnslicer_tf.instrument.layers.merges import product_step
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.probing import recognised
from nnslicer_tf.instrument.layers.projections import Projection
from nnslicer_tf.instrument.layers.rewrites import COMPARISONS, axes_of, spelled
from nnslicer_tf.instrument.layers.weighted_sums import (
    convolution,
    depthwise,
    matrix_synapses,
    sum_step,
    transposed,
)
from nnslicer_tf.instrument.operations import Elementwise, Pooling, Source, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape
from nnslicer_tf.instrument.tracing import TensorAt
from nnslicer_tf.instrument.upstream import add

MAX_MATRIX = 1 << 22  # weights of a linear map


def bound(operation: keras.Operation, call: LayerCall) -> Callable[..., Any]:
    """Return a call as a function of its tensors alone, in the dtype of the first one."""
    signature = inspect.signature(operation.call)

    def function(*tensors: Any) -> Any:
        def now(value: Any) -> Any:
            if isinstance(value, TensorAt):
                return tensors[value.place]
            if isinstance(value, Constant):
                value = value.like(tensors[0])
            if hasattr(value, "dtype") and "float" in str(value.dtype):
                return ops.cast(value, tensors[0].dtype)
            return current(value)

        arguments = keras.tree.map_structure(now, dict(call.arguments))
        given = inspect.BoundArguments(signature, arguments)
        return operation.call(*given.args, **given.kwargs)

    return function


def function_of_tensors(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a function without an entry in the table."""
    function, kind = bound(operation, call), type(operation).__name__
    if call.dtype == "bool" and not call.is_value:
        return (mask_step(function),)
    if len(call.output_shapes) > 1:
        return _several(function, call)
    values = [v for v in keras.tree.flatten(dict(call.arguments)) if hasattr(v, "shape")]
    if values and kind not in ("Where", "Maximum", "Minimum"):
        # Constants that are put between the values: they are added afterwards.
        def offset() -> Any:
            return function(*(ops.zeros((1, *shape)) for shape in call.input_shapes))

        def moved(*tensors: Any) -> Any:
            return function(*tensors) - function(*map(ops.zeros_like, tensors))

        if moves_values(moved, call.input_shapes):
            place = (":moved", None, call.output_shape)
            return (Step("routing", moved, None, *place), affine_step(offset=offset))
    if moves_values(function, call.input_shapes):
        return (Step("routing", function),)
    if len(call.input_shapes) == 1 and call.output_shape == tuple(call.input_shapes[0]):
        step = Step("elementwise", function, Elementwise(kind))
        try:
            return recognised(step, call.input_shapes, call.path)
        except UnsupportedLayerError as error:
            with suppress(UnsupportedLayerError):
                return linear_steps(function, call, "", call.output_shape)
            raise error
    return linear_steps(function, call, "", call.output_shape)


def _several(function: Callable, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a function with several results, each a move or a linear map."""
    sources = tuple(range(len(call.input_shapes)))
    steps: list[Step] = []
    names = []
    for i, shape in enumerate(call.output_shapes):
        one = partial(lambda k, *x: function(*x)[k], i)
        if moves_values(one, call.input_shapes):
            steps.append(Step("routing", one, None, f":{i}", sources, shape))
        else:
            steps += linear_steps(one, call, f":{i}", shape)
        names.append(steps.pop())
    # The results come last, in order.
    return (*steps, *names)


def linear_steps(
    function: Callable, call: LayerCall, suffix: str, shape: Shape
) -> tuple[Step, ...]:
    """Return the steps of a linear map: its inputs side by side, times a constant matrix.

    Raises UnsupportedLayerError if the function is not linear, or too large.
    """
    size, outputs = sum(int(np.prod(s)) for s in call.input_shapes), int(np.prod(shape))

    def run(rows: np.ndarray) -> Any:
        parts = parted(rows.astype(np.float32), dict(enumerate(call.input_shapes))).values()
        return ops.reshape(function(*map(ops.convert_to_tensor, parts)), (len(rows), -1))

    def at_zero() -> Any:
        return run(np.zeros((1, size)))

    def matrix() -> Any:
        return run(np.eye(size)) - at_zero()

    is_linear = size * outputs <= MAX_MATRIX
    if is_linear:
        known, offset = ops.convert_to_numpy(matrix()), ops.convert_to_numpy(at_zero())
        x = np.random.default_rng(0).normal(size=(3, size))
        found = ops.convert_to_numpy(run(x))
        is_linear = np.allclose(found, x @ known + offset, rtol=1e-3, atol=1e-4)
    if not is_linear:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' has no rule: it is neither a function of single values, nor "
            "a move of values, nor a linear map of moderate size. Write it with other functions "
            "of keras.ops, or as a layer whose operations you register with "
            "nnslicer_tf.register_layer."
        )
    follows = variables_of(dict(call.arguments))
    read = matrix if follows else lambda: ops.convert_to_tensor(known, "float32")
    synapses = matrix_synapses(f"{call.path}{suffix}", read, 1)

    def side_by_side(*tensors: Any) -> Any:
        return ops.concatenate([ops.reshape(x, (ops.shape(x)[0], -1)) for x in tensors], axis=1)

    flat, last = f"{suffix}:flat", f"{suffix}:sum"
    steps = [
        Step("routing", side_by_side, None, flat, tuple(range(len(call.input_shapes))), (size,)),
        replace(sum_step(replace(synapses, is_constant=True), last, (outputs,)), sources=(flat,)),
    ]
    if np.any(offset):
        added = at_zero if follows else offset
        steps.append(affine_step(1.0, added, f"{suffix}:offset", (last,), (outputs,)))
        last = f"{suffix}:offset"
    back = lambda x: ops.reshape(x, (ops.shape(x)[0], *shape))  # noqa: E731
    return (*steps, Step("routing", back, None, suffix, (last,), shape))


def reduction(operation: Any, call: LayerCall, kind: str) -> tuple[Step, ...]:
    """Return a mean, sum or maximum over any axes of a sample.

    Over all spatial axes it is global pooling; other axes are moved to the front first.
    """
    (shape,) = call.input_shapes
    rank = len(shape) + 1
    axes = axes_of(operation.axis, rank)
    if 0 in axes:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' ({type(operation).__name__}) reduces the batch axis and thus "
            "mixes samples; the analyses require samples to be independent."
        )
    kept = [a for a in range(1, rank) if a not in axes]
    extents = tuple(shape[a - 1] for a in axes)
    count, channels = int(np.prod(extents)), int(np.prod([shape[a - 1] for a in kept]))
    pool = ops.mean if kind == "average" else ops.max
    if kept == [rank - 1] and axes == list(range(1, rank - 1)):
        compute = partial(pool, axis=tuple(axes), keepdims=operation.keepdims)
        steps = [Step(kind, compute, Pooling(lambda: windows.whole(extents)))]
    else:
        front = (count, channels)

        def to_front(x: Any) -> Any:
            return ops.reshape(ops.transpose(x, (0, *axes, *kept)), (-1, *front))

        pooling = Pooling(lambda: windows.whole((count,)))
        steps = [
            Step("routing", to_front, None, ":front", (0,), front),
            Step(kind, partial(pool, axis=1), pooling, ":reduced", shape=(channels,)),
            Step("routing", lambda x: ops.reshape(x, (-1, *call.output_shape))),
        ]
    if type(operation).__name__ == "Sum" and count != 1:
        last = replace(steps.pop(), suffix=":mean", shape=call.output_shape)
        steps += [last, affine_step(float(count))]
    return tuple(steps)


def _where(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return a selection by a mask; one by values is rewritten, one by constants is a move."""
    condition = call.arguments["condition"]
    if not isinstance(condition, TensorAt):
        return function_of_tensors(operation, call)
    shape = call.output_shape
    parts: list[Any] = [call.arguments.get(name) for name in ("x1", "x2")]
    if not any(isinstance(part, TensorAt) for part in parts):

        def constants(m: Any) -> Any:
            return ops.where(is_set(m), *(_like(part, m) for part in parts))

        return (Step("scale", constants, None, sources=(condition.place,)),)
    steps: list[Step] = []
    names: list[str] = []
    for k, (part, other) in enumerate((parts, parts[::-1])):
        if not isinstance(part, TensorAt):
            continue
        source: Source = part.place
        if call.input_shapes[part.place] != shape:
            spread = lambda x: ops.broadcast_to(x, (ops.shape(x)[0], *shape))  # noqa: E731
            steps.append(Step("routing", spread, None, f":spread{k}", (source,), shape))
            source = f":spread{k}"
        left = 0.0 if isinstance(other, TensorAt) else other

        def compute(x: Any, m: Any, k: int = k, left: Any = left) -> Any:
            pair = (x, _like(left, x))
            return ops.where(is_set(m), *(pair[::-1] if k else pair))

        names.append(f":part{k}")
        steps.append(Step("scale", compute, None, names[-1], (source, condition.place), shape))
    if len(names) == 1:
        return (*steps[:-1], replace(steps[-1], suffix=""))
    return (*steps, Step("add", add, sources=tuple(names)))


def _like(value: Any, x: Any) -> Any:
    return ops.cast(current(value), x.dtype)


def _matmul(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    first, second = call.arguments["x1"], call.arguments["x2"]
    if isinstance(first, TensorAt) and isinstance(second, TensorAt):
        lead = string.ascii_uppercase[: len(call.input_shapes[0]) - 2]
        return (product_step(f"b{lead}xy,b{lead}yz->b{lead}xz"),)
    read, is_constant = _weights(second)
    synapses = matrix_synapses(call.path, read, int(np.prod(call.input_shapes[0][:-1])))
    return (sum_step(replace(synapses, is_constant=is_constant)),)


def _einsum(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    operands = call.arguments["operands"]
    variables = [v for v in operands if isinstance(v, keras.Variable)]
    if not variables:  # the rewrite has given it this form
        return (product_step(operation.subscripts),)
    ranks = [
        len(v.shape) if isinstance(v, keras.Variable) else len(call.input_shapes[v.place]) + 1
        for v in operands
    ]
    letters, outputs = spelled(operation.subscripts, ranks)
    (kernel,) = variables
    if operands[0] is kernel:
        letters = letters[::-1]
    layer = SimpleNamespace(
        equation=f"{letters[0]},{letters[1]}->{outputs}", kernel=kernel, bias=None, activation=None
    )
    return Projection(layer, call.path, call.input_shapes[0], call.output_shape).steps()


class _Layer(SimpleNamespace):
    """A convolution that is a function, with a layer's attributes; `read` returns its kernel."""

    kernel = property(lambda self: self.read())


def _convolution(
    of_layer: Callable[..., tuple[Step, ...]], operation: Any, call: LayerCall
) -> tuple[Step, ...]:
    """Return the steps of the layer that convolves with a variable, or with what follows some."""
    kernel = call.arguments["kernel"]
    if isinstance(kernel, TensorAt):
        return function_of_tensors(operation, call)
    rank = len(kernel.shape) - 2
    read, is_constant = _weights(kernel)
    layer = _Layer(
        read=read,
        bias=None,
        activation=None,
        kernel_size=tuple(kernel.shape[:-2]),
        strides=tuple(np.broadcast_to(operation.strides, rank).tolist()),
        dilation_rate=tuple(np.broadcast_to(operation.dilation_rate, rank).tolist()),
        padding=operation.padding,
        output_padding=getattr(operation, "output_padding", None),
        groups=call.input_shapes[0][-1] // kernel.shape[-2],
        data_format=operation.data_format or "channels_last",
    )
    (step,) = of_layer(layer, call)
    return (replace(step, params=replace(step.params, is_constant=is_constant)),)


def _take(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return a lookup in a table, a variable or a constant, or a move by constant indices."""
    table, indices = call.arguments["x"], call.arguments["indices"]
    if not isinstance(indices, TensorAt):
        return function_of_tensors(operation, call)
    if isinstance(table, TensorAt):
        raise UnsupportedLayerError(
            f"Operation '{call.path}' (Take) takes values of a tensor at indices of each sample, "
            "which has no rule. Use keras.ops.take_along_axis along axis 1 of a tensor (batch, "
            "positions, channels)."
        )
    if len(table.shape) != 2 or operation.axis not in (0, -2):
        raise UnsupportedLayerError(
            f"Operation '{call.path}' (Take) looks up in a table of shape {tuple(table.shape)} "
            f"along axis {operation.axis}; only rows of a matrix have a rule."
        )
    return (lookup_step(call, *_weights(table)),)


def _weights(value: Any) -> tuple[Callable[[], Any], bool]:
    """Return a function that reads weights, and whether they are constants."""
    if isinstance(value, keras.Variable):
        return (lambda: value), False
    return (lambda: ops.convert_to_tensor(current(value), "float32")), True


def _one_hot(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the lookup of tokens in the unit matrix."""
    if operation.axis not in (-1, len(call.input_shapes[0]) + 1):
        raise UnsupportedLayerError(
            f"Operation '{call.path}' (OneHot) puts the classes on axis {operation.axis}; only "
            "the last axis has a rule. Transpose after it."
        )
    if not call.is_token:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' (OneHot) takes integers computed from activations. An index "
            "has no meaningful change that a rule could share among the inputs."
        )
    return (lookup_step(call, *_weights(np.eye(operation.num_classes, dtype=np.float32))),)


def _index(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    raise UnsupportedLayerError(
        f"Operation '{call.path}' ({type(operation).__name__}) returns indices of activations. An "
        "index has no meaningful change that a rule could share among the inputs. Compute it "
        "outside the model, or use the values: keras.ops.max."
    )


def _comparison(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    """Return a mask, or for values a step function, whose change is shared like any other's."""
    function = bound(operation, call)
    if not call.is_value:
        # The graph holds masks and tokens as floats.
        def compare(*x: Any) -> Any:
            pairs = zip(x, call.dtypes, strict=False)
            return function(*(is_set(v) if dtype == "bool" else v for v, dtype in pairs))

        return (mask_step(compare),)
    step = Elementwise(type(operation).__name__.lower(), mixes=False)
    return (Step("elementwise", lambda x: ops.cast(function(x), x.dtype), step),)


def _cast(operation: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return the step of a cast to bool; another one is no step: a graph has one dtype."""
    if operation.dtype != "bool" or call.dtypes[0] == "bool":
        return ()
    if not call.is_value:
        return (mask_step(lambda x: ops.not_equal(x, 0)),)
    step = Elementwise("not_equal", mixes=False)
    return (Step("elementwise", lambda x: ops.cast(ops.not_equal(x, 0), x.dtype), step),)


LAYERS: LayerTable = {
    **dict.fromkeys(("Amax", "Max"), partial(reduction, kind="maximum")),
    **dict.fromkeys(("Argmax", "Argmin", "Argsort", "SearchSorted"), _index),
    "Cast": _cast,
    "Conv": partial(_convolution, convolution),
    "ConvTranspose": partial(_convolution, transposed),
    "DepthwiseConv": partial(_convolution, depthwise),
    "Einsum": _einsum,
    "Matmul": _matmul,
    **dict.fromkeys(("Mean", "Sum"), partial(reduction, kind="average")),
    "OneHot": _one_hot,
    "StopGradient": lambda operation, call: (Step("routing", lambda x: x),),
    "Take": _take,
    "Where": _where,
    **dict.fromkeys((*COMPARISONS, "Isnan", "Isinf", "Isfinite"), _comparison),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot", "LogicalXor"), _comparison),
}
