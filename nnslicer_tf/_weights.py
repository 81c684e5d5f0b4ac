"""Files of a Keras model's weights: written whole or not at all, checked when they are read."""

import os
import warnings

import keras

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import CorruptFileError


def load_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Load weights that fit the model exactly.

    Raises:
        CorruptFileError: if the file is damaged, or holds other weights.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # for some misfits Keras warns only
            model.load_weights(path)
    except (OSError, ValueError, KeyError, UserWarning) as error:
        raise CorruptFileError(
            f"'{path}' does not hold weights of '{model.name}': {error}"
        ) from error


def save_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write `path` (its name ends in `.weights.h5`) whole or not at all.

    Of a compiled model the optimiser's state is written too.
    """
    with atomic_path(path) as temporary:
        named = temporary.with_suffix(".weights.h5")  # Keras takes no other ending
        try:
            model.save_weights(named)
            os.replace(named, temporary)
        finally:
            named.unlink(missing_ok=True)
