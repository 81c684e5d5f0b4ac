"""Copies of models that can be changed without changing the original."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from nnslicer_tf.instrument._trace import (
    Shapes,
    as_functional,
    functional_class,
    input_name,
)


def copy_model(model: keras.Model, input_shape: Shapes | None = None) -> keras.Model:
    """Return a copy of a built model, with the same layer names and its own weights.

    Args:
        model: A functional, sequential or subclassed model. If a subclassed model has no config,
            the copy is functional.
        input_shape: The shape of one sample, if the model does not know it.

    Raises:
        InputShapeError: if a subclassed model has no config and its input's shape is not known.
    """
    try:
        copy = _clone(model)
    except (NotImplementedError, TypeError):  # what Keras raises for a model without a config
        model = as_functional(model, input_shape)
        copy = _clone(model)
    if not copy.built:
        shape = model.get_build_config()["input_shape"]
        copy(np.zeros((1, *shape[1:]), np.float32))
    copy.set_weights(model.get_weights())
    return copy


def inputs_like(model: keras.Model, shapes: Iterable[tuple[int | None, ...]] | None = None) -> Any:
    """Return inputs for a clone of a functional model, in the structure of the model's inputs.

    They keep the names of the model's inputs; `clone_model` would use the names of their tensors,
    which Keras numbers.

    Args:
        model: A functional model.
        shapes: The shape of one sample of each input; by default, those of the model.
    """
    entries = [
        keras.Input(shape, tensor.shape[0], tensor.dtype, name=input_name(tensor))
        for shape, tensor in zip(
            shapes or [tensor.shape[1:] for tensor in model.inputs], model.inputs, strict=True
        )
    ]
    return keras.tree.pack_sequence_as(model.input, entries)


def _clone(model: keras.Model) -> keras.Model:
    if isinstance(model, functional_class()) and not isinstance(model, keras.Sequential):
        return keras.models.clone_model(model, input_tensors=inputs_like(model))
    return keras.models.clone_model(model)
