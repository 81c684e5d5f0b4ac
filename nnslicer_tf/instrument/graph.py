"""The graph of operations: their dependencies, the functions that compute them, and gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import backend, operations
from nnslicer_tf.instrument.expansion import one_run
from nnslicer_tf.instrument.heads import find_heads
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.instrument.layers.derivatives import is_own_function, with_own_derivative
from nnslicer_tf.instrument.layers.masks import is_set, mask_step
from nnslicer_tf.instrument.layers.probing import recognised
from nnslicer_tf.instrument.recurrence import Member, Unrolled, inside
from nnslicer_tf.instrument.registry import layer_steps
from nnslicer_tf.instrument.tracing import Call, Trace

HALVES = ("bfloat16", "float16")


class Graph:
    """The operations of a model, with the functions that compute them.

    Attributes:
        operations: Name → operation, in topological order, starting with the inputs.
        inputs: Names of the input operations.
        outputs: Names of the operations that compute the model's outputs.
        names: Id of each traced tensor → name of the operation that computes it.
    """

    def __init__(self, sources: Sequence[operations.Operation]) -> None:
        self.operations = {source.name: source for source in sources}
        self.inputs = tuple(self.operations)
        self.outputs: tuple[str, ...] = ()
        self.names: dict[int, str] = {}

    def add(self, operation: operations.Operation) -> None:
        """Append an operation; raise UnsupportedLayerError if its name is taken."""
        if operation.name in self.operations:
            first = self.operations[operation.name]
            raise UnsupportedLayerError(
                f"Layers '{first.layer}' and '{operation.layer}' "
                f"({type(operation.keras_layer).__name__}) both have an operation "
                f"'{operation.name}'. Rename one of them; ':', '/' and '#' are for parts of layers."
            )
        self.operations[operation.name] = operation
        vars(self).pop("consumers", None)

    @property
    def has_halves(self) -> bool:
        """Whether a layer computes in bfloat16 or float16; it is then analysed in float32."""
        layers = (operation.keras_layer for operation in self.operations.values())
        return any(getattr(layer, "compute_dtype", "") in HALVES for layer in layers)

    @property
    def has_long_loops(self) -> bool:
        """Whether a recurrent layer has so many steps that its loop runs only compiled."""
        members = (o.params for o in self.operations.values() if isinstance(o.params, Member))
        return any(member.unrolled.steps > backend.FEW_STEPS for member in members)

    @cached_property
    def consumers(self) -> dict[str, tuple[operations.Operation, ...]]:
        """Operation name → the operations that take its value, in topological order."""
        consumers: dict[str, list[operations.Operation]] = {name: [] for name in self.operations}
        for operation in self.operations.values():
            for source in dict.fromkeys(operation.inputs):
                consumers[source].append(operation)
        return {name: tuple(takers) for name, takers in consumers.items()}

    def vocabulary(self, name: str) -> int | None:
        """Return the number of tokens that an input accepts, None if it takes numbers."""
        rows = []
        waiting = [name]
        while waiting:
            for taker in self.consumers[waiting.pop()]:
                if isinstance(taker.params, operations.Lookup):
                    rows.append(taker.params.shape[0])
                elif taker.kind == "routing":
                    waiting.append(taker.name)
        return min(rows, default=None)

    def ancestors(
        self, names: Iterable[str], first: str | None = None
    ) -> tuple[operations.Operation, ...]:
        """Return `names` and all that they depend on, in topological order, from `first` on."""
        reached = set(names)
        needed = []
        for name, operation in reversed(self.operations.items()):
            if name in reached:
                reached.update(operation.inputs)
                needed.append(operation)
            if name == first:
                break
        return tuple(reversed(needed))

    def between(
        self, after: Iterable[str], names: Iterable[str]
    ) -> tuple[operations.Operation, ...]:
        """Return the operations that depend on `after` and that `names` depend on, with `names`."""
        reached = set(after)
        later = set()
        for operation in self.operations.values():
            if not reached.isdisjoint(operation.inputs):
                reached.add(operation.name)
                later.add(operation.name)
        return tuple(o for o in self.ancestors(names) if o.name in later)

    def ends(self, name: str, kinds: Iterable[str] = ("scale", "routing")) -> list[str]:
        """Return an operation, and those before it that are only scaled or moved to give it."""
        found = [name]
        while self.operations[name].kind in kinds and len(self.operations[name].inputs) == 1:
            (name,) = self.operations[name].inputs
            found.append(name)
        return found

    @one_run()
    def run(
        self, x: Any, wanted: Iterable[str], change: Callable[[str, Any], Any] | None = None
    ) -> dict[str, Any]:
        """Return the values of the operations `wanted` and of all that they depend on, by name.

        `x` is `(batch, …)`, and the values have its dtype; several inputs are a list or tuple.
        `change` maps an operation's name and value to the value used from then on.
        """
        change = change or (lambda name, value: value)
        inputs = x if isinstance(x, (list, tuple)) else (x,)
        dtype = keras.backend.standardize_dtype(inputs[0].dtype)
        values = {name: change(name, v) for name, v in zip(self.inputs, inputs, strict=True)}
        through_time: dict[Unrolled, Any] = {}
        needed = self.ancestors(wanted)
        for operation in needed:
            name, params = operation.name, operation.params
            if name in self.inputs:
                continue
            sources = (values[source] for source in operation.inputs)
            if isinstance(params, Member):  # those of a recurrent layer are computed together
                if params.unrolled not in through_time:
                    names = inside(params.unrolled, needed)
                    through_time[params.unrolled] = params.unrolled.run(*sources, wanted=names)
                value = through_time[params.unrolled][params.operation.name]
            else:
                value = operation.compute(*sources)
            if keras.backend.standardize_dtype(value.dtype) in (*HALVES, "float64"):
                value = ops.cast(value, dtype)  # of layers with a dtype of their own
            values[name] = change(name, value)
        return values

    def keep_padding(self, name: str, changed: Any, x: Sequence[Any]) -> Any:
        """Return other values of an input, given the inputs' own `x`: padding and masks stay."""
        mask, own = self.operations[name].mask, x[self.inputs.index(name)]
        if any(operation.mask == name for operation in self.operations.values()):
            return own
        if mask is None:
            return changed
        data = self.run(x, [mask])[mask]
        data = ops.reshape(data, (-1, *data.shape[1:], *(1,) * (changed.ndim - data.ndim)))
        return ops.where(is_set(data), changed, own)

    def forward_pass(
        self, names: Sequence[str]
    ) -> Callable[[np.ndarray | Inputs], list[np.ndarray]]:
        """Return the values of operations as a function of a batch, which is compiled once.

        A single sample is duplicated: matrix-vector products round differently from matrix-matrix
        products. Most processors then give the same bits for every batch size.
        """

        def outputs(x: Any) -> list[Any]:
            values = self.run([ops.convert_to_tensor(one) for one in x], names)
            return [values[name] for name in names]

        shapes = [(None, *self.operations[name].shape) for name in self.inputs]
        forward = backend.compiled_function(outputs, [shapes])

        def run(batch: np.ndarray | Inputs) -> list[np.ndarray]:
            samples = len(batch)
            values = forward(list(arrays_of(batch if samples > 1 else batch[[0, 0]])))
            return [np.asarray(value)[:samples] for value in values]

        return run


