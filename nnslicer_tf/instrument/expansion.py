"""Expansion of a layer without a rule: what its `call` does, as calls of layers and `keras.ops`.

`call` runs on symbolic tensors of the sizes at hand, with a batch of a size that occurs nowhere
else, so that `keras.ops.shape(x)[0]` is a number and the batch axis is found again. Keras records
the calls. While `call` runs, the layers inside are replaced by stand-ins, which find the shapes of
results by running the layer and so allow results that are None, such as caches; so are variables,
whose operators would call functions of the backend. Values that do not depend on the inputs are
constants. Those that depend on variables are computed again, by another run of `call`, whenever
they are needed: they follow the weights.

Limits: no functions of TensorFlow, and no Python condition or loop on values of tensors.
"""

import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from operator import itemgetter
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError

TENSORFLOW = "a function of TensorFlow is called on a symbolic tensor"
_RUNS = threading.local()
_LOCK = threading.RLock()  # one thread at a time replaces the parts of layers
# In place of infinite constants, such as those that mask scores: ∞ − ∞ is no change.
_LIMIT = 1e30
# Attributes of a layer in which Keras and TensorFlow keep all layers inside.
OF_KERAS = (
    *("_layers", "_metrics", "_losses", "_self_unconditional", "_self_name_based", "_tracker"),
    *("_trainable_variables", "_non_trainable_variables", "_seed_generators", "_obj_reference"),
)
_BATCHES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


class Constant:
    """A value that depends on no input of the model, but perhaps on variables.

    `read` returns it. If it is `batched`, the first axis of its shape is the batch's, of size 1.
    `variables` are those with which it may change.
    """

    def __init__(
        self,
        read: Callable[[], Any],
        shape: Sequence[int],
        dtype: Any,
        batched: bool,
        variables: Sequence[keras.Variable],
    ) -> None:
        self._read = read
        self.shape = (1, *shape[1:]) if batched else tuple(shape)
        self.dtype = keras.backend.standardize_dtype(dtype)
        self.batched, self.variables = batched, variables

    def value(self) -> Any:
        """Return the value, computed from the current variables, with a batch axis of size 1."""
        value = ops.convert_to_tensor(self._read())
        return value[:1] if self.batched else value

    def like(self, x: Any) -> Any:
        """Return the value for the batch of a tensor."""
        value = self.value()
        return ops.repeat(value, ops.shape(x)[0], axis=0) if self.batched else value


def of_constants(layer: keras.Operation, args: tuple, kwargs: Mapping, specs: Any) -> Any:
    """Return the results of a call of constants, which are constants; `specs` are their shapes."""

    def read(place: int) -> Any:
        now = keras.tree.map_structure(current, (args, kwargs))
        return keras.tree.flatten(layer(*now[0], **now[1]))[place]

    leaves = [
        Constant(partial(read, place), spec.shape, spec.dtype, True, variables_of((args, kwargs)))
        for place, spec in enumerate(keras.tree.flatten(specs))
    ]
    return keras.tree.pack_sequence_as(specs, leaves)


def variables_of(structure: Any) -> list[keras.Variable]:
    """Return the variables among arguments, and those with which their `Constant`s may change."""
    found: dict[int, keras.Variable] = {}
    for leaf in keras.tree.flatten(structure):
        own = leaf.variables if isinstance(leaf, Constant) else [leaf]
        found |= {id(v): v for v in own if isinstance(v, keras.Variable)}
    return list(found.values())


def current(value: Any) -> Any:
    """Return what an argument stands for now: a `Constant`'s value, otherwise itself, if finite."""
    if type(value) is float:
        return float(np.clip(value, -_LIMIT, _LIMIT))
    return value.value() if isinstance(value, Constant) else value


@dataclass(frozen=True, eq=False)
class InnerCall:
    """A call inside a layer, with symbolic tensors and constants as arguments."""

    operation: keras.Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Expansion:
    """The calls inside a layer, in topological order."""

    entries: tuple[Any, ...]  # the symbolic tensors with which it was called
    calls: tuple[InnerCall, ...]
    outputs: Sequence[Any]  # what it returned, flat: symbolic tensors and constants

    def structure(self) -> Any:
        """Return the arguments of all calls, and the outputs."""
        return [(call.args, call.kwargs) for call in self.calls], list(self.outputs)

    def leaves(self) -> list[Any]:
        """Return `structure` as a flat list, in a fixed order."""
        return keras.tree.flatten(self.structure())


