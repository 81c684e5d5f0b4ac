"""Copies of models with other weights, sizes or constraints."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument._trace import as_functional


def rebuild(
    im: InstrumentedModel, values: Mapping[int, np.ndarray], configs: Mapping[int, dict[str, Any]]
) -> keras.Model:
    """Return a copy of the instrumented model with some variables and layer configs replaced.

    Args:
        im: The model; the copy of a subclassed one is functional.
        values: Id of a variable → its value in the copy, of the copy's shape.
        configs: Id of a layer → entries of its config in the copy.
    """
    pairs: list[tuple[Any, Any]] = []

    def clone(layer: keras.Layer) -> keras.Layer:
        if not isinstance(layer, keras.layers.Layer):  # `x + y` has nothing to copy
            return layer
        config = {**layer.get_config(), **configs.get(id(layer), {})}
        pairs.append((layer, type(layer).from_config(config)))
        return pairs[-1][1]

    several = len(im.input_operations) > 1
    model = as_functional(im.model, im.input_shapes if several else im.input_shape)
    copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
    if not copy.built:
        copy.build((None, *im.input_shape))
    for layer, new in pairs:
        for variable, target in zip(layer.variables, new.variables, strict=True):
            value = values.get(id(variable))
            target.assign(variable if value is None else value)
    return copy
