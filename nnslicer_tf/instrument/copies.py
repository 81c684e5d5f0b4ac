"""Copies of models that can be changed without changing the original."""

import keras
import numpy as np


def copy_model(model: keras.Model) -> keras.Model:
    """Return a copy of a built model, with the same layer names and its own weights.

    Args:
        model: A functional or sequential model, or a subclassed one with a config.
    """
    copy = keras.models.clone_model(model)
    if not copy.built:
        shape = model.get_build_config()["input_shape"]
        copy(np.zeros((1, *shape[1:]), np.float32))
    copy.set_weights(model.get_weights())
    return copy