def expand(
    layer: keras.Operation,
    call: Callable[..., Any],
    structure: Any,
    masks: Sequence[Any],
    values: set[int],
    path: str,
) -> Expansion | None:
    """Return the calls that a function, such as a layer's `call`, makes, with `Constant`s.

    `structure` are its arguments `(args, kwargs)`, `masks` those of its tensors, and `values` the
    ids of boolean tensors that are not masks. Returns None if the function returns NotImplemented;
    raises UnsupportedLayerError if it fails on symbolic tensors, or moves the batch axis.
    """
    weights = getattr(layer, "weights", [])
    sizes = {n for x in (*keras.tree.flatten(structure), *weights) for n in getattr(x, "shape", ())}
    batch = next(n for n in _BATCHES if n not in sizes)
    run = partial(_run, layer, call, structure, masks, values, batch, path)
    expansion = run()
    if expansion is None:
        return None
    leaves = varied = expansion.leaves()
    # Which constants follow the variables? Those that differ when the variables do.
    others, options = moved(weights), _options(expansion)
    if others and any("float" in str(v.dtype) for v in (*leaves, *options) if is_value(v)):
        with keras.StatelessScope(others):
            again: Any = run()
        varied = again.leaves()
        if not all(map(np.array_equal, map(np.asarray, options), map(np.asarray, _options(again)))):
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(layer).__name__}) passes a value that it computes from its "
                "weights as an option of a function, which would not follow them. Write the "
                "function with others of keras.ops, such as maximum and minimum."
            )
    of_arguments = variables_of(structure)

    def constant(place: int, leaf: Any) -> Any:
        if not is_value(leaf):
            return leaf
        value, other = map(ops.convert_to_numpy, (leaf, varied[place]))
        batched = value.ndim > 0 and value.shape[0] == batch
        if batched and not (value == value[:1]).all():
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(layer).__name__}) adds different values to each sample of "
                "a batch. Analyses need a model that treats each sample alike."
            )
        finite = np.clip(value, -_LIMIT, _LIMIT) if value.dtype.kind == "f" else value
        follows = of_arguments or not np.array_equal(value, other)
        read = partial(_leaf, run, place) if follows else partial(np.asarray, finite)
        variables = [*of_arguments, *weights] if follows else ()
        return Constant(read, value.shape, value.dtype, batched, variables)

    calls, outputs = keras.tree.pack_sequence_as(
        expansion.structure(), [constant(place, leaf) for place, leaf in enumerate(leaves)]
    )
    inner = [
        InnerCall(known.operation, args, kwargs, known.outputs)
        for known, (args, kwargs) in zip(expansion.calls, calls, strict=True)
    ]
    return Expansion(expansion.entries, _batch_first(inner, outputs, layer, path, batch), outputs)


def _options(expansion: Expansion) -> list[Any]:
    """Return the values that functions hold as options."""
    operations = [call.operation for call in expansion.calls]
    options = [vars(o) for o in operations if not isinstance(o, keras.layers.Layer)]
    return [value for known in options for value in known.values() if is_value(value)]