def build_graph(trace: Trace) -> Graph:
    """Return the graph of a traced model; raise UnsupportedLayerError if a layer has no rule."""
    backend.check_process()
    sources = [
        operations.Operation(name, "input", name, (), (), shape, None, lambda x: x, None)
        for name, shape in zip(trace.input_names, trace.input_shapes, strict=True)
    ]
    graph = Graph(sources)
    names = graph.names
    names.update(zip(trace.inputs, graph.inputs, strict=True))
    with one_run():
        for call in trace.calls:
            names.update(zip(call.outputs, _add_call(graph, call, names), strict=True))
    graph.outputs = tuple(names[tensor] for tensor in trace.outputs)
    graph.operations.update(_before_masks(graph, trace))
    graph.operations.update(find_heads(graph.operations, graph.consumers))
    vars(graph).pop("consumers")  # it holds the replaced operations
    return graph


def _before_masks(graph: Graph, trace: Trace) -> dict[str, operations.Operation]:
    """Return operations whose padding nothing reads, such as an input before `Masking`.

    They get the mask under which all that read them do, so that values at padding count nowhere.
    """
    given: dict[tuple[str, str], str | None] = {}
    at_each = keras.layers.Dense, keras.layers.Activation, keras.layers.ReLU  # position alone
    for call in trace.calls:
        for tensor, mask in zip(call.inputs, call.paddings, strict=False):
            key, name = (graph.names[tensor], call.path), graph.names.get(mask)
            given[key] = name if given.get(key, name) == name else None
    found: dict[str, operations.Operation] = {}
    makers: set[str | None] = {*given.values()}  # of masks, which read padding to tell it
    for name, operation in reversed(graph.operations.items()):
        takers = graph.consumers[name]
        masks = {
            found.get(o.name, o).mask
            if o.kind == "scale" or isinstance(o.keras_layer, at_each)
            else given.get((name, o.layer))
            for o in takers
            if o.name not in makers
        }
        if operation.kind == "mask" or (takers and not masks):
            makers.add(name)
        mask = masks.pop() if len(masks) == 1 else None
        is_first = not any(graph.operations[source].mask for source in (name, *operation.inputs))
        if mask and is_first and name not in makers:
            lead = graph.operations[mask].shape
            if operation.shape[:-1][: len(lead)] == lead:
                found[name] = replace(operation, mask=mask)
    return found


