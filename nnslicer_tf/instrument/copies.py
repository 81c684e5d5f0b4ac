"""Copies of models that can be changed without changing the original."""

import keras
import numpy as np

from nnslicer_tf.instrument._trace import Shapes, as_functional


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
        copy = keras.models.clone_model(model)
    except (NotImplementedError, TypeError):  # what Keras raises for a model without a config
        model = as_functional(model, input_shape)
        copy = keras.models.clone_model(model)
    if not copy.built:
        shape = model.get_build_config()["input_shape"]
        copy(np.zeros((1, *shape[1:]), np.float32))
    copy.set_weights(model.get_weights())
    return copy