def _batch_first(
    calls: Sequence[InnerCall], outputs: Sequence[Any], layer: Any, path: str, batch: int
) -> tuple[InnerCall, ...]:
    """Return calls that work for any batch size, with the batch axis first in all tensors.

    Moves of the axis and back are merged. Raises UnsupportedLayerError if the axis is lost.
    """
    result = []
    moved: dict[int, tuple] = {}  # id of a tensor → what is moved, and the moves

    def check(name: str, tensors: Sequence[Any]) -> None:
        for x in tensors:
            is_symbolic = type(x) is keras.KerasTensor
            if not is_symbolic or (id(x) not in moved and x.shape[:1] == (batch,)):
                continue
            size = x.shape[0] if x.shape else 0
            how = "has no batch axis in front: the layer mixes samples, or moves their axis"
            if size > batch and size % batch == 0:
                how = (
                    "merges the batch axis with another one: the layer mixes samples, as mixtures "
                    "of experts and windowed attention do"
                )
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(layer).__name__}) calls {name} with a tensor "
                f"{tuple(x.shape)} that {how}. Keep the batch axis first and separate."
            )

    for call in calls:
        operation, args, kind = call.operation, call.args, type(call.operation).__name__
        source, *others = keras.tree.flatten((args, call.kwargs))
        if kind in _MOVES and not others:
            source, moves = moved.get(id(source), (source, ()))
            moves = (*moves, operation)
            if call.outputs[0].shape[:1] != (batch,):
                moved[id(call.outputs[0])] = source, moves
                continue
            if len(moves) > 1:
                together = partial(reduce, lambda value, move: move.call(value), moves)
                operation, args = _Function(together, operation.name), (source,)
        check(operation.name, (source, *others, *call.outputs))
        shape = getattr(operation, "newshape", getattr(operation, "shape", None))
        rest = tuple(call.outputs[0].shape[1:])
        if kind == "Reshape":
            operation = type(operation)((-1, *rest), name=operation.name)
        elif kind == "BroadcastTo" and tuple(shape or ())[:1] == (batch,):
            spread = lambda x, rest=rest: ops.broadcast_to(x, (ops.shape(x)[0], *rest))  # noqa: E731
            operation = _Function(spread, operation.name)
        elif kind == "Slice":  # (x, start_indices), with `shape` as an attribute or argument
            starts, sizes = [*args[1:], shape][:2]
            parts = [slice(int(a), int(a) + int(n)) for a, n in zip(starts, sizes, strict=True)]
            operation = _Function(itemgetter((slice(None), *parts[1:])), operation.name)
            args = args[:1]
        result.append(InnerCall(operation, args, call.kwargs, call.outputs))
    check(layer.name, [x for x in outputs if id(x) in moved])
    return tuple(result)


# Operations that move axes, whatever the sizes; one tensor, all else are attributes
_MOVES = ("ExpandDims", "Transpose", "Swapaxes", "Moveaxis", "Squeeze")


class _Function(keras.Operation):
    """A function of one tensor as an operation."""

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        super().__init__(name=name)
        self._function = function

    def call(self, x: Any) -> Any:
        return self._function(x)


def _leaf(run: Callable[[], Any], place: int) -> Any:
    """Return a value of another run of a layer's `call`, one for all values of a `one_run`."""
    with one_run():
        if id(run) not in _RUNS.leaves:
            _RUNS.leaves[id(run)] = run, run().leaves()
        return _RUNS.leaves[id(run)][1][place]


@contextmanager
def one_run() -> Iterator[None]:
    """Compute constants once in this context, in which no variable changes."""
    outermost = getattr(_RUNS, "leaves", None) is None
    if outermost:
        _RUNS.leaves = {}
    try:
        yield
    finally:
        if outermost:
            _RUNS.leaves = None


