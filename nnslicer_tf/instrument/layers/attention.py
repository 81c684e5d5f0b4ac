"""Attention, expanded into operations: projections, scores, probabilities, context.

Keras computes attention in one fused step; here the scores and the probabilities are separate
operations, so that they can be captured. For a layer `mha`, `mha/query` is the projection to
queries, `mha/scores` the products of keys and scaled queries `(heads, queries, keys)`, and `mha`
the result.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.activations import activation_step, softmax_step
from nnslicer_tf.instrument.layers.masks import is_set, mask_step
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.products import product_step
from nnslicer_tf.instrument.layers.projections import Projection
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.layers.weighted_sums import sum_step
from nnslicer_tf.instrument.layout import INPUTS_OUTPUTS
from nnslicer_tf.instrument.operations import (
    NO_MASK,
    MaskOf,
    PaddingOf,
    Pooling,
    Source,
    Step,
    Synapses,
)

OperationsFunction = Callable[[keras.Operation, LayerCall], tuple[Step, ...]]


class _Inputs:
    """The inputs of an attention layer: where they come from, their shapes and masks.

    Args:
        call: The call.
        query: Index of the queries among the inputs.
        key: Index of the keys.
        value: Index of the values.
        attention_mask: Index of a mask of pairs of positions; None if there is none.
        masked_keys: Whether the mask of the keys is applied: Keras ignores it if the keys are
            the values.
    """

    def __init__(
        self,
        call: LayerCall,
        query: int,
        key: int,
        value: int,
        attention_mask: int | None = None,
        masked_keys: bool = False,
    ) -> None:
        self.query, self.key, self.value = query, key, value
        self.queries = call.input_shapes[query][0]
        self.keys = call.input_shapes[value][0]
        self._call = call
        self._axes = [(query, "queries"), (value, "keys")]
        if masked_keys:
            self._axes.append((key, "keys"))
        self._attention_mask = attention_mask

    def mask_of(self, place: int) -> Source:
        """Return the mask of an input's positions as a source."""
        return PaddingOf(place) if self._call.paddings[place] else NO_MASK

    def masks(self, causal: bool, window: int | None, heads: bool) -> "_Masks":
        """Return the masks of the scores.

        Args:
            causal: Whether a query attends only to itself and earlier positions.
            window: Distance at and beyond which positions are ignored; None for no limit.
            heads: Whether the scores begin with an axis of heads.
        """
        row, column = np.arange(self.queries)[:, None], np.arange(self.keys)
        near = np.ones((self.queries, self.keys), bool)
        if causal:
            near &= row >= column
        if window:
            near &= np.abs(row - column) < window
        call = self._call
        found: list[_Mask] = [(MaskOf(p), axis) for p, axis in self._axes if call.masks[p]]
        padding: list[_Mask] = [(PaddingOf(p), axis) for p, axis in self._axes if call.paddings[p]]
        pairs: list[_Mask] = []
        if self._attention_mask is not None:
            pairs.append((self._attention_mask, "pairs"))
        counting: Source = NO_MASK
        steps = []
        if found or pairs or not near.all():
            counting = "/mask"
            steps.append(self._step(counting, near, [*found, *pairs], heads))
        if all(call.masks[p] == call.paddings[p] for p, _ in self._axes):
            return _Masks(tuple(steps), counting, counting)
        steps.append(self._step("/padding", near, [*padding, *pairs], heads))
        return _Masks(tuple(steps), counting, "/padding")

    def _step(self, suffix: str, near: np.ndarray, masks: "list[_Mask]", heads: bool) -> Step:
        """Return the step of a mask of pairs of positions, `(1, queries, keys)` with heads."""
        shape = near.shape
        shapes = {"queries": (shape[0], 1), "keys": (1, shape[1]), "pairs": shape}
        whole = (1, *shape) if heads else shape

        def compute(x: Any, *values: Any) -> Any:
            counts = ops.broadcast_to(ops.convert_to_tensor(near), (ops.shape(x)[0], *shape))
            for value, (_, axis) in zip(values, masks, strict=True):
                counts = ops.logical_and(counts, ops.reshape(is_set(value), (-1, *shapes[axis])))
            return ops.reshape(counts, (-1, *whole))

        sources = (self.query, *(source for source, _ in masks))
        return mask_step(compute, suffix, sources, whole)


