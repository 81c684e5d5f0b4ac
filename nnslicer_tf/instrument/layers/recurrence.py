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

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import activations, layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.activations import activation_step
from nnslicer_tf.instrument.layers.masks import is_set, mask_step
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.probing import recognised
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.layout import INPUTS_OUTPUTS
from nnslicer_tf.instrument.operations import NO_MASK, MaskOf, Operation, Source, Step, Synapses
from nnslicer_tf.instrument.recurrence import (
    GATE,
    HELD,
    PRESENT,
    SEQUENCE,
    ZEROED,
    Gate,
    Unrolled,
    Weights,
    before,
    expand_to,
    hold,
)

Shape = tuple[int, ...]
Read = tuple[str, Synapses]


class _Cell:
    """Collects the operations of one time step.

    Args:
        layer: The recurrent layer.
        sequence: Shape of one entry of the sequence.
        masked: Whether there is a mask, so that states are held at padding.
    """

    def __init__(self, layer: keras.Layer, sequence: Shape, masked: bool) -> None:
        self.operations: list[Operation] = []
        self.states: dict[str, Shape] = {}
        self._layer = layer
        self._masked = masked
        self._shapes = {SEQUENCE: sequence, PRESENT: ()}

    def shape(self, name: str) -> Shape:
        """Return the shape of a value that the cell reads or computes."""
        return self._shapes[name]

    def state(self, name: str, shape: Shape) -> str:
        """Declare a state that an operation `name` will compute; return the name to read it by."""
        read = self.as_state(name)
        self.states[read] = shape
        self._shapes[before(read)] = shape
        return before(read)

    def as_state(self, name: str) -> str:
        """Return the name of the state that an operation computes."""
        return f"{name}:held" if self._masked else name

    def hold(self) -> None:
        """Add the states, which are held at padding if there is a mask."""
        for read in self.states if self._masked else ():
            inputs = (PRESENT, before(read))
            step = Step(HELD, lambda present, old, new: hold(new, old, present))
            self.add(step, read, *inputs, read.removesuffix(":held"))

    def add(self, step: Step, name: str, *inputs: str, shape: Shape | None = None) -> str:
        """Add an operation, by default with the shape of its last input, and return its name."""
        shape = self._shapes[inputs[-1]] if shape is None else shape
        self._shapes[name] = shape
        self.operations.append(
            Operation(
                name=name,
                kind=step.kind,
                layer=self._layer.name,
                inputs=inputs,
                input_shapes=tuple(self._shapes[source] for source in inputs),
                shape=shape,
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
        columns: tuple[int, int],
        sources: Sequence[Read],
        bias: Callable[[], Any] = lambda: None,
        activation: Callable | None = None,
    ) -> str:
        """Add a gate's weighted sum, `name:pre`, and its activation, `name`.

        Args:
            name: The gate's name.
            shape: Its shape.
            columns: The gate's columns of the kernels.
            sources: The values that the gate reads, each with its kernel.
            bias: Returns the bias, or None.
            activation: Its activation. Without one (None or linear), the sum itself is `name`.
        """
        weights = tuple(Weights(kernel, *columns) for _, kernel in sources)
        gate = Gate(weights, bias)
        is_linear = activation is None or activation is activations.linear
        step = Step(GATE, gate.compute, gate)
        inputs = (source for source, _ in sources)
        result = self.add(step, name if is_linear else f"{name}:pre", *inputs, shape=shape)
        return result if is_linear else self.activation(name, result, activation)

    def activation(self, name: str, source: str, function: Callable | None) -> str:
        """Add an activation; return the source if it is linear."""
        if function is None or function is activations.linear:
            return source
        step = recognised(
            activation_step(function), [self._shapes[source]], self._layer.name + name
        )
        return self.add(step, name, source)

    def multiply(self, name: str, first: str, second: str) -> str:
        """Add a product."""
        return self.add(Step("multiply", ops.multiply), name, first, second)

    def plus(self, name: str, first: str, second: str) -> str:
        """Add a sum of two values."""
        return self.add(Step("add", ops.add), name, first, second)


def _matrix(name: str, read: Callable[[], Any]) -> Synapses:
    """Return the kernel `(inputs, outputs)` of a weighted sum at one time step."""
    return Synapses(
        name=name,
        shape=tuple(read().shape),
        groups=1,
        axes=INPUTS_OUTPUTS,
        variable=read,
        bias=lambda: None,
        apply=ops.matmul,
        build_taps=lambda: windows.pointwise(1),
    )


def _kernels(cell: keras.Layer, path: str) -> tuple[Synapses, Synapses]:
    return (
        _matrix(f"{path}/kernel", lambda: cell.kernel),
        _matrix(f"{path}/recurrent_kernel", lambda: cell.recurrent_kernel),
    )


def _part(read: Callable[[], Any], start: int, stop: int) -> Callable[[], Any]:
    """Return a function that reads part of a bias; the rows of a bias matrix are summed."""

    def bias() -> Any:
        value = read()
        if value is None:
            return None
        value = ops.convert_to_tensor(value)
        return (ops.sum(value, axis=0) if len(value.shape) > 1 else value)[start:stop]

    return bias


def _row(cell: keras.Layer, k: int) -> Callable[[], Any]:
    """Return a function that reads one of the two rows of a bias."""
    return lambda: None if cell.bias is None else cell.bias[k]


def _simple(cell: layers.SimpleRNNCell, into: _Cell, path: str, prefix: str, x: str) -> str:
    kernel, recurrent = _kernels(cell, path)
    shape = (cell.units,)
    h = into.state(f"{prefix}:h", shape)
    columns = (0, cell.units)
    sources = ((x, kernel), (h, recurrent))
    return into.gate(
        f"{prefix}:h", shape, columns, sources, lambda: cell.bias, activation=cell.activation
    )


def _lstm(cell: layers.LSTMCell, into: _Cell, path: str, prefix: str, x: str) -> str:
    return _long_short_term(cell, into, prefix, x, (cell.units,), _kernels(cell, path))


def _long_short_term(
    cell: Any, into: _Cell, prefix: str, x: str, shape: Shape, kernels: tuple[Synapses, Synapses]
) -> str:
    """Add an LSTM's operations, on vectors or on feature maps."""
    units = shape[-1]
    h, c = into.state(f"{prefix}:h", shape), into.state(f"{prefix}:c", shape)
    sources = ((x, kernels[0]), (h, kernels[1]))

    def gate(k: int, name: str, activation: Callable) -> str:
        columns = (k * units, (k + 1) * units)
        bias = _part(lambda: cell.bias, *columns)
        return into.gate(f"{prefix}:{name}", shape, columns, sources, bias, activation)

    i = gate(0, "i", cell.recurrent_activation)
    f = gate(1, "f", cell.recurrent_activation)
    g = gate(2, "g", cell.activation)
    o = gate(3, "o", cell.recurrent_activation)
    kept = into.multiply(f"{prefix}:kept", f, c)
    added = into.multiply(f"{prefix}:added", i, g)
    new = into.plus(f"{prefix}:c", kept, added)
    out = into.activation(f"{prefix}:c:out", new, cell.activation)
    return into.multiply(f"{prefix}:h", o, out)


def _gru(cell: layers.GRUCell, into: _Cell, path: str, prefix: str, x: str) -> str:
    kernel, recurrent = _kernels(cell, path)
    units, shape = cell.units, (cell.units,)
    h = into.state(f"{prefix}:h", shape)
    sources = ((x, kernel), (h, recurrent))

    def gate(k: int, name: str) -> str:
        columns = (k * units, (k + 1) * units)
        bias = _part(lambda: cell.bias, *columns)
        activation = cell.recurrent_activation
        return into.gate(f"{prefix}:{name}", shape, columns, sources, bias, activation)

    z, r = gate(0, "z"), gate(1, "r")
    columns = (2 * units, 3 * units)
    if cell.reset_after:
        row = [_part(_row(cell, k), *columns) for k in (0, 1)]
        read = into.gate(f"{prefix}:g:input", shape, columns, [(x, kernel)], row[0])
        sums = into.gate(f"{prefix}:g:recurrent", shape, columns, [(h, recurrent)], row[1])
        reset = into.multiply(f"{prefix}:g:reset", r, sums)
        is_linear = cell.activation is activations.linear
        pre = into.plus(f"{prefix}:g" if is_linear else f"{prefix}:g:pre", read, reset)
        g = into.activation(f"{prefix}:g", pre, cell.activation)
    else:
        reset = into.multiply(f"{prefix}:reset", r, h)
        bias = _part(lambda: cell.bias, *columns)
        both = ((x, kernel), (reset, recurrent))
        g = into.gate(f"{prefix}:g", shape, columns, both, bias, cell.activation)
    one = np.ones(1)
    closed = into.add(affine_step(lambda: (-one, one), lambda v: 1 - v), f"{prefix}:open", z)
    kept = into.multiply(f"{prefix}:kept", z, h)
    added = into.multiply(f"{prefix}:added", closed, g)
    return into.plus(f"{prefix}:h", kept, added)


def _convolutional(cell: Any, into: _Cell, path: str, prefix: str, x: str) -> str:
    """Add the operations of a `ConvLSTMCell`."""
    entry = into.shape(x)
    if cell.data_format != "channels_last":
        raise UnsupportedLayerError(
            f"Layer '{path}' has data_format='channels_first'. Only channels_last is supported: "
            "rebuild the model in that format."
        )
    space = tuple(cell.compute_output_shape((None, *entry))[0][1:-1])
    size, one = tuple(cell.kernel_size), (1,) * cell.rank
    reads_x = windows.sliding(entry[:-1], size, cell.strides, cell.padding, cell.dilation_rate)
    reads_h = windows.sliding(space, size, one, "same", one)

    def kernel(name: str, read: Callable[[], Any], apply: Callable, taps: np.ndarray) -> Synapses:
        return Synapses(
            name=f"{path}/{name}",
            shape=tuple(read().shape),
            groups=1,
            axes=INPUTS_OUTPUTS,
            variable=read,
            bias=lambda: None,
            apply=apply,
            build_taps=lambda: taps,
        )

    kernels = (
        kernel(
            "kernel",
            lambda: cell.kernel,
            lambda x, w: cell.input_conv(x, w, padding=cell.padding),
            reads_x,
        ),
        kernel("recurrent_kernel", lambda: cell.recurrent_kernel, cell.recurrent_conv, reads_h),
    )
    return _long_short_term(cell, into, prefix, x, (*space, cell.filters), kernels)


def _stacked(cell: layers.StackedRNNCells, into: _Cell, path: str, prefix: str, x: str) -> str:
    for k, inner in enumerate(cell.cells):
        x = _add_cell(inner, into, f"{path}/cell{k}", f"{prefix}:cell{k}", x)
    return x


_CELLS: dict[str, Callable[..., str]] = {
    "SimpleRNNCell": _simple,
    "LSTMCell": _lstm,
    "GRUCell": _gru,
    "StackedRNNCells": _stacked,
    "ConvLSTMCell": _convolutional,
}


def _add_cell(cell: keras.Layer, into: _Cell, path: str, prefix: str, x: str) -> str:
    """Add a cell's operations; return the name of its output."""
    name = type(cell).__name__
    of_keras = type(cell).__module__.startswith("keras.")
    if name not in _CELLS or not of_keras:
        raise UnsupportedLayerError(
            f"Layer '{path}' has the cell {name}, for which there are no operations. There are "
            f"some for Keras's {', '.join(_CELLS)}; write others as calls of layers at each time, "
            "or register the whole layer with nnslicer_tf.register_layer."
        )
    return _CELLS[name](cell, into, path, prefix, x)


def _unrolled(layer: keras.Layer, call: LayerCall, path: str, prefix: str) -> tuple[Unrolled, str]:
    """Return a recurrent layer's operations, and the name of its output operation.

    Raises:
        UnsupportedLayerError: if its cell is unknown, or the layer keeps states between batches.
    """
    if layer.stateful:
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) is stateful: its values depend on the "
            "batches before, while the analyses require samples to be independent. Rebuild the "
            "layer with stateful=False."
        )
    sequence, masked = call.input_shapes[0], call.masks[0] is not None
    cell = _Cell(layer, sequence[1:], masked)
    output = _add_cell(layer.cell, cell, path, prefix, SEQUENCE)
    cell.hold()
    unrolled = Unrolled(cell.operations, cell.states, sequence, layer.go_backwards, masked)
    return unrolled, cell.as_state(output)