@contextmanager
def with_moved(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Give variables other values for a while, for which constants are computed anew."""
    before, _RUNS.leaves = getattr(_RUNS, "leaves", None), {}
    try:
        with keras.StatelessScope(moved(variables)):
            yield
    finally:
        _RUNS.leaves = before


def moved(variables: Iterable[keras.Variable]) -> list[tuple[keras.Variable, Any]]:
    """Return variables of real numbers with other values, for a `StatelessScope`."""
    return [(v, ops.cast(v, v.dtype) * 0.75 + 0.375) for v in variables if "float" in v.dtype]


def is_value(leaf: Any) -> bool:
    """Whether an argument is an array or a tensor with a value."""
    is_tensor = keras.ops.is_tensor(leaf) and not isinstance(leaf, keras.Variable)
    return is_tensor or isinstance(leaf, np.ndarray)


def received_dtype(layer: keras.Operation, x: Any) -> str:
    """Return the dtype in which a layer's `call` gets a tensor."""
    casts = isinstance(layer, keras.layers.Layer) and layer.autocast and "float" in x.dtype
    return layer.compute_dtype if casts and "float" in layer.compute_dtype else x.dtype


def user_line(error: BaseException) -> str:
    """Return the last line of the user's own code that an error passed, "file:line", or ""."""
    libraries = ("keras", "keras_hub", "tensorflow", "optree", "nnslicer_tf", "numpy", "tree")
    inside = tuple(f"{name}/" for name in libraries)
    places = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    lines = [p for p in places if not any(part in p.replace("\\", "/") for part in inside)]
    # A layer of a library has no line of the user's: its own is shown.
    own = [place for place in places if "keras_hub/" in place]
    return (own or lines or [""])[-1]


def why_not(error: BaseException) -> str:
    """Return why symbolic tracing failed: the first line of an error, and the line of code."""
    lines = [re.sub("\x1b\\[[0-9]*m", "", line) for line in str(error).splitlines()]
    known = ("Exception encountered", "Could not automatically infer", "Arguments received")
    lines = [line.strip() for line in lines if line.strip() and not line.startswith(known)]
    reason = next(iter(lines), type(error).__name__)
    if "KerasTensor cannot be used as input to a TensorFlow function" in str(error):
        reason = TENSORFLOW
    line = user_line(error)
    return f"{reason.rstrip('.')} ({line})." if line else reason


def _run(
    layer: keras.Operation,
    call: Callable[..., Any],
    structure: Any,
    masks: Sequence[Any],
    values: set[int],
    batch: int,
    path: str,
) -> Expansion | None:
    stream = iter(masks)
    entries: dict[int, Any] = {}  # of tensors and of masks, by the id of the original
    tensors = []

    def entry(x: Any) -> Any:
        if not isinstance(x, keras.KerasTensor):
            return current(x)
        mask = next(stream)
        for one in (x, mask):
            if one is not None and id(one) not in entries:
                dtype = received_dtype(layer, one)
                entries[id(one)] = keras.KerasTensor((batch, *one.shape[1:]), dtype=dtype)
        tensors.append(entries[id(x)])
        entries[id(x)].is_value = id(x) in values
        if mask is not None:
            entries[id(x)]._keras_mask = entries[id(mask)]
        return entries[id(x)]

    args, kwargs = keras.tree.map_structure(entry, structure)
    with _LOCK, _stand_ins(layer):
        try:
            result = call(*args, **kwargs)
        except UnsupportedLayerError:
            raise
        except Exception as error:  # whatever a user's `call` raises
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(layer).__name__}) has no rule, and its call cannot be "
                f"traced on symbolic tensors: {why_not(error)} Write it with Keras's layers and "
                "keras.ops, without Python conditions on values of tensors. If that is not "
                f"possible, register its operations: nnslicer_tf.register_layer("
                f"{type(layer).__name__}, operations_fn)."
            ) from error
    if result is NotImplemented:
        return None
    outputs = tuple(keras.tree.flatten(result))
    calls = _calls_before(outputs, set(map(id, entries.values())))
    masks_of = [entries[id(mask)] if mask is not None else None for mask in masks]
    return Expansion((*tensors, *masks_of), calls, outputs)


def _calls_before(outputs: Sequence[Any], known: set[int]) -> tuple[InnerCall, ...]:
    calls: list[InnerCall] = []
    done: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(tensor, False) for tensor in reversed(outputs)]
    while waiting:
        tensor, is_ready = waiting.pop()
        if not isinstance(tensor, keras.KerasTensor) or id(tensor) in known:
            continue
        history = tensor._keras_history
        node = history.operation._inbound_nodes[history.node_index]
        if id(node) in done:
            continue
        if is_ready:
            done.add(id(node))
            args, kwargs = keras.tree.map_structure(
                lambda x: getattr(x, "original", x) if isinstance(x, keras.Variable) else x,
                (node.arguments.args, node.arguments.kwargs),
            )
            operation = history.operation
            operation = operation.layer if isinstance(operation, _CallOf) else operation
            if type(operation).__name__ == "Clip":
                bounds = [getattr(b, "original", b) for b in (operation.x_min, operation.x_max)]
                if any(isinstance(b, keras.Variable) or is_value(b) for b in bounds):
                    # Bounds that may follow weights become arguments.
                    pair, kwargs = (args[0], bounds[0]), {}
                    middle = ops.maximum(*pair)
                    of_middle = middle._keras_history.operation
                    calls.append(InnerCall(of_middle, pair, kwargs, (middle,)))
                    args = middle, bounds[1]
                    operation = ops.minimum(*args)._keras_history.operation
            calls.append(InnerCall(operation, args, kwargs, tuple(node.outputs)))
            continue
        waiting.append((tensor, True))
        waiting.extend((x, False) for x in reversed(node.arguments.keras_tensors))
    return tuple(calls)