def _add_call(graph: Graph, call: Call, names: Mapping[int, str]) -> tuple[str, ...]:
    """Add a call's operations, given its tensors' `names`; return the names of its results."""
    inputs = tuple(names[tensor] for tensor in call.inputs)
    masks, paddings = (
        [None if mask is None else names[mask] for mask in of] for of in (call.masks, call.paddings)
    )
    view = replace(call, masks=masks, paddings=paddings)
    base = f"{call.path}#{call.reuse}" if call.reuse else call.path

    def named(source: operations.Source) -> str:
        if isinstance(source, (operations.MaskOf, operations.PaddingOf)):
            mask = (masks if isinstance(source, operations.MaskOf) else paddings)[source.input]
            assert mask is not None, base
            return mask
        return inputs[source] if isinstance(source, int) else base + source

    steps: Sequence[operations.Step]
    if call.mask_function is None:
        steps = layer_steps(call.layer, view)
    else:
        # A layer makes two masks if the one that it receives is not the padding mask.
        suffix = ":found_mask" if f"{base}:mask" in graph.operations else ":mask"
        steps = (mask_step(call.mask_function, suffix),)
    is_own = is_own_function(call.layer)
    own_mask = None if call.mask is None else names[call.mask]
    previous, results = inputs, list(inputs)
    waiting = list(steps)
    while waiting:
        step = waiting.pop(0)
        sources = previous if step.sources is None else tuple(map(named, step.sources))
        shapes = tuple(graph.operations[source].shape for source in sources)
        step, *others = recognised(step, shapes, base + step.suffix)
        if is_own and not others:
            step = with_own_derivative(step, shapes, base + step.suffix)
        waiting = [replace(other, sources=None) for other in others] + waiting
        shape = call.output_shapes[0] if step.shape is None else step.shape
        mask = None
        if step.mask is None and own_mask and step.kind != "mask":
            lead = graph.operations[own_mask].shape
            mask = own_mask if tuple(shape[: len(lead)]) == lead else None
        elif step.mask not in (None, operations.NO_MASK):
            mask = named(step.mask)
        operation = operations.Operation(
            name=base + step.suffix,
            kind=step.kind,
            layer=call.path,
            inputs=sources,
            input_shapes=shapes,
            shape=shape,
            params=step.params,
            compute=step.compute,
            keras_layer=call.layer,
            mask=mask,
            ends=not others and (step.ends or not step.suffix),
        )
        graph.add(operation)
        previous = (operation.name,)
        results.append(operation.name)
    return tuple(results[-len(call.outputs) :])


def gradient_function(
    graph: Graph, target: Callable[..., Any], needs: Sequence[str], wrt: Sequence[str]
) -> Callable[..., list[np.ndarray]]:
    """Return the gradient of a target, summed over the batch, with respect to operations.

    `target` maps {operation: tensor (batch, …)} of `needs` to a tensor `(batch,)`. The result maps
    a batch, and the target's other arguments, to a gradient `(batch, …)` for each of `wrt`.
    """

    def gradients(inputs: list[Any], extra: list[Any]) -> Sequence[Any]:
        x, extra = ([ops.convert_to_tensor(v) for v in part] for part in (inputs, extra))

        # A zero is added to the value of each operation, and the gradient taken for it.
        def total(*zeros: Any) -> Any:
            added = dict(zip(wrt, zeros, strict=True))
            values = graph.run(x, (*needs, *wrt), lambda n, v: v + added[n] if n in added else v)
            return target(values, *extra)

        shapes = [(ops.shape(x[0])[0], *graph.operations[name].shape) for name in wrt]
        zeros = [ops.zeros(shape, x[0].dtype) for shape in shapes]
        return backend.value_and_product(total, zeros, ops.ones_like)[1]

    compiled = backend.compiled_function(gradients)

    def run(x: np.ndarray | tuple[np.ndarray, ...], *extra: np.ndarray) -> list[np.ndarray]:
        found = compiled(list(x) if isinstance(x, tuple) else [x], list(extra))
        return [ops.convert_to_numpy(gradient) for gradient in found]

    return run
