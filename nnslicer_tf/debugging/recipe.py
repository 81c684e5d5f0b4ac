"""Recipes: the layers a quantiser is to leave in floating point or 16 bits, and how to tell it."""

import copy
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from nnslicer_tf._names import check_name
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging.comparison import LayerComparison
from nnslicer_tf.debugging.counterparts import counterpart_of
from nnslicer_tf.debugging.places import Place
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

_LITTLE = 0.01  # a share of the deviation that is not worth a layer

_KEPT: dict[str, dict[str, Any]] = {
    "float": {"algorithm_key": "no_quantize"},
    "int16": {
        "algorithm_key": "min_max_uniform_quantize",
        "op_config": {
            "activation_tensor_config": {
                "num_bits": 16,
                "symmetric": True,
                "granularity": "TENSORWISE",
                "dtype": "INT",
            },
            "weight_tensor_config": {
                "num_bits": 8,
                "symmetric": True,
                "granularity": "CHANNELWISE",
                "dtype": "INT",
            },
            "compute_precision": "INTEGER",
            "explicit_dequantize": False,
            "skip_checks": False,
            "min_weight_elements": 0,
        },
    },
}
"""Way of keeping layers → the rest of an entry of the AI Edge Quantizer's recipe. The second is its
setting `static_wi8_ai16`: activations of 16 bits, weights of 8."""


@dataclass(frozen=True, eq=False)
class Recipe(ShownAsTable):
    """Layers to leave in floating point.

    Attributes:
        comparison: What it was made from.
        places: The layers' places, the most important first; none if no layer fits the budget.
        budget: The largest share of the weights that was allowed.
        weights: The share of the weights that is left in floating point.
        mended: Share of the deviating samples that then get the original's label, with all other
            errors held as they are: a prediction, to be verified by searching again.
    """

    comparison: LayerComparison
    places: tuple[Place, ...]
    budget: float
    weights: float
    mended: float

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the original's layers that are left in floating point."""
        kernels = {place.kernel for place in self.places}
        return tuple(
            dict.fromkeys(
                operation.layer
                for operation in self.comparison.im.operations
                if kernels & {kernel.name for kernel in operation.kernels}
            )
        )

    def tensors(self, file: str | os.PathLike | bytes | None = None) -> tuple[str, ...]:
        """Return what a LiteRT file calls the layers: the names of the tensors they compute.

        They are the `denylisted_nodes` of TensorFlow's `lite.experimental.QuantizationDebugger`.

        Args:
            file: A file made from the original by the converter that is to be told, such as that
                in floating point; by default the compressed file that was compared.

        Raises:
            InvalidArgumentError: if the file does not correspond to the original.
        """
        found = self.comparison.counterpart
        if file is not None:
            found = counterpart_of(self.comparison.im, file, self.comparison.x)
        by_kernel = {place.kernel: place.tensor for place in found.places}
        return tuple(by_kernel[place.kernel] for place in self.places)

    def ai_edge(
        self, file: str | os.PathLike | bytes | None = None, kept: str = "float"
    ) -> list[dict[str, Any]]:
        """Return entries to append to a recipe of the AI Edge Quantizer.

        `recipe.dynamic_wi8_afp32() + found.ai_edge(file)` is a recipe of its own, as JSON.

        Args:
            file: As in `tensors`.
            kept: "float", or "int16" for activations of 16 bits and weights of 8: for recipes that
                make integers of activations, such as `static_wi8_ai8`. What the layers lose by
                rounding activations nearly goes, what they lose by rounding weights stays.

        Raises:
            InvalidArgumentError: if layers cannot be kept in that way.
        """
        check_name("kept", kept, _KEPT)
        return [
            # The quantizer puts a semicolon behind each name of a tensor.
            {"regex": f"^{re.escape(tensor)};?$", "operation": "*", **copy.deepcopy(_KEPT[kept])}
            for tensor in self.tensors(file)
        ]

    def keras_filter(self, layer: keras.layers.Layer) -> bool:
        """Whether Keras is to quantise a layer: `model.quantize("int8", filters=…)`."""
        return layer.name not in self.layers

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each layer: its weights, and what it causes."""
        frame = self.comparison.to_frame()
        return frame[frame["operation"].isin([p.operation for p in self.places])]

    def __repr__(self) -> str:
        names = ", ".join(self.layers) or "no layer"
        return (
            f"Recipe({names} in float, {self.weights:.1%} of the weights; "
            f"mends {self.mended:.0%} of the deviations)"
        )


def recipe(comparison: LayerComparison, budget: float = 0.05) -> Recipe:
    """Choose the few layers to leave in floating point that mend most of the deviation.

    Layers are taken in the order of what they cause, if it is 1 % of the deviation or more, and if
    they fit what is left of the budget.

    Args:
        comparison: A model and its compressed copy, compared.
        budget: The largest share of the weights that may stay in floating point, 0 … 1.

    Raises:
        InvalidArgumentError: if the budget is out of range.
    """
    if not 0 < budget <= 1:
        raise InvalidArgumentError(f"budget must be above 0, at most 1. Received: {budget!r}")
    worth = [p for p in comparison.ranking if comparison.causes[p.operation] >= _LITTLE]
    return leaving(comparison, worth, budget)


def leaving(comparison: LayerComparison, places: Sequence[Place], budget: float) -> Recipe:
    """Return the recipe that leaves layers in floating point as far as they fit the budget.

    Args:
        comparison: A model and its compressed copy, compared.
        places: The layers' places, the first to be left in floating point first.
        budget: The largest share of the weights that may stay in floating point, 0 … 1.
    """
    chosen = _affordable(comparison, places, budget)
    (mended,) = comparison.mended([[place.operation for place in chosen]])
    weights = sum(place.weights for place in chosen) / _weights(comparison)
    return Recipe(comparison, tuple(chosen), budget, weights, float(mended))


def _affordable(comparison: LayerComparison, places: Sequence[Place], budget: float) -> list[Place]:
    """Return the layers, in their order, that fit what is left of the budget."""
    left = budget * _weights(comparison)
    chosen = []
    for place in places:
        if place.kernel is not None and place.weights <= left:
            chosen.append(place)
            left -= place.weights
    return chosen


def _weights(comparison: LayerComparison) -> int:
    return sum(kernel.size for kernel in comparison.im.kernels.values())
