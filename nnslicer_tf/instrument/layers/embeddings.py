"""Embeddings: tables whose rows are looked up by token.

The graph holds tokens as float32, which is exact for integers up to 2²⁴.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from keras import layers, ops

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.weighted_sums import matrix_synapses, sum_step
from nnslicer_tf.instrument.layout import INPUTS_OUTPUTS, OUTPUTS_INPUTS
from nnslicer_tf.instrument.operations import Elementwise, Lookup, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable

_EXACT = 1 << 24


def lookup_step(call: LayerCall, table: Callable[[], Any], is_constant: bool = False) -> Step:
    """Return the lookup of tokens in a table; one of constants has no synapses."""

    def apply(x: Any, kernel: Any) -> Any:
        return ops.take(kernel, ops.cast(x, "int32"), axis=0)

    positions = int(np.prod(call.input_shapes[0]))
    params = matrix_synapses(call.path, table, positions, apply, kind=Lookup)
    if params.shape[0] > _EXACT:
        raise UnsupportedLayerError(
            f"The table '{call.path}' has {counted(params.shape[0], 'row')}. Tokens are kept in "
            f"float32, which is exact up to {_EXACT:,} of them; use a smaller vocabulary."
        )
    params = replace(params, is_constant=is_constant)
    return Step("lookup", lambda x: apply(x, ops.cast(table(), x.dtype)), params)


def _reversible(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return a lookup, or with `reverse=True` a weighted sum with the transposed table."""
    if not call.arguments.get("reverse"):
        return (lookup_step(call, lambda: layer._embeddings),)
    tied, cap = layer.tie_weights, layer.logit_soft_cap
    synapses = matrix_synapses(
        call.path if tied else f"{call.path}/reverse",
        lambda: layer._embeddings if tied else layer.reverse_embeddings,
        positions=int(np.prod(call.input_shapes[0][:-1])),
        apply=lambda x, kernel: ops.matmul(x, ops.transpose(kernel) if tied else kernel),
    )
    synapses = replace(synapses, axes=OUTPUTS_INPUTS if tied else INPUTS_OUTPUTS)
    if cap is None:
        return (sum_step(synapses),)
    soft_cap = Elementwise("soft_cap", mixes=False)
    capped = Step("elementwise", lambda x: ops.tanh(x / cap) * cap, soft_cap)
    return (sum_step(synapses, ":pre"), capped)


LAYERS: LayerTable = {
    layers.Embedding: lambda layer, call: (lookup_step(call, lambda: layer._embeddings),)
}
if hasattr(layers, "ReversibleEmbedding"):  # Keras 3.13
    LAYERS[layers.ReversibleEmbedding] = _reversible