_Mask = tuple[Source, str]


@dataclass(frozen=True)
class _Masks:
    """The masks of the scores.

    Attributes:
        steps: The steps that compute them.
        counting: The pairs of positions that Keras attends to.
        neurons: The pairs that are neurons, without padding. The two differ where Keras has
            dropped a mask, so that padding is attended to.
    """

    steps: tuple[Step, ...]
    counting: Source
    neurons: Source


def _multi_head(layer: layers.MultiHeadAttention, call: LayerCall) -> tuple[Step, ...]:
    key_dim = layer.key_dim
    return _heads(
        layer,
        call,
        dense=(layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense),
        heads=(layer.num_heads, layer.num_heads),
        scale=1 / math.sqrt(key_dim),
        window=getattr(layer, "_sliding_window", None),
        masked_keys="key" in call.arguments,
    )


def _grouped_query(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    return _heads(
        layer,
        call,
        dense=(layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense),
        heads=(layer.num_query_heads, layer.num_key_value_heads),
        scale=1 / math.sqrt(layer.head_dim),
        window=getattr(layer, "sliding_window", None),
        masked_keys="key" in call.arguments,
    )


def _heads(
    layer: Any,
    call: LayerCall,
    dense: Sequence[layers.EinsumDense],
    heads: tuple[int, int],
    scale: float,
    window: int | None,
    masked_keys: bool,
) -> tuple[Step, ...]:
    """Return the steps of attention with heads.

    Args:
        layer: The layer.
        call: The call.
        dense: The projections of the queries, keys, values and result.
        heads: Number of heads of the queries, and of the keys and values.
        scale: Factor that multiplies the queries.
        window: Distance at and beyond which positions are ignored; None for no limit.
        masked_keys: See `_Inputs`.
    """
    given = call.arguments
    shapes = call.input_shapes
    if given.get("return_attention_scores"):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) returns its scores. Leave that out: the "
            f"operation '{call.path}/probabilities' has them."
        )
    if any(len(shape) != 2 for shape in shapes[:2]):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) attends over inputs of shapes {shapes}; "
            "only one axis of positions, (positions, channels), has a rule. Flatten the positions "
            "first."
        )
    query, value = given["query"].place, given["value"].place
    key = given["key"].place if given.get("key") is not None else value
    pairs = given.get("attention_mask")
    inputs = _Inputs(
        call,
        query,
        key,
        value,
        attention_mask=None if pairs is None else pairs.place,
        masked_keys=masked_keys,
    )
    steps = []
    for name, place, projection in zip(
        ("/query", "/key", "/value"), (query, key, value), dense, strict=False
    ):
        count = heads[0] if name == "/query" else heads[1]
        step = _projected(projection, call.path + name, name, place, shapes[place])
        mask = inputs.mask_of(place)
        steps.append(_with_mask(step, mask))
        source = name
        if name == "/query":
            steps.append(_scaled(scale, step.shape, mask))
            source = "/query:scaled"
        steps.append(_split(source, f"{name}:heads", step.shape, count, heads[0] // count, mask))
    features = dense[2].kernel.shape[-1]
    scores = (heads[0], inputs.queries, inputs.keys)
    masks = inputs.masks(bool(given.get("use_causal_mask")), window, heads=True)
    steps.extend(masks.steps)
    steps.append(
        product_step(
            "bkhe,bqhe->bhqk", "/scores", ("/key:heads", "/query:heads"), scores, masks.neurons
        )
    )
    steps.append(softmax_step(-1, "/probabilities", _entries(masks), scores, masks.neurons))
    context = (inputs.queries, heads[0], features)
    steps.append(
        product_step("bhqk,bkhe->bqhe", "/context", ("/probabilities", "/value:heads"), context)
    )
    result = "/context"
    if getattr(layer, "use_gate", getattr(layer, "_use_gate", False)):
        mask = inputs.mask_of(query)
        steps.extend(_gated(layer._gate_dense, call.path, query, shapes[query], context, mask))
        result = "/gated"
    output = Projection(dense[3], f"{call.path}/output", context, call.output_shape)
    return (*steps, *output.steps("", result))


def _entries(masks: _Masks) -> tuple[Source, ...]:
    """Return the sources of a softmax over the scores."""
    return ("/scores",) if masks.counting is NO_MASK else ("/scores", masks.counting)


def _projected(
    dense: layers.EinsumDense, kernel: str, suffix: str, place: int, shape: Sequence[int]
) -> Step:
    """Return the projection to heads as one weighted sum, `(positions, heads · features)`."""
    outputs = (shape[0], *dense.kernel.shape[1:])
    whole = Projection(dense, kernel, shape, outputs)
    step = sum_step(whole.synapses())
    flat = (shape[0], int(np.prod(outputs[1:])))
    return Step(step.kind, step.compute, step.params, suffix, (place,), flat)


def _with_mask(step: Step, mask: Source) -> Step:
    return Step(step.kind, step.compute, step.params, step.suffix, step.sources, step.shape, mask)


def _scaled(scale: float, shape: tuple[int, ...] | None, mask: Source) -> Step:
    factor = np.asarray(scale)
    step = affine_step(lambda: (factor, np.zeros_like(factor)), lambda x: x * scale)
    return Step(step.kind, step.compute, step.params, "/query:scaled", ("/query",), shape, mask)


def _split(
    source: str,
    suffix: str,
    shape: tuple[int, ...] | None,
    heads: int,
    repeats: int,
    mask: Source,
) -> Step:
    """Return the routing to `(positions, heads, features)`, with each head repeated."""
    assert shape is not None, source  # projections have a shape
    positions, channels = shape
    features = channels // heads

    def compute(x: Any) -> Any:
        x = ops.reshape(x, (-1, positions, heads, features))
        return ops.repeat(x, repeats, axis=2) if repeats > 1 else x

    split = (positions, heads * repeats, features)
    return Step("routing", compute, None, suffix, (source,), split, mask)


def _gated(
    dense: layers.EinsumDense,
    path: str,
    place: int,
    shape: Sequence[int],
    context: tuple[int, ...],
    mask: Source,
) -> list[Step]:
    """Return the steps that multiply the context by a gate computed from the queries."""
    projection = _projected(dense, f"{path}/gate", "/gate:pre", place, shape)
    gate = activation_step(keras.activations.sigmoid)
    return [
        projection,
        Step(gate.kind, gate.compute, gate.params, "/gate", ("/gate:pre",), projection.shape),
        _split("/gate", "/gate:heads", projection.shape, context[1], 1, mask),
        Step("multiply", ops.multiply, None, "/gated", ("/context", "/gate:heads"), context),
    ]


def _attention(layer: layers.Attention, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of attention without projections: dot-product or additive scores."""
    if call.arguments.get("return_attention_scores"):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) returns its scores. Leave that out: the "
            f"operation '{call.path}/probabilities' has them."
        )
    places = [tensor.place for tensor in call.arguments["inputs"]]
    query, value = places[:2]
    key = places[2] if len(places) > 2 else value
    inputs = _Inputs(call, query, key, value)
    masks = inputs.masks(bool(call.arguments.get("use_causal_mask")), None, heads=False)
    steps = [*masks.steps]
    if isinstance(layer, layers.AdditiveAttention):
        steps.extend(_additive_scores(layer, call, inputs, masks.neurons))
    elif layer.score_mode == "dot":
        steps.extend(_dot_scores(layer, inputs, masks.neurons))
    else:
        raise UnsupportedLayerError(
            f"Layer '{call.path}' (Attention) has score_mode='concat', which has no rule; use "
            "AdditiveAttention, or score_mode='dot'."
        )
    shape = (inputs.queries, inputs.keys)
    steps.append(softmax_step(-1, "/probabilities", _entries(masks), shape, masks.neurons))
    context = product_step("bqk,bke->bqe", "", ("/probabilities", value))
    if not call.masks[query]:
        return (*steps, context)
    # Keras sets the result to 0 where the query is padding.
    kept = Step(
        "scale",
        lambda x, present: ops.where(is_set(present)[..., None], x, ops.zeros_like(x)),
        sources=("/context", MaskOf(query)),
    )
    named = Step(
        context.kind,
        context.compute,
        context.params,
        "/context",
        context.sources,
        call.output_shape,
    )
    return (*steps, named, kept)


def _dot_scores(layer: layers.Attention, inputs: _Inputs, mask: Source) -> list[Step]:
    shape = (inputs.queries, inputs.keys)
    sources = (inputs.key, inputs.query)
    if layer.scale is None:
        return [product_step("bke,bqe->bqk", "/scores", sources, shape, mask)]

    def read() -> tuple[np.ndarray, np.ndarray]:
        factor = ops.convert_to_numpy(layer.scale).astype(np.float64)
        return factor, np.zeros_like(factor)

    scaled = affine_step(read, lambda x: x * ops.cast(layer.scale, x.dtype))
    return [
        product_step("bke,bqe->bqk", "/products", sources, shape, mask),
        Step(scaled.kind, scaled.compute, scaled.params, "/scores", ("/products",), shape, mask),
    ]


def _additive_scores(
    layer: layers.AdditiveAttention, call: LayerCall, inputs: _Inputs, mask: Source
) -> list[Step]:
    """Return the steps of Σ scale · tanh(query + key)."""
    channels = call.input_shapes[inputs.query][-1]
    pairs = (inputs.queries, inputs.keys, channels)
    tanh = activation_step(keras.activations.tanh)
    steps = []
    mask_of_keys: Source = NO_MASK
    if call.paddings[inputs.key]:
        mask_of_keys = "/key:mask"
        source = PaddingOf(inputs.key)
        steps.append(
            mask_step(lambda m: is_set(m)[:, None], mask_of_keys, (source,), (1, inputs.keys))
        )
    steps += [
        Step(
            "routing",
            lambda x: ops.expand_dims(x, 2),
            None,
            "/query",
            (inputs.query,),
            shape=(inputs.queries, 1, channels),
            mask=inputs.mask_of(inputs.query),
        ),
        Step(
            "routing",
            lambda x: ops.expand_dims(x, 1),
            None,
            "/key",
            (inputs.key,),
            shape=(1, inputs.keys, channels),
            mask=mask_of_keys,
        ),
        Step("add", ops.add, None, "/sums", ("/query", "/key"), pairs, mask),
        Step(tanh.kind, tanh.compute, tanh.params, "/tanh", ("/sums",), pairs, mask),
    ]
    shape = (inputs.queries, inputs.keys)
    if layer.scale is None:
        return [*steps, *_summed(pairs, mask)]
    synapses = Synapses(
        name=f"{call.path}/scale",
        shape=(channels,),
        groups=1,
        axes=INPUTS_OUTPUTS,
        variable=lambda: layer.scale,
        bias=lambda: None,
        apply=lambda x, kernel: ops.matmul(x, ops.reshape(kernel, (channels, 1))),
        build_taps=lambda: windows.pointwise(inputs.queries * inputs.keys),
        order=(0,),
        summed=1,
    )
    total = sum_step(synapses)
    return [
        *steps,
        Step(total.kind, total.compute, synapses, "/scores:sum", ("/tanh",), (*shape, 1), mask),
        Step(
            "routing",
            lambda x: ops.squeeze(x, -1),
            None,
            "/scores",
            ("/scores:sum",),
            shape=shape,
            mask=mask,
        ),
    ]


def _summed(shape: tuple[int, int, int], mask: Source) -> list[Step]:
    """Return the steps of a sum over the last axis: its mean, times its size."""
    queries, keys, channels = shape
    factor = np.asarray(float(channels))
    scale = affine_step(lambda: (factor, np.zeros_like(factor)), lambda x: x * channels)
    pairs = queries * keys

    def to_front(x: Any) -> Any:
        return ops.transpose(ops.reshape(x, (-1, pairs, channels)), (0, 2, 1))

    front, flat = (channels, pairs), (queries, keys)
    mean = Pooling(lambda: windows.whole((channels,)))
    return [
        Step("routing", to_front, None, "/tanh:channels", ("/tanh",), front),
        Step(
            "average",
            lambda x: ops.mean(x, axis=1),
            mean,
            "/scores:mean",
            sources=("/tanh:channels",),
            shape=(pairs,),
        ),
        Step(
            "routing",
            lambda x: ops.reshape(x, (-1, queries, keys)),
            None,
            "/scores:pairs",
            sources=("/scores:mean",),
            shape=flat,
            mask=mask,
        ),
        Step(scale.kind, scale.compute, scale.params, "/scores", ("/scores:pairs",), flat, mask),
    ]


LAYERS: dict[type | str, OperationsFunction] = {
    layers.MultiHeadAttention: _multi_head,
    layers.GroupQueryAttention: _grouped_query,
    layers.Attention: _attention,
    layers.AdditiveAttention: _attention,
}
