"""Copies of models that can be changed without changing the original."""

import keras
import numpy as np

from nnslicer_tf.instrument._trace import Shapes, as_functional, functional_class, input_name


def copy_model(model: keras.Model, input_shape: Shapes | None = None) -> keras.Model:
    """Return a copy of a built model, with the same layer names and its own weights.

    Args:
        model: A functional, sequential or subclassed model. The copy of a subclassed one without a
            config is functional.
        input_shape: The shape of one sample, if the model does not know it.

    Raises:
        InputShapeError: if a subclassed model without a config does not know its input's shape.
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


def _clone(model: keras.Model) -> keras.Model:
    """Return a clone whose inputs keep their names; Keras's are called as their tensors."""
    if not isinstance(model, functional_class()) or isinstance(model, keras.Sequential):
        return keras.models.clone_model(model)
    entries = [
        keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=input_name(tensor))
        for tensor in model.inputs
    ]
    structure = keras.tree.pack_sequence_as(model.input, entries)
    return keras.models.clone_model(model, input_tensors=structure)
