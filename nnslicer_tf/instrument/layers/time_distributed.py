"""`TimeDistributed`: another layer or model applied to every time step.

The wrapped layer is described for one time step. Time is then merged into the batch axis when its
steps are computed, and into the positions of their tables of taps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument._trace import as_functional, trace
from nnslicer_tf.instrument.layers.registry import LayerCall, layer_steps
from nnslicer_tf.instrument.operations import Pooling, Source, Step, Synapses
from nnslicer_tf.instrument.recurrence import RECURRENCE

Shape = tuple[int, ...]


def _time_distributed(layer: layers.TimeDistributed, call: LayerCall) -> tuple[Step, ...]:
    times, *inner = call.input_shapes[0]
    steps = _steps_of(layer.layer, call.path, tuple(inner), call.output_shape[1:])
    shapes: dict[Source, Shape] = {0: tuple(inner)}
    found = []
    for step in steps:
        assert step.sources is not None and step.shape is not None  # written out
        positions = int(np.prod(shapes[step.sources[0]][:-1]))
        found.append(_at_all_times(step, times, positions, call.path))
        shapes[step.suffix] = step.shape
    return tuple(found)


def _steps_of(layer: keras.Layer, path: str, inner: Shape, output: Shape) -> list[Step]:
    """Return the wrapped layer's or model's steps for one time step, with shapes and sources."""
    if not isinstance(layer, keras.Model):
        return _written_out(
            layer_steps(layer, LayerCall(path, [inner], [output])), "", (0,), output
        )
    steps: list[Step] = []
    traced = trace(as_functional(layer, inner), inner)
    sources: dict[int, Source] = {traced.inputs[0]: 0}
    for call in traced.calls:
        if len(call.outputs) != 1:
            raise UnsupportedLayerError(
                f"Layer '{path}' distributes '{call.path}', which returns {len(call.outputs)} "
                "tensors. Distribute each layer of the model by itself."
            )
        name = f"{path}/{call.path}"
        view = LayerCall(name, call.input_shapes, call.output_shapes, call.constants)
        suffix = f"/{call.path}#{call.reuse}" if call.reuse else f"/{call.path}"
        given = tuple(sources[tensor] for tensor in call.inputs)
        found = _written_out(layer_steps(call.layer, view), suffix, given, call.output_shapes[0])
        sources[call.outputs[0]] = found[-1].suffix if found else given[0]
        steps += found
    # The model's result has the layer's own name.
    return [*steps, Step("routing", _same, sources=(sources[traced.outputs[0]],), shape=output)]


def _written_out(
    steps: Sequence[Step], prefix: str, given: tuple[Source, ...], output: Shape
) -> list[Step]:
    """Return steps with explicit shapes and sources, and with prefixed suffixes.

    Args:
        steps: The steps of one call of a layer.
        prefix: The prefix.
        given: Sources of the layer's inputs.
        output: Shape of the layer's output.
    """
    found: list[Step] = []
    previous: tuple[Source, ...] = given
    for step in steps:
        sources = previous
        if step.sources is not None:
            sources = tuple(_named(source, prefix, given) for source in step.sources)
        shape = output if step.shape is None else step.shape
        found.append(replace(step, suffix=prefix + step.suffix, sources=sources, shape=shape))
        previous = (found[-1].suffix,)
    return found


def _named(source: Source, prefix: str, given: tuple[Source, ...]) -> Source:
    if isinstance(source, int):
        return given[source]
    return prefix + source if isinstance(source, str) else source


def _same(x: Any) -> Any:
    return x


def _at_all_times(step: Step, times: int, positions: int, path: str) -> Step:
    """Convert a step for one time step to a step for all of them.

    Args:
        step: The step, with its shape.
        times: Number of time steps.
        positions: Number of positions of its (first) input at one time step.
        path: Name of the layer, for error messages.

    Raises:
        UnsupportedLayerError: if it belongs to a recurrent layer.
    """
    if step.kind == RECURRENCE:
        raise UnsupportedLayerError(
            f"Layer '{path}' distributes a recurrent layer over time, which has no rule. Give its "
            "sequences to the model as samples of their own."
        )
    assert step.shape is not None
    return replace(
        step,
        compute=_folded(step.compute),
        params=_params_at_all_times(step.params, times, positions),
        shape=(times, *step.shape),
    )


def _folded(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `(batch, time, …)` that treats each time step separately."""

    def at_all_times(*inputs: Any) -> Any:
        batch, times = ops.shape(inputs[0])[0], inputs[0].shape[1]
        result = compute(*(ops.reshape(x, (-1, *x.shape[2:])) for x in inputs))
        return ops.reshape(result, (batch, times, *result.shape[1:]))

    return at_all_times


def _params_at_all_times(params: Any, times: int, positions: int) -> Any:
    """Return a step's params with tables of taps for all time steps."""

    def taps() -> np.ndarray:
        one = params.build_taps()
        starts = np.arange(times)[:, None, None] * positions
        every = np.where(one < 0, -1, one + starts)
        return every.reshape(-1, one.shape[1]).astype(np.int32)

    if isinstance(params, Synapses):
        one = params.apply
        return replace(params, apply=lambda x, w: _folded(lambda v: one(v, w))(x), build_taps=taps)
    return Pooling(taps) if isinstance(params, Pooling) else params


LAYERS: dict[type | str, Callable[[keras.Layer, LayerCall], tuple[Step, ...]]] = {
    layers.TimeDistributed: _time_distributed,
}
