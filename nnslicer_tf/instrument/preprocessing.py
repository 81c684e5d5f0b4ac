"""Preprocessing and input bounds that are attached to a model."""

from collections.abc import Callable
from typing import Any

import keras

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument._trace import Shapes
from nnslicer_tf.instrument.data import Bounds


def check_bounds(bounds: Bounds | None) -> Bounds | None:
    """Return the smallest and the largest value of an input as floats, or None."""
    if bounds is None:
        return None
    try:
        low, high = map(float, bounds)
        valid = low < high
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidArgumentError(
            f"bounds are the least and the largest value of an input. Received: {bounds!r}"
        )
    return low, high


def preprocessed(
    model: keras.Model, preprocess: Callable[[Any], Any], input_shape: Shapes | None
) -> keras.Model:
    """Return a model with the same layers that preprocesses its inputs first."""
    inputs = keras.Input(input_shape or model.inputs[0].shape[1:])
    try:
        prepared = preprocess(inputs)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "preprocess must be a Keras layer, or a function written with keras.ops and "
            f"operators. It failed on a symbolic input: {error}"
        ) from error
    # Not model(prepared), which would prefix the operations' names with the nested model's name.
    return keras.Model(inputs, model.call(prepared), name=model.name)
