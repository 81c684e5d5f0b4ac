"""Weight files of Keras models: written completely or not at all, and checked on reading."""

import os
import warnings

import h5py
import keras
import numpy as np

from nnslicer_tf._files import atomic_path
from nnslicer_tf.errors import CorruptFileError

_LARGE = 1_000_000  # bytes; larger files of weights are kept in half precision
_PACKED = 100_000  # bytes; larger arrays are compressed, smaller ones would grow


def load_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Load a model's weights from a file.

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


def keep_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write the weights of an uncompiled model, in half precision if they are large.

    The file's weights are then loaded into the model, so that measurements match the file.
    """
    save_weights(model, path)
    if os.path.getsize(path) > _LARGE:
        halve(path)
        load_weights(model, path)


def halve(path: str | os.PathLike) -> None:
    """Rewrite a weight file in half precision, compressed; `load_weights` reads it as float32.

    A weight changes by at most 2⁻¹¹ of its value, or by 2⁻²⁵ if it is tiny. Bytes of equal
    significance are stored together, which makes the file about a seventh smaller.
    """
    with (
        atomic_path(path) as temporary,
        h5py.File(path) as whole,
        h5py.File(temporary, "w") as half,
    ):
        whole.visititems(lambda name, item: _copy_half(half, name, item))
        half.attrs.update(whole.attrs)


def _copy_half(half: h5py.File, name: str, item: object) -> None:
    if isinstance(item, h5py.Group):
        half.require_group(name).attrs.update(item.attrs)
    elif isinstance(item, h5py.Dataset):
        values = item[()]
        if item.dtype.kind == "f":
            values = values.astype(np.float16)
        packed = {"compression": "gzip", "shuffle": True} if values.nbytes > _PACKED else {}
        copy = half.create_dataset(name, data=values, **packed)
        copy.attrs.update(item.attrs)


def save_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write weights to `path`, whose name ends in `.weights.h5`, completely or not at all.

    For a compiled model this includes the optimizer's state.
    """
    with atomic_path(path) as temporary:
        named = temporary.with_suffix(".weights.h5")  # Keras accepts no other ending
        try:
            model.save_weights(named)
            os.replace(named, temporary)
        finally:
            named.unlink(missing_ok=True)
