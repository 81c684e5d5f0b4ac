"""`TimeDistributed`: another layer or model applied to every time step.

The steps describe one time step; time is then merged into the batch axis for computing, and into
the positions in tables of taps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.functional import as_functional
from nnslicer_tf.instrument.operations import Pooling, Source, Step, Synapses
from nnslicer_tf.instrument.recurrence import RECURRENCE
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape, layer_steps
from nnslicer_tf.instrument.tracing import trace


def _time_distributed(layer: layers.TimeDistributed, call: LayerCall) -> tuple[Step, ...]:
    times, *inner = call.input_shapes[0]
    shapes: dict[Source, Any] = {0: tuple(inner)}
    result = []
    for step in _steps_of(layer.layer, call.path, tuple(inner), call.output_shape[1:]):
        if step.kind == RECURRENCE:
            raise UnsupportedLayerError(
                f"Layer '{call.path}' distributes a recurrent layer over time, which has no rule. "
                "Give its sequences to the model as samples of their own."
            )
        sources, shape = step.sources or (), step.shape or ()  # both are written out
        params = _params_at_all_times(step.params, times, int(np.prod(shapes[sources[0]][:-1])))
        compute = partial(_folded, step.compute)
        result.append(replace(step, compute=compute, params=params, shape=(times, *shape)))
        shapes[step.suffix] = shape
    return tuple(result)


def _steps_of(layer: keras.Layer, path: str, inner: Shape, output: Shape) -> list[Step]:
    """Return the layer's or model's steps for one time step, with explicit shapes and sources."""
    if not isinstance(layer, keras.Model):
        own = layer_steps(layer, LayerCall(path, [inner], [output]))
        return _written_out(own, "", (0,), output)
    result: list[Step] = []
    traced = trace(as_functional(layer, inner), inner)
    sources: dict[int, Source] = {traced.inputs[0]: 0}
    for call in traced.calls:
        if len(call.outputs) != 1:
            raise UnsupportedLayerError(
                f"Layer '{path}' distributes '{call.path}', which returns {len(call.outputs)} "
                "tensors. Distribute each layer of the model by itself."
            )
        name = f"{path}/{call.path}"
        view = LayerCall(name, call.input_shapes, call.output_shapes, call.arguments)
        suffix = f"/{call.path}#{call.reuse}" if call.reuse else f"/{call.path}"
        inputs = tuple(sources[tensor] for tensor in call.inputs)
        steps = _written_out(layer_steps(call.layer, view), suffix, inputs, call.output_shapes[0])
        steps[-1:] = (replace(step, ends=True) for step in steps[-1:])
        sources[call.outputs[0]] = steps[-1].suffix if steps else inputs[0]
        result += steps
    # The model's result has the layer's own name.
    last = sources[traced.outputs[0]]
    return [*result, Step("routing", lambda x: x, sources=(last,), shape=output)]


def _written_out(
    steps: Sequence[Step], prefix: str, inputs: tuple[Source, ...], output: Shape
) -> list[Step]:
    """Return one call's steps with explicit shapes and sources, and prefixed suffixes."""
    result: list[Step] = []
    previous: tuple[Source, ...] = inputs
    for step in steps:
        sources = previous
        if step.sources is not None:
            sources = tuple(
                inputs[s] if isinstance(s, int) else prefix + s if isinstance(s, str) else s
                for s in step.sources
            )
        shape = output if step.shape is None else step.shape
        result.append(replace(step, suffix=prefix + step.suffix, sources=sources, shape=shape))
        previous = (result[-1].suffix,)
    return result


def _folded(compute: Callable[..., Any], *inputs: Any) -> Any:
    """Compute each time step of inputs `(batch, time, …)` separately."""
    batch, times = ops.shape(inputs[0])[0], inputs[0].shape[1]
    result = compute(*(ops.reshape(x, (-1, *x.shape[2:])) for x in inputs))
    return ops.reshape(result, (batch, times, *result.shape[1:]))


def _params_at_all_times(params: Any, times: int, positions: int) -> Any:
    """Return a step's params with taps for all time steps."""

    def taps() -> np.ndarray:
        one = params.build_taps()
        every = np.where(one < 0, -1, one + np.arange(times)[:, None, None] * positions)
        return every.reshape(-1, one.shape[1]).astype(np.int32)

    if isinstance(params, Synapses):
        one = params.apply
        apply = lambda x, w: _folded(lambda v: one(v, w), x)  # noqa: E731
        return replace(params, apply=apply, build_taps=taps, by_rows=None)
    return Pooling(taps) if isinstance(params, Pooling) else params


LAYERS: LayerTable = {layers.TimeDistributed: _time_distributed}
