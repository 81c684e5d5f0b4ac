"""Weights of trained networks, kept in half precision where their files would be large."""

import os

import h5py
import keras
import numpy as np

from nnslicer_tf._files import atomic_path, load_weights

MAX_FULL_PRECISION = 1_000_000  # bytes; larger files of weights are kept in half precision
MIN_COMPRESSED = 100_000  # bytes; larger arrays of weights are compressed, smaller ones would grow


def keep_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write the weights of an uncompiled model, in half precision if they are large.

    The file's weights are then loaded into the model, so that measurements match the file.
    """
    save_weights(model, path)
    if os.path.getsize(path) > MAX_FULL_PRECISION:
        halve(path)
        load_weights(model, path)


def save_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write weights, and a compiled model's optimiser state, atomically to a `.weights.h5` file."""
    with atomic_path(path) as temporary:
        named = temporary.with_suffix(".weights.h5")  # Keras accepts no other ending
        try:
            model.save_weights(named)
            os.replace(named, temporary)
        finally:
            named.unlink(missing_ok=True)


def halve(path: str | os.PathLike) -> None:
    """Rewrite a weight file in half precision, compressed; `load_weights` reads it as float32.

    A weight changes by at most 2⁻¹¹ of its value, or by 2⁻²⁵ if it is tiny.
    """

    def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group):
            half.require_group(name).attrs.update(item.attrs)
            return
        values = item[()]
        if item.dtype.kind == "f":
            values = values.astype(np.float16)
        # Shuffled, bytes of equal significance are together, and the file a seventh smaller.
        packed = {"compression": "gzip", "shuffle": True} if values.nbytes > MIN_COMPRESSED else {}
        half.create_dataset(name, data=values, **packed).attrs.update(item.attrs)

    with (
        atomic_path(path) as temporary,
        h5py.File(path) as whole,
        h5py.File(temporary, "w") as half,
    ):
        whole.visititems(copy)
        half.attrs.update(whole.attrs)
