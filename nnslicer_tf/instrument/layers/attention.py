"""Attention as separate operations: projections, scores, probabilities, context.

Keras fuses them; as operations, scores and probabilities can be captured. For a layer `mha`,
`mha/query` is the projection to queries, `mha/scores` the products of keys and scaled queries
`(heads, queries, keys)`, and `mha` the result.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.activations import activation_step, softmax_step
from nnslicer_tf.instrument.layers.masks import is_set, mask_step
from nnslicer_tf.instrument.layers.merges import product_step
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.projections import Projection
from nnslicer_tf.instrument.layers.weighted_sums import matrix_synapses, sum_step
from nnslicer_tf.instrument.operations import NO_MASK, MaskOf, PaddingOf, Source, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape
from nnslicer_tf.instrument.tracing import TensorAt
from nnslicer_tf.instrument.upstream import add


def _multi_head(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    grouped = isinstance(layer, layers.GroupQueryAttention)
    dense = (layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense)
    heads = layer.num_query_heads if grouped else layer.num_heads
    groups = layer.num_key_value_heads if grouped else layer.num_heads
    scale = 1 / math.sqrt(layer.head_dim if grouped else layer.key_dim)
    arguments, shapes = call.arguments, call.input_shapes
    if any(len(shape) != 2 for shape in shapes[:2]):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) attends over inputs of shapes {shapes}; "
            "only one axis of positions, (positions, channels), has a rule: flatten them first."
        )
    query, value = arguments["query"].place, arguments["value"].place
    key = arguments["key"].place if arguments.get("key") is not None else value
    queries, keys = shapes[query][0], shapes[value][0]

    # Queries, keys and values, each with an axis of heads
    steps: list[Step] = []
    inputs = (("/query", query, heads), ("/key", key, groups), ("/value", value, groups))
    for (name, place, count), projection in zip(inputs, dense[:3], strict=True):
        mask = _mask_of(call, place)
        step = _projected(projection, call.path + name, name, place, shapes[place])
        steps.append(replace(step, mask=mask))
        source = name
        if place == query and name == "/query":
            source = "/query:scaled"
            steps.append(affine_step(scale, 0.0, source, (name,), step.shape, mask))
        steps.append(_split(source, f"{name}:heads", step.shape, count, heads // count, mask))

    # Scores, probabilities and their means of the values
    positions = [(query, "queries"), (value, "keys")]
    if "key" in arguments:  # Keras ignores the mask of the keys if they are the values
        positions.append((key, "keys"))
    masks, counting, neurons = _score_masks(layer, call, (queries, keys), positions, heads=True)
    scores, context = (heads, queries, keys), (queries, heads, dense[2].kernel.shape[-1])
    probable = ("/scores",) if counting is NO_MASK else ("/scores", counting)
    rate = getattr(layer, "_dropout", getattr(layer, "dropout", 0.0))
    by_layer = rate > 0 or bool(call.arguments.get("return_attention_scores"))  # else a function
    steps += [
        *masks,
        product_step("bkhe,bqhe->bhqk", "/scores", ("/key:heads", "/query:heads"), scores, neurons),
        softmax_step(-1, "/probabilities", probable, scores, neurons, of_layer=by_layer),
        product_step("bhqk,bkhe->bqhe", "/context", ("/probabilities", "/value:heads"), context),
    ]

    # A gate computed from the queries, and the projection of all heads
    result = "/context"
    if getattr(layer, "use_gate", getattr(layer, "_use_gate", False)):
        result, mask = "/gated", _mask_of(call, query)
        gate = _projected(layer._gate_dense, f"{call.path}/gate", "/gate:pre", query, shapes[query])
        sigmoid = activation_step(keras.activations.sigmoid, suffix="/gate")
        steps += [
            gate,
            replace(sigmoid, sources=("/gate:pre",), shape=gate.shape),
            _split("/gate", "/gate:heads", gate.shape, heads, 1, mask),
            Step("multiply", ops.multiply, None, result, ("/context", "/gate:heads"), context),
        ]
    output = Projection(dense[3], f"{call.path}/output", context, call.output_shape)
    return (*steps, *output.steps("", result))


def _mask_of(call: LayerCall, place: int) -> Source:
    return PaddingOf(place) if call.paddings[place] else NO_MASK


def _score_masks(
    layer: Any,
    call: LayerCall,
    extents: tuple[int, int],  # numbers of queries and keys
    positions: Sequence[tuple[int, str]],  # masked inputs, each with "queries" or "keys"
    heads: bool = False,  # whether the scores have a leading axis of heads
) -> tuple[list[Step], Source, Source]:
    """Return the steps of the scores' masks, and two of the masks as sources.

    The first source masks the pairs that Keras attends to, the second the pairs that are neurons.
    They differ where Keras has dropped a mask and so attends to padding.
    """
    if call.arguments.get("return_attention_scores"):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({type(layer).__name__}) returns its scores. Do not return them: "
            f"the operation '{call.path}/probabilities' has them."
        )
    # Pairs that count in all samples
    row, column = np.arange(extents[0])[:, None], np.arange(extents[1])
    near = np.ones(extents, bool)
    pairs: Any = call.arguments.get("attention_mask")
    is_input = isinstance(pairs, TensorAt)
    shape = call.input_shapes[pairs.place] if is_input else np.shape(pairs)
    if any(extent != 1 for extent in shape[:-2]):
        raise UnsupportedLayerError(
            f"Layer '{call.path}' has {'an' if is_input else 'a constant'} attention_mask of shape "
            f"{shape}. Only one mask for all heads is supported, (1, {extents[0]}, {extents[1]}), "
            "of a constant also for all samples; pass other masks as an input of the model."
        )
    if pairs is not None and not is_input:
        near &= (ops.convert_to_numpy(pairs).astype(np.float32) > 0.5).reshape(shape[-2:])
    if call.arguments.get("use_causal_mask"):
        near &= row >= column
    # From this distance, positions are ignored.
    window = getattr(layer, "sliding_window", getattr(layer, "_sliding_window", None))
    if window:
        near &= np.abs(row - column) < window
    whole = (1, *extents) if heads else extents
    shapes = {"queries": (extents[0], 1), "keys": (1, extents[1]), "pairs": shape[-2:]}

    def step(suffix: str, masks: Sequence[tuple[Source, str]]) -> Step:
        def compute(x: Any, *values: Any) -> Any:
            counts = ops.broadcast_to(ops.convert_to_tensor(near), (ops.shape(x)[0], *extents))
            for value, (_, axis) in zip(values, masks, strict=True):
                counts = ops.logical_and(counts, ops.reshape(is_set(value), (-1, *shapes[axis])))
            return ops.reshape(counts, (-1, *whole))

        sources = (positions[0][0], *(source for source, _ in masks))
        params = None if near.all() else near
        return replace(mask_step(compute, suffix, sources, whole), params=params)

    between = [(pairs.place, "pairs")] if is_input else []
    received = [(MaskOf(place), axis) for place, axis in positions if call.masks[place]]
    padding = [(PaddingOf(place), axis) for place, axis in positions if call.paddings[place]]
    steps: list[Step] = []
    counting: Source = NO_MASK
    if received or between or not near.all():
        counting = "/mask"
        steps.append(step(counting, [*received, *between]))
    if all(call.masks[place] == call.paddings[place] for place, _ in positions):
        return steps, counting, counting
    return [*steps, step("/padding", [*padding, *between])], counting, "/padding"


def _projected(
    dense: layers.EinsumDense, kernel: str, suffix: str, place: int, shape: Sequence[int]
) -> Step:
    """Return the projection to heads as a weighted sum `(positions, heads · features)`."""
    outputs = (shape[0], *dense.kernel.shape[1:])
    step = sum_step(Projection(dense, kernel, shape, outputs).synapses(), suffix)
    return replace(step, sources=(place,), shape=(shape[0], int(np.prod(outputs[1:]))))


def _split(source: str, suffix: str, shape: Any, heads: int, repeats: int, mask: Source) -> Step:
    """Return the routing to `(positions, heads · repeats, features)`."""
    positions, channels = shape
    features = channels // heads

    def compute(x: Any) -> Any:
        x = ops.reshape(x, (-1, positions, heads, features))
        return ops.repeat(x, repeats, axis=2) if repeats > 1 else x

    split = (positions, heads * repeats, features)
    return Step("routing", compute, None, suffix, (source,), split, mask)


def _attention(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    places = [tensor.place for tensor in call.arguments["inputs"]]
    query, value = places[:2]
    key = places[2] if len(places) > 2 else value
    shape = (call.input_shapes[query][0], call.input_shapes[value][0])
    positions = [(query, "queries"), (value, "keys")]
    masks, counting, neurons = _score_masks(layer, call, shape, positions)
    if isinstance(layer, layers.AdditiveAttention):
        scores = _additive_scores(layer, call, query, key, shape, neurons)
    elif layer.score_mode != "dot":
        raise UnsupportedLayerError(
            f"Layer '{call.path}' (Attention) has score_mode='concat', which has no rule; use "
            "AdditiveAttention, or score_mode='dot'."
        )
    elif layer.scale is None:
        scores = [product_step("bke,bqe->bqk", "/scores", (key, query), shape, neurons)]
    else:
        products = product_step("bke,bqe->bqk", "/products", (key, query), shape, neurons)
        place = ("/scores", ("/products",), shape, neurons)
        scores = [products, affine_step(lambda: layer.scale, 0.0, *place)]
    probable = ("/scores",) if counting is NO_MASK else ("/scores", counting)
    probabilities = softmax_step(-1, "/probabilities", probable, shape, neurons, of_layer=False)
    steps = [*masks, *scores, probabilities]
    context = product_step("bqk,bke->bqe", "", ("/probabilities", value))
    if not call.masks[query]:
        return (*steps, context)
    # Keras sets the result to 0 where the query is padding.
    present = Step(
        "scale",
        lambda x, present: ops.where(is_set(present)[..., None], x, ops.zeros_like(x)),
        sources=("/context", MaskOf(query)),
    )
    return (*steps, replace(context, suffix="/context", shape=call.output_shape), present)


def _additive_scores(
    layer: layers.AdditiveAttention,
    call: LayerCall,
    query: int,
    key: int,
    shape: tuple[int, int],
    mask: Source,
) -> list[Step]:
    """Return the steps of Σ scale · tanh(query + key)."""
    queries, keys = shape
    channels = call.input_shapes[query][-1]
    pairs: Shape = (queries, keys, channels)
    steps = []
    mask_of_keys: Source = NO_MASK
    if call.paddings[key]:
        mask_of_keys = "/key:mask"
        rows = mask_step(lambda m: is_set(m)[:, None], mask_of_keys, (PaddingOf(key),), (1, keys))
        steps.append(rows)
    tanh = activation_step(keras.activations.tanh, suffix="/tanh")
    for axis, name, place, extents, mask_of_input in (
        (2, "/query", query, (queries, 1, channels), _mask_of(call, query)),
        (1, "/key", key, (1, keys, channels), mask_of_keys),
    ):
        spread = partial(ops.expand_dims, axis=axis)
        steps.append(Step("routing", spread, None, name, (place,), extents, mask_of_input))
    steps += [
        Step("add", add, None, "/sums", ("/query", "/key"), pairs, mask),
        replace(tanh, sources=("/sums",), shape=pairs, mask=mask),
    ]
    ones = np.ones(channels, np.float32)
    synapses = matrix_synapses(
        f"{call.path}/scale",
        lambda: ones if layer.scale is None else layer.scale,
        queries * keys,
        apply=lambda x, kernel: ops.matmul(x, ops.reshape(kernel, (channels, 1))),
    )
    synapses = replace(synapses, order=(0,), summed=1, is_constant=layer.scale is None)
    total = replace(sum_step(synapses, "/scores:sum", (*shape, 1)), sources=("/tanh",), mask=mask)
    squeeze = lambda x: ops.squeeze(x, -1)  # noqa: E731
    return [*steps, total, Step("routing", squeeze, None, "/scores", (total.suffix,), shape, mask)]


LAYERS: LayerTable = {
    layers.MultiHeadAttention: _multi_head,
    layers.GroupQueryAttention: _multi_head,
    layers.Attention: _attention,
    layers.AdditiveAttention: _attention,
}
