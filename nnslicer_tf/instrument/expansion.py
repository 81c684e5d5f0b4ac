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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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

    If it is `batched`, the first axis of its `shape` is the batch's, of size 1.
    """

    def __init__(self, read: Callable[[], Any], shape: Sequence[int], batched: bool) -> None:
        self._read = read
        self.shape = (1, *shape[1:]) if batched else tuple(shape)
        self.batched = batched

    def value(self) -> Any:
        """Return the value, computed from the current variables, with a batch axis of size 1."""
        value = ops.convert_to_tensor(self._read())
        return value[:1] if self.batched else value

    def like(self, x: Any) -> Any:
        """Return the value for the batch of a tensor."""
        value = self.value()
        return ops.repeat(value, ops.shape(x)[0], axis=0) if self.batched else value


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

    batch: int  # the size of the batch with which `call` ran
    entries: tuple[Any, ...]  # the symbolic tensors with which it was called
    calls: tuple[InnerCall, ...]
    outputs: tuple[Any, ...]  # what it returned, flat: symbolic tensors and constants

    def leaves(self) -> list[Any]:
        """Return all arguments of all calls and the outputs, in a fixed order."""
        parts = [(call.args, call.kwargs) for call in self.calls]
        return keras.tree.flatten((parts, self.outputs))


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
    ids of boolean tensors that are no masks. Returns None if the function returns NotImplemented;
    raises UnsupportedLayerError if it fails on symbolic tensors.
    """
    leaves = keras.tree.flatten(structure)
    weights = getattr(layer, "weights", [])
    sizes = {n for x in (*leaves, *weights) for n in getattr(x, "shape", ())}
    batch = next(n for n in _BATCHES if n not in sizes)

    run = partial(_run, layer, call, structure, masks, values, batch, path)
    expansion = run()
    if expansion is None:
        return None
    leaves = expansion.leaves()
    places = [i for i, leaf in enumerate(leaves) if is_value(leaf)]
    if not places:
        return expansion
    # Which constants follow the variables? Those that differ when the variables do.
    moved = [(v, ops.cast(v, v.dtype) * 0.75 + 0.375) for v in weights if "float" in v.dtype]
    received = keras.tree.flatten(structure)
    follows = any(isinstance(leaf, keras.Variable) for leaf in received)
    outer = [leaf for leaf in received if isinstance(leaf, Constant)]
    last = _last_values(run, outer, dict(zip(places, (leaves[i] for i in places), strict=True)))
    varied: list[Any] = leaves
    if moved and any("float" in str(leaves[i].dtype) for i in places):
        with keras.StatelessScope(moved):
            varied = run().leaves()  # type: ignore[union-attr]
    constants: dict[int, Constant] = {}
    for place in places:
        value = ops.convert_to_numpy(leaves[place])
        other = ops.convert_to_numpy(varied[place])
        batched = value.ndim > 0 and value.shape[0] == batch
        if batched and not (value == value[:1]).all():
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(layer).__name__}) adds different values to each sample of "
                "a batch. Analyses need a model that treats each sample alike."
            )
        finite = np.clip(value, -_LIMIT, _LIMIT) if value.dtype.kind == "f" else value
        read: Callable[[], Any] = partial(np.asarray, finite)
        if follows or value.shape != other.shape or not np.array_equal(value, other):
            read = partial(_leaf, run, place)
        elif outer:
            read = partial(last, place)
        constants[place] = Constant(read, value.shape, batched)
    stream = iter(range(len(leaves)))

    def replaced(leaf: Any) -> Any:
        return constants.get(next(stream), leaf)

    calls = []
    for inner in expansion.calls:
        args, kwargs = keras.tree.map_structure(replaced, (inner.args, inner.kwargs))
        calls.append(InnerCall(inner.operation, args, kwargs, inner.outputs))
    outputs = tuple(map(replaced, expansion.outputs))
    return Expansion(batch, expansion.entries, tuple(calls), outputs)


def _last_values(
    run: Callable[[], Any], outer: Sequence[Constant], values: dict[int, Any]
) -> Callable[[int], Any]:
    """Return a function to the values in a layer that depend on constants of outer layers alone.

    The layer's `call` runs again only if one of these differs from the last time: layers within
    layers would run each other otherwise, many times.
    """
    known: list[Any] = [None]

    def value(place: int) -> Any:
        try:
            now = [ops.convert_to_numpy(constant.value()) for constant in outer]
        except (NotImplementedError, TypeError, AttributeError):  # inside a compiled function
            return _leaf(run, place)
        if known[0] is None or not all(map(np.array_equal, now, known[0])):
            leaves = run().leaves()
            values.update((i, leaves[i]) for i in values)
            known[0] = now
        return values[place]

    return value


def _leaf(run: Callable[[], Any], place: int) -> Any:
    """Return a value of another run of a layer's `call`, one for all values of a `one_run`."""
    known = getattr(_RUNS, "leaves", None)
    if known is None:
        return run().leaves()[place]
    if id(run) not in known:
        known[id(run)] = run, run().leaves()
    return known[id(run)][1][place]


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
    places = [
        f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
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
    return Expansion(batch, (*tensors, *masks_of), calls, outputs)


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
        reverse = name.startswith("__r")

        def apply(self: Any, other: Any) -> Any:
            pair = (other, self) if reverse else (self, other)
            return function(*pair) if isinstance(other, keras.KerasTensor) else NotImplemented

        def either(self: Any, other: Any) -> Any:
            result = apply(self, other)
            return getattr(variable, name)(other) if result is NotImplemented else result

        return either

    names = [f"__{r}{name}__" for name in _OPERATORS for r in ("", "r")]
    members = {name: operator(name) for name in names}
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
        if not layer.built:
            with _kept_nodes(layer):
                layer(*args, **kwargs)
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
    before = {
        name: value
        for name, value in attributes.items()
        if not name.startswith(OF_KERAS) and _holds_parts(value)
    }
    everything = dict(attributes)
    try:
        attributes.update({name: replaced(value) for name, value in before.items()})
        yield
    finally:
        attributes.update(everything)  # also what `call` has set, such as a shape


def _holds_parts(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_holds_parts, value))
    return isinstance(value, (keras.layers.Layer, keras.Variable))


@contextmanager
def _kept_nodes(layer: keras.Operation) -> Iterator[None]:
    """Remove the nodes that a symbolic run adds to the layers inside."""
    before = [
        (nodes, len(nodes))
        for part in getattr(layer, "_flatten_layers", lambda: ())()
        for nodes in (part._inbound_nodes, part._outbound_nodes)
    ]
    try:
        yield
    finally:
        for nodes, count in before:
            del nodes[count:]
