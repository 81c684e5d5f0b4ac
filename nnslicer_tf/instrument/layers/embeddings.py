"""Embeddings: tables whose rows are looked up by token.

Tokens pass through the graph as float32, which holds integers exactly up to 2²⁴.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.layers.weighted_sums import sum_step
from nnslicer_tf.instrument.layout import INPUTS_OUTPUTS, OUTPUTS_INPUTS
from nnslicer_tf.instrument.operations import Elementwise, Lookup, Step, Synapses

_EXACT = 1 << 24


def lookup_step(path: str, table: Callable[[], Any], positions: int, suffix: str = "") -> Step:
    """Return the step that looks up the rows of a table.

    Args:
        path: Name of the kernel.
        table: Returns the table, a Keras variable `(tokens, channels)`.
        positions: Number of tokens per sample.
        suffix: The step's suffix.

    Raises:
        UnsupportedLayerError: if the table has more than 2²⁴ rows.
    """
    shape = tuple(table().shape)
    if shape[0] > _EXACT:
        raise UnsupportedLayerError(
            f"The table '{path}' has {shape[0]:,} rows. Tokens are kept in float32, which is exact "
            f"up to {_EXACT:,} of them; use a smaller vocabulary."
        )

    def apply(x: Any, kernel: Any) -> Any:
        return ops.take(kernel, ops.cast(x, "int32"), axis=0)

    params = Lookup(
        name=path,
        shape=shape,
        groups=1,
        axes=INPUTS_OUTPUTS,
        variable=table,
        bias=lambda: None,
        apply=apply,
        build_taps=lambda: windows.pointwise(positions),
    )

    def compute(x: Any) -> Any:
        return apply(x, ops.cast(table(), x.dtype))

    return Step("lookup", compute, params, suffix)


def _embedding(layer: layers.Embedding, call: LayerCall) -> tuple[Step, ...]:
    positions = int(np.prod(call.input_shapes[0]))
    return (lookup_step(call.path, lambda: layer._embeddings, positions),)


def _reversible(layer: Any, call: LayerCall) -> tuple[Step, ...]:
    """Return a lookup, or with `reverse=True` the weighted sum with the transposed table."""
    if not call.arguments.get("reverse"):
        return _embedding(layer, call)
    tied = layer.tie_weights
    positions = int(np.prod(call.input_shapes[0][:-1]))
    synapses = Synapses(
        name=call.path if tied else f"{call.path}/reverse",
        shape=tuple((layer._embeddings if tied else layer.reverse_embeddings).shape),
        groups=1,
        axes=OUTPUTS_INPUTS if tied else INPUTS_OUTPUTS,
        variable=lambda: layer._embeddings if tied else layer.reverse_embeddings,
        bias=lambda: None,
        apply=lambda x, kernel: ops.matmul(x, ops.transpose(kernel) if tied else kernel),
        build_taps=lambda: windows.pointwise(positions),
    )
    if layer.logit_soft_cap is None:
        return (sum_step(synapses),)
    cap = layer.logit_soft_cap
    capped = Step(
        "elementwise", lambda x: ops.tanh(x / cap) * cap, Elementwise("soft_cap", mixes=False)
    )
    return (sum_step(synapses, ":pre"), capped)


def adds_table(
    table: Callable[[Any], Any],
) -> Callable[[keras.Operation, LayerCall], tuple[Step, ...]]:
    """Return the operations of a layer that adds a table to its input, such as learned positions.

        register_layer(AddPositions, adds_table(lambda layer: layer.vectors))

    Args:
        table: Maps the layer to the table, a variable or tensor that broadcasts to one sample.
    """

    def operations_fn(layer: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
        def read() -> tuple[np.ndarray, np.ndarray]:
            return np.asarray(1.0), ops.convert_to_numpy(table(layer)).astype(np.float64)

        return (affine_step(read, lambda x: x + ops.cast(table(layer), x.dtype)),)

    return operations_fn


LAYERS: dict[type | str, Callable[[keras.Operation, LayerCall], tuple[Step, ...]]] = {
    layers.Embedding: _embedding,
}
if hasattr(layers, "ReversibleEmbedding"):  # Keras 3.13
    LAYERS[layers.ReversibleEmbedding] = _reversible
