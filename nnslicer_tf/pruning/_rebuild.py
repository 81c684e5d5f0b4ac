"""Copies of models with different weights, sizes or constraints."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel

Twins = list[tuple[keras.Variable, keras.Variable]]
"""Variables of a model, each paired with the corresponding one in a copy."""


def rebuild(
    im: InstrumentedModel, values: Mapping[int, np.ndarray], configs: Mapping[int, dict[str, Any]]
) -> keras.Model:
    """Return a copy of the instrumented model with some variables and layer configs replaced.

    Args:
        im: The model; the copy of a subclassed model is functional.
        values: Id of a variable → its value in the copy, with the copy's shape.
        configs: Id of a layer → entries of its config in the copy.
    """
    return rebuild_with_twins(im, values, configs)[0]


def rebuild_with_twins(
    im: InstrumentedModel, values: Mapping[int, np.ndarray], configs: Mapping[int, dict[str, Any]]
) -> tuple[keras.Model, Twins]:
    """Do the same as `rebuild`, and also pair the model's variables with the copy's.

    They are paired layer by layer, because a subclassed model has its layers in the order of their
    declaration, but its functional copy in the order of their calls.
    """
    pairs: list[tuple[Any, Any]] = []

    def clone(layer: keras.Layer) -> keras.Layer:
        if not isinstance(layer, keras.layers.Layer):  # `x + y` has nothing to copy
            return layer
        config = {**layer.get_config(), **configs.get(id(layer), {})}
        pairs.append((layer, type(layer).from_config(config)))
        return pairs[-1][1]

    copy = keras.models.clone_model(im.functional, clone_function=clone, recursive=True)
    if not copy.built:
        copy.build((None, *im.input_shape))
    twins: Twins = []
    for layer, new in pairs:
        twins += zip(layer.variables, new.variables, strict=True)
    for variable, twin in twins:
        # A copy: JAX's compiled calls delete the arrays that they are given.
        twin.assign(keras.ops.copy(values.get(id(variable), variable)))
    return copy, twins