def _through_time(
    layer: keras.Layer, call: LayerCall, path: str, prefix: str, initial: Sequence[int]
) -> tuple[list[Step], Unrolled, str]:
    """Return a recurrent layer's steps, its unrolled cell, and the suffix of its outputs over time.

    Args:
        layer: The layer.
        call: Its call.
        path: Prefix of the names of its kernels.
        prefix: Prefix of its suffixes.
        initial: Indices of the call's inputs that are initial states.
    """
    unrolled, output = _unrolled(layer, call, path, prefix)
    if not unrolled.masked:
        return unrolled.members((0, *initial), None), unrolled, output
    mask: Source = MaskOf(0)
    steps: list[Step] = []
    if layer.go_backwards:
        mask = f"{prefix}:mask"
        shape = unrolled.sequence[:1]
        steps.append(mask_step(lambda m: is_set(m)[:, ::-1], mask, (MaskOf(0),), shape))
    steps += unrolled.members((0, *initial), mask)
    if layer.zero_output_for_mask:
        zeroed = f"{prefix}:zeroed"
        shape = (unrolled.steps, *unrolled.shapes[output])
        steps.append(Step(ZEROED, _zeroed, None, zeroed, (output, mask), shape, mask))
        output = zeroed
    return steps, unrolled, output


