"""Recipes: which layers a quantiser should leave in floating point or 16 bits."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import pandas as pd

from nnslicer_tf._checks import check_name, check_number
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging.comparison import LayerComparison
from nnslicer_tf.debugging.counterparts import Place, counterpart_of
from nnslicer_tf.errors import MissingPackageError

_MIN_CAUSE = 0.01  # layers that cause a smaller share of the deviation are not worth leaving


@dataclass(frozen=True, eq=False)
class Recipe(ShownAsTable):
    """Layers to leave in floating point.

    Attributes:
        comparison: The comparison on which it is based.
        places: The layers' places, the most important first; empty if no layer fits the budget.
        budget: The largest allowed share of the weights.
        weights: The share of the weights left in floating point.
        mended: Share of the deviating samples that then get the original's label, with all other
            errors fixed: a prediction, to be verified by searching again.
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
        operations = self.comparison.im.operations
        layers = [o.layer for o in operations if kernels & {kernel.name for kernel in o.kernels}]
        return tuple(dict.fromkeys(layers))

    def tensors(self, file: str | os.PathLike | bytes | None = None) -> tuple[str, ...]:
        """Return the names of the layers' outputs in a LiteRT file.

        They are the `denylisted_nodes` of TensorFlow's `lite.experimental.QuantizationDebugger`.

        Args:
            file: A file made from the original by the converter to be configured, such as the
                floating-point one; by default the compared file.

        Raises InvalidArgumentError if the file does not correspond to the original.
        """
        counterpart = self.comparison.counterpart
        if file is not None:
            counterpart = counterpart_of(self.comparison.im, file, self.comparison.x)
        by_kernel = {place.kernel: place.tensor for place in counterpart.places}
        return tuple(by_kernel[place.kernel] for place in self.places)

    def ai_edge(
        self, file: str | os.PathLike | bytes | None = None, kept: str = "float"
    ) -> list[dict[str, Any]]:
        """Return entries to append to a recipe of the AI Edge Quantizer.

        `recipe.dynamic_wi8_afp32() + found.ai_edge(file)` is a complete recipe, as JSON.

        Args:
            file: As in `tensors`.
            kept: "float", or "int16" for 16-bit activations and 8-bit weights (the quantizer's
                `static_wi8_ai16`), in recipes with integer activations such as `static_wi8_ai8`;
                this removes most of the loss from rounding activations, but none from weights.

        Raises InvalidArgumentError if layers cannot be kept that way; MissingPackageError if
        "int16" needs the quantizer, which is not installed.
        """
        check_name("kept", kept, ("float", "int16"))
        settings: dict[str, Any] = {"algorithm_key": "no_quantize"}
        if kept == "int16":
            try:
                from ai_edge_quantizer.recipe import static_wi8_ai16
            except ImportError as error:
                raise MissingPackageError(
                    "kept='int16' needs the AI Edge Quantizer: pip install ai-edge-quantizer"
                ) from error
            (settings,) = static_wi8_ai16()
        return [
            # The quantizer appends a semicolon to each tensor name.
            {**settings, "regex": f"^{re.escape(tensor)};?$", "operation": "*"}
            for tensor in self.tensors(file)
        ]

    def keras_filter(self, layer: keras.layers.Layer) -> bool:
        """Whether Keras should quantise a layer: `model.quantize("int8", filters=…)`."""
        return layer.name not in self.layers

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per layer: its weights, and its share of the deviation."""
        frame = self.comparison.to_frame()
        return frame[frame["operation"].isin([p.operation for p in self.places])]

    def __repr__(self) -> str:
        names = ", ".join(self.layers) or "no layer"
        share, mended = f"{self.weights:.1%} of the weights", f"{self.mended:.0%} of the deviations"
        doubt = "" if self.mended > 0 else ", so it is of no use"
        return f"Recipe({names} in float, {share}; mends {mended}{doubt})"


def recipe(
    comparison: LayerComparison, budget: float = 0.05, places: Sequence[Place] | None = None
) -> Recipe:
    """Choose the few layers to leave in floating point that mend most of the deviation.

    Layers are chosen by priority, if they fit into the remaining budget.

    Args:
        comparison: The comparison of a model and its compressed copy.
        budget: The largest share of the weights that may stay in floating point, above 0, to 1.
        places: The layers' places by priority; by default those that cause at least 1 % of the
            deviation, in order of their share.

    Raises InvalidArgumentError if the budget is out of range.
    """
    check_number("budget", budget, "(0, 1]")
    if places is None:
        places = [p for p in comparison.ranking if comparison.causes[p.operation] >= _MIN_CAUSE]
    total = sum(kernel.size for kernel in comparison.im.kernels.values())
    left, chosen = budget * total, []
    for place in places:
        if place.kernel is not None and place.weights <= left:
            chosen.append(place)
            left -= place.weights
    (mended,) = comparison.mended([[place.operation for place in chosen]])
    weights = sum(place.weights for place in chosen) / total
    return Recipe(comparison, tuple(chosen), budget, weights, float(mended))
