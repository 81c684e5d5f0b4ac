"""Files of a Keras model's weights: written completely or not at all, and checked on reading."""

import os
import warnings

import keras

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import CorruptFileError


def load_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Load weights that fit the model exactly.

    Raises:
        CorruptFileError: if the file is damaged, or its weights do not fit the model.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # Keras only warns of some mismatches
            model.load_weights(path)
    except (OSError, ValueError, KeyError, UserWarning) as error:
        raise CorruptFileError(
            f"'{path}' does not hold weights of '{model.name}': {error}"
        ) from error


def save_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write `path` (its name ends in `.weights.h5`) completely or not at all.

    For a compiled model this includes the optimizer's state.
    """
    with atomic_path(path) as temporary:
        named = temporary.with_suffix(".weights.h5")  # Keras accepts no other ending
        try:
            model.save_weights(named)
            os.replace(named, temporary)
        finally:
            named.unlink(missing_ok=True)
