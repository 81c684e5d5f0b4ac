"""Recurrent layers: SimpleRNN, LSTM, GRU, RNN with Keras's cells, ConvLSTM, Bidirectional.

A gate's weighted sum has the gate's name and `:pre`, like a value before a fused activation:

| cell | operations |
|---|---|
| SimpleRNN | `:h:pre`, `:h` |
| LSTM | `:i`, `:f`, `:g` (candidate), `:o`, each with `:pre`; `:kept` = f·c[t-1], `:added` = i·g, `:c`, `:c:out` = activation(c), `:h` |
| GRU | `:z`, `:r`, `:g` (candidate), each with `:pre`; `:open` = 1 - z, `:kept` = z·h[t-1], `:added` = (1 - z)·g, `:h` |
| GRU, reset_after | also `:g:recurrent` (the recurrent part's sum), `:g:reset` = r·recurrent, `:g:input`; `:g:pre` adds the two |
| GRU, not reset_after | also `:reset` = r·h[t-1] |

Kernels are `layer/kernel` and `layer/recurrent_kernel`; for stacked cells, `layer/cell0/kernel` and
so on; for a `Bidirectional` layer, `layer/forward/kernel` and `layer/backward/kernel`.

With a mask, a state `:h` has a `:h:held`, which keeps its previous value at padding. If initial
states are given, Keras holds outputs starting from zeros instead of these states; the difference
affects only padding before all data, which has no neurons.
"""  # noqa: E501

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from keras import activations, layers, ops

from nnslicer_tf._checks import with_article
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import recurrence as rnn
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.activations import activation_step
from nnslicer_tf.instrument.layers.masks import is_set, mask_step
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.probing import recognised
from nnslicer_tf.instrument.layers.weighted_sums import matrix_synapses, require_channels_last
from nnslicer_tf.instrument.operations import NO_MASK, MaskOf, Operation, Source, Step, Synapses
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape
from nnslicer_tf.instrument.upstream import add


class _Cell:
    """Collects the operations of one time step."""

    # `sequence` is the shape at one time step; with `masked`, states are held at padding.
    def __init__(self, layer: Any, sequence: Shape, masked: bool) -> None:
        self.operations: list[Operation] = []
        self.states: dict[str, Shape] = {}
        self.shapes: dict[str, Shape] = {rnn.SEQUENCE: sequence, rnn.PRESENT: ()}
        self._layer, self._masked = layer, masked

    def state(self, name: str, shape: Shape) -> str:
        """Declare the state computed by operation `name`; return its name at the previous step."""
        read = self.as_state(name)
        self.states[read] = shape
        self.shapes[rnn.before(read)] = shape
        return rnn.before(read)

    def as_state(self, name: str) -> str:
        """Return the name of the state that an operation computes."""
        return f"{name}:held" if self._masked else name

    def add(self, step: Step, name: str, *inputs: str, shape: Shape | None = None) -> str:
        """Add an operation, by default of its last input's shape, and return its name."""
        self.shapes[name] = self.shapes[inputs[-1]] if shape is None else shape
        self.operations.append(
            Operation(
                name=name,
                kind=step.kind,
                layer=self._layer.name,
                inputs=inputs,
                input_shapes=tuple(self.shapes[source] for source in inputs),
                shape=self.shapes[name],
                params=step.params,
                compute=step.compute,
                keras_layer=self._layer,
            )
        )
        return name

    def gate(
        self,
        name: str,
        shape: Shape,
        columns: tuple[int, int],  # the gate's columns of the kernels
        sources: Sequence[tuple[str, Synapses]],  # the gate's inputs and their kernels
        bias: Callable[[], Any],  # of all gates; the rows of a matrix are summed
        activation: Callable | None = None,
    ) -> str:
        """Add a gate's weighted sum `name:pre` and its activation `name`; only `name` if linear."""

        def own_bias() -> Any:
            value = bias()
            if value is None:
                return None
            value = ops.convert_to_tensor(value)
            return (ops.sum(value, axis=0) if len(value.shape) > 1 else value)[slice(*columns)]

        gate = rnn.Gate(tuple(rnn.Weights(kernel, *columns) for _, kernel in sources), own_bias)
        is_linear = activation is None or activation is activations.linear
        inputs = (source for source, _ in sources)
        step = Step(rnn.GATE, gate.compute, gate)
        result = self.add(step, name if is_linear else f"{name}:pre", *inputs, shape=shape)
        return self.activation(name, result, activation)

    def gates(
        self, cell: Any, prefix: str, names: str, sources: Sequence, shape: Shape
    ) -> Iterator[str]:
        """Add the first gates of a cell, one for each letter; "g" has the cell's activation."""
        for k, name in enumerate(names):
            span = (k * shape[-1], (k + 1) * shape[-1])
            function = cell.activation if name == "g" else cell.recurrent_activation
            yield self.gate(f"{prefix}:{name}", shape, span, sources, lambda: cell.bias, function)

    def activation(self, name: str, source: str, function: Callable | None) -> str:
        """Add an activation; return the source if the function is linear."""
        if function is None or function is activations.linear:
            return source
        steps = recognised(
            activation_step(function), [self.shapes[source]], self._layer.name + name
        )
        if len(steps) > 1:
            raise UnsupportedLayerError(
                f"Layer '{self._layer.name}' applies a softmax with a factor at every time step. "
                "Use a softmax, and put the factor into the weights."
            )
        return self.add(steps[0], name, source)


