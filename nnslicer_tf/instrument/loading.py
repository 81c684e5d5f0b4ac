"""Loading of models from files, with helpful error messages."""

import os
from pathlib import Path

import keras

from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, UnsupportedLayerError


def load_model(path: str | os.PathLike) -> keras.Model:
    """Load a Keras model from a .keras or .h5 file, without compiling it.

    Raises:
        InvalidArgumentError: if there is no such file, or its name has a different ending.
        CorruptFileError: if the file is truncated or damaged, or does not hold a model.
        UnsupportedLayerError: if the model has a class that Keras does not know.
    """
    path = Path(path)
    if path.suffix not in (".keras", ".h5", ".hdf5"):
        raise InvalidArgumentError(f"A model is a .keras or .h5 file. Received: '{path}'")
    if not path.is_file():
        raise InvalidArgumentError(f"There is no model file '{path}'.")
    try:
        return keras.models.load_model(path, compile=False)
    except TypeError as error:
        first_line = str(error).strip().splitlines()[0]
        raise UnsupportedLayerError(
            f"'{path}' has a layer that Keras cannot rebuild: {first_line} Register the class "
            "with @keras.saving.register_keras_serializable() and load it from Python."
        ) from error
    except Exception as error:  # parsers of ZIP, HDF5 and JSON raise errors of many classes
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptFileError(f"'{path}' is not a readable Keras model: {first_line}") from error