def _zeroed(h: Any, mask: Any) -> Any:
    return ops.where(expand_to(mask, h) > 0.5, h, ops.zeros_like(h))


def _recurrent(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of the operations through time, and of the layer's output."""
    initial = range(1, len(call.input_shapes))
    steps, unrolled, output = _through_time(layer, call, call.path, "", initial)
    steps.append(_output(layer, output, "", call.output_shape))
    if layer.return_state:
        steps += _last_states(unrolled)
    return tuple(steps)


def _last_states(unrolled: Unrolled) -> list[Step]:
    return [
        Step("routing", _last, None, f"{name}:last", (name,), shape, NO_MASK)
        for name, shape in unrolled.states.items()
    ]


def _output(layer: keras.Layer, source: str, suffix: str, shape: Shape, flip: bool = False) -> Step:
    """Return the step that selects a layer's output from its values at all time steps."""
    whole = _turned_round if flip else _whole
    compute = whole if layer.return_sequences else _last
    return Step("routing", compute, suffix=suffix, sources=(source,), shape=shape)


def _last(h: Any) -> Any:
    return h[:, -1]


def _whole(h: Any) -> Any:
    return h


def _turned_round(h: Any) -> Any:
    return h[:, ::-1]


def _bidirectional(layer: layers.Bidirectional, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of both directions, and of their merge."""
    given = list(range(1, len(call.input_shapes)))
    half = len(given) // 2
    steps, states = [], []
    directions = (
        ("forward", layer.forward_layer, given[:half]),
        ("backward", layer.backward_layer, given[half:]),
    )
    for name, inner, initial in directions:
        if not isinstance(inner, layers.RNN):
            raise UnsupportedLayerError(
                f"Layer '{call.path}' wraps a {type(inner).__name__}; only recurrent layers of "
                "Keras have operations."
            )
        found, unrolled, source = _through_time(
            inner, call, f"{call.path}/{name}", f":{name}", initial
        )
        steps += found
        shape = tuple(inner.compute_output_shape((None, *call.input_shapes[0])))
        shape = shape[0] if layer.return_state else shape
        # Keras always reverses the second direction's sequence, whichever way it runs.
        steps.append(_output(inner, source, f":{name}", tuple(shape[1:]), name == "backward"))
        states += _last_states(unrolled) if layer.return_state else []
    if layer.merge_mode is not None:
        return (*steps, *_merge(layer.merge_mode, call.output_shape), *states)
    copies = (
        Step("routing", _whole, suffix=f":{name}:out", sources=(f":{name}",), shape=shape)
        for (name, *_), shape in zip(directions, call.output_shapes, strict=False)
    )
    return (*steps, *copies, *states)


def _merge(mode: str, shape: Shape) -> tuple[Step, ...]:
    both = (":forward", ":backward")
    if mode == "concat":
        compute: Callable = lambda a, b: ops.concatenate([a, b], axis=-1)  # noqa: E731
        return (Step("routing", compute, sources=both, shape=shape),)
    if mode == "mul":
        return (Step("multiply", ops.multiply, sources=both, shape=shape),)
    if mode == "sum":
        return (Step("add", ops.add, sources=both, shape=shape),)
    half, zero = np.asarray(0.5), np.asarray(0.0)
    return (
        Step("add", ops.add, suffix=":sum", sources=both, shape=shape),
        affine_step(lambda: (half, zero), lambda x: x / 2),
    )


LAYERS: dict[type | str, Callable[[keras.Layer, LayerCall], tuple[Step, ...]]] = {
    **dict.fromkeys(
        (
            *(layers.SimpleRNN, layers.LSTM, layers.GRU, layers.RNN),
            *(layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D),
        ),
        _recurrent,
    ),
    layers.Bidirectional: _bidirectional,
}