_PLUS, _TIMES = Step("add", add), Step("multiply", ops.multiply)


def _kernels(cell: Any, path: str) -> tuple[Synapses, Synapses]:
    return (
        matrix_synapses(f"{path}/kernel", lambda: cell.kernel, 1),
        matrix_synapses(f"{path}/recurrent_kernel", lambda: cell.recurrent_kernel, 1),
    )


def _simple(cell: Any, into: _Cell, path: str, prefix: str, x: str) -> str:
    kernel, recurrent = _kernels(cell, path)
    name, shape = f"{prefix}:h", (cell.units,)
    sources = ((x, kernel), (into.state(name, shape), recurrent))
    return into.gate(name, shape, (0, cell.units), sources, lambda: cell.bias, cell.activation)


def _lstm(cell: Any, into: _Cell, path: str, prefix: str, x: str) -> str:
    """Add an `LSTMCell` on vectors, or a `ConvLSTMCell` on feature maps."""
    kernels, shape = _kernels(cell, path), (getattr(cell, "units", 0),)
    if type(cell).__name__ == "ConvLSTMCell":
        require_channels_last(cell, LayerCall(path, [], []))
        entry, size, one = into.shapes[x], tuple(cell.kernel_size), (1,) * cell.rank
        space = tuple(cell.compute_output_shape((None, *entry))[0][1:-1])
        shape = (*space, cell.filters)
        sliding = partial(windows.sliding, entry[:-1], size, cell.strides, cell.padding)
        taps = partial(windows.sliding, space, size, one, "same", one)
        convolve = partial(cell.input_conv, padding=cell.padding)
        of_x = partial(sliding, cell.dilation_rate)
        kernels = (
            replace(kernels[0], apply=convolve, build_taps=of_x, by_rows=None),
            replace(kernels[1], apply=cell.recurrent_conv, build_taps=taps, by_rows=None),
        )
    h, c = into.state(f"{prefix}:h", shape), into.state(f"{prefix}:c", shape)
    i, f, g, o = into.gates(cell, prefix, "ifgo", ((x, kernels[0]), (h, kernels[1])), shape)
    kept = into.add(_TIMES, f"{prefix}:kept", f, c)
    new = into.add(_PLUS, f"{prefix}:c", kept, into.add(_TIMES, f"{prefix}:added", i, g))
    out = into.activation(f"{prefix}:c:out", new, cell.activation)
    return into.add(_TIMES, f"{prefix}:h", o, out)


def _gru(cell: Any, into: _Cell, path: str, prefix: str, x: str) -> str:
    kernel, recurrent = _kernels(cell, path)
    units, shape, name = cell.units, (cell.units,), f"{prefix}:g"
    h = into.state(f"{prefix}:h", shape)
    z, r = into.gates(cell, prefix, "zr", ((x, kernel), (h, recurrent)), shape)
    columns = (2 * units, 3 * units)
    if cell.reset_after:
        # The input and the recurrent part have a bias each.
        row = [lambda k=k: None if cell.bias is None else cell.bias[k] for k in (0, 1)]
        read = into.gate(f"{name}:input", shape, columns, [(x, kernel)], row[0])
        sums = into.gate(f"{name}:recurrent", shape, columns, [(h, recurrent)], row[1])
        reset = into.add(_TIMES, f"{name}:reset", r, sums)
        is_linear = cell.activation is activations.linear
        pre = into.add(_PLUS, name if is_linear else f"{name}:pre", read, reset)
        g = into.activation(name, pre, cell.activation)
    else:
        reset = into.add(_TIMES, f"{prefix}:reset", r, h)
        both = ((x, kernel), (reset, recurrent))
        g = into.gate(name, shape, columns, both, lambda: cell.bias, cell.activation)
    closed = into.add(affine_step(-1.0, 1.0, compute=lambda v: 1 - v), f"{prefix}:open", z)
    kept = into.add(_TIMES, f"{prefix}:kept", z, h)
    return into.add(_PLUS, f"{prefix}:h", kept, into.add(_TIMES, f"{prefix}:added", closed, g))


_CELLS: dict[str, Callable[..., str]] = {
    "SimpleRNNCell": _simple,
    "LSTMCell": _lstm,
    "GRUCell": _gru,
    "ConvLSTMCell": _lstm,
}