class _CallOf(keras.Operation):
    """The call of a layer on symbolic tensors; its outputs are the tensors among the results."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__(name=layer.name)
        self.layer = layer
        self.result: Any = None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> list[Any]:
        def dense(x: Any) -> Any:  # some functions of Keras call tensors sparse by mistake
            is_sparse = isinstance(x, keras.KerasTensor) and x.sparse
            return keras.KerasTensor(x.shape, dtype=x.dtype) if is_sparse else x

        args, kwargs = keras.tree.map_structure(dense, (args, kwargs))
        self.result = super().compute_output_spec(*args, **kwargs)
        return [x for x in keras.tree.flatten(self.result) if isinstance(x, keras.KerasTensor)]


def _own_operators(variable: keras.Variable) -> keras.Variable:
    """Return a variable with the same state whose operators accept symbolic tensors."""

    def operator(name: str) -> Callable[..., Any]:
        function = getattr(ops, _OPERATORS[name.strip("_").removeprefix("r")])

        def apply(self: Any, other: Any) -> Any:
            if not isinstance(other, keras.KerasTensor):
                return getattr(variable, name)(other)
            return function(*((other, self) if name.startswith("__r") else (self, other)))

        return apply

    members = {n: operator(n) for o in _OPERATORS for n in (f"__{o}__", f"__r{o}__")}
    value = property(lambda self: variable.value)
    kind = type(variable)
    subclass = type(kind.__name__, (kind,), {**members, "value": value, "original": variable})
    twin: Any = object.__new__(subclass)
    twin.__dict__ = variable.__dict__
    return twin


# Name of an operator → the function of keras.ops
_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "matmul": "matmul",
    "pow": "power",
}


class _StandIn:
    """Takes the place of a layer inside another while that one's `call` is traced."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self._layer
        leaves = keras.tree.flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, keras.KerasTensor)]
        if not tensors:
            return layer(*args, **kwargs)
        call = _CallOf(layer)
        call(*args, **kwargs)
        mask = getattr(tensors[0], "_keras_mask", None)
        first = next(iter(args or kwargs.values()))
        if layer.supports_masking and not isinstance(first, (list, tuple, dict)):
            mask = layer.compute_mask(first, mask)
            results = keras.tree.flatten(call.result)
            if isinstance(mask, keras.KerasTensor) and isinstance(results[0], keras.KerasTensor):
                results[0]._keras_mask = mask
        return call.result


@contextmanager
def _stand_ins(layer: keras.Operation) -> Iterator[None]:
    """Replace the layers that a layer's attributes hold by stand-ins, for a while."""
    known: dict[int, Any] = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, keras.layers.Layer):
            return known.setdefault(id(value), _StandIn(value))
        if isinstance(value, keras.Variable):
            return known.setdefault(id(value), _own_operators(value))
        if isinstance(value, dict):
            return {key: replaced(entry) for key, entry in value.items()}
        if type(value) is tuple or isinstance(value, list):
            entries = [*map(replaced, value)]
            return tuple(entries) if isinstance(value, tuple) else entries
        return value

    attributes = vars(layer) if isinstance(layer, keras.layers.Layer) else {}
    before = dict(attributes)
    try:
        for name, value in before.items():
            if not name.startswith(OF_KERAS) and _holds_parts(value):
                attributes[name] = replaced(value)
        yield
    finally:
        attributes.update(before)  # also what `call` has set, such as a shape


def _holds_parts(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_holds_parts, value))
    return isinstance(value, (keras.layers.Layer, keras.Variable))