def _add_cell(cell: Any, into: _Cell, path: str, prefix: str, x: str) -> str:
    """Add a cell's operations; return the name of its output."""
    name = type(cell).__name__
    if isinstance(cell, layers.StackedRNNCells):
        for k, inner in enumerate(cell.cells):
            x = _add_cell(inner, into, f"{path}/cell{k}", f"{prefix}:cell{k}", x)
        return x
    if name not in _CELLS or not type(cell).__module__.startswith("keras."):
        raise UnsupportedLayerError(
            f"Layer '{path}' has the cell {name}, which has no operations. Keras's "
            f"{', '.join(_CELLS)} have them; write others as calls of layers at each time step, or "
            "register the whole layer with nnslicer_tf.register_layer."
        )
    return _CELLS[name](cell, into, path, prefix, x)


def _through_time(
    layer: Any, call: LayerCall, path: str, prefix: str, initial: Sequence[int]
) -> tuple[list[Step], str, list[Step]]:
    """Return steps, the outputs' suffix and steps of last states, named by `path` and `prefix`."""
    if layer.stateful:
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) is stateful: its values depend on the "
            "batches before, so samples are not independent. Rebuild it with stateful=False."
        )
    sequence, masked = call.input_shapes[0], call.masks[0] is not None
    cell = _Cell(layer, sequence[1:], masked)
    output = cell.as_state(_add_cell(layer.cell, cell, path, prefix, rnn.SEQUENCE))
    for read in cell.states if masked else ():
        step = Step(rnn.HELD, lambda present, old, new: rnn.hold(new, old, present))
        cell.add(step, read, rnn.PRESENT, rnn.before(read), read.removesuffix(":held"))
    unrolled = rnn.Unrolled(
        tuple(cell.operations), cell.states, sequence, layer.go_backwards, masked
    )
    steps: list[Step] = []
    mask: Source | None = MaskOf(0) if masked else None
    if masked and layer.go_backwards:
        mask = f"{prefix}:mask"
        steps += [mask_step(lambda m: is_set(m)[:, ::-1], mask, (MaskOf(0),), sequence[:1])]
    steps += unrolled.members((0, *initial), mask)
    if mask is not None and layer.zero_output_for_mask:
        sources, shape = (output, mask), (sequence[0], *unrolled.shapes[output])
        output = f"{prefix}:zeroed"
        zeroed = lambda h, mask: rnn.hold(h, ops.zeros_like(h), mask)  # noqa: E731
        steps.append(Step(rnn.ZEROED, zeroed, None, output, sources, shape, mask))
    states = [
        Step("routing", _last, None, f"{name}:last", (name,), shape, NO_MASK)
        for name, shape in unrolled.states.items()
    ]
    return steps, output, states if layer.return_state else []


def _last(h: Any) -> Any:
    return h[:, -1]


def _recurrent(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    initial = range(1, len(call.input_shapes))
    steps, output, states = _through_time(layer, call, call.path, "", initial)
    select = (lambda h: h) if layer.return_sequences else _last
    return (*steps, Step("routing", select, sources=(output,), shape=call.output_shape), *states)


def _bidirectional(layer: layers.Bidirectional, call: LayerCall) -> tuple[Step, ...]:
    initial = list(range(1, len(call.input_shapes)))
    half = len(initial) // 2
    steps: list[Step] = []
    states: list[Step] = []
    for name, inner, places in (
        ("forward", layer.forward_layer, initial[:half]),
        ("backward", layer.backward_layer, initial[half:]),
    ):
        if not isinstance(inner, layers.RNN):
            raise UnsupportedLayerError(
                f"Layer '{call.path}' wraps {with_article(type(inner).__name__)}; only "
                "recurrent layers of Keras have operations."
            )
        path, prefix = f"{call.path}/{name}", f":{name}"
        through, source, last = _through_time(inner, call, path, prefix, places)
        shape = inner.compute_output_shape((None, *call.input_shapes[0]))
        shape = tuple((shape[0] if layer.return_state else shape)[1:])
        select: Callable = (lambda h: h) if layer.return_sequences else _last
        if layer.return_sequences and name == "backward":
            # Keras always reverses the second direction's sequence, whichever way it runs.
            select = lambda h: h[:, ::-1]  # noqa: E731
        steps += [*through, Step("routing", select, None, prefix, (source,), shape)]
        states += last if layer.return_state else []
    both = (":forward", ":backward")
    merges = {
        "concat": ("routing", lambda a, b: ops.concatenate([a, b], axis=-1)),
        "mul": ("multiply", ops.multiply),
        "sum": ("add", add),
        "ave": ("add", add),
    }
    if layer.merge_mode is None:
        for name, shape in zip(both, call.output_shapes, strict=False):
            steps.append(Step("routing", lambda h: h, None, f"{name}:out", (name,), shape))
        return (*steps, *states)
    suffix = ":sum" if layer.merge_mode == "ave" else ""
    steps.append(Step(*merges[layer.merge_mode], None, suffix, both, call.output_shape))
    if suffix:
        steps.append(affine_step(0.5, compute=lambda x: x / 2))
    return (*steps, *states)


LAYERS: LayerTable = {
    **dict.fromkeys(
        (
            *(layers.SimpleRNN, layers.LSTM, layers.GRU, layers.RNN),
            *(layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D),
        ),
        _recurrent,
    ),
    layers.Bidirectional: _bidirectional,
}
