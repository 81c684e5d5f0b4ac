"""Counterparts: a compressed model's values, mapped to the operations of its original."""

import os
from typing import TypeAlias

import keras
import numpy as np

from nnslicer_tf.debugging._copies import Copy, QuantisedLayers
from nnslicer_tf.debugging._litert_file import LiteRTFile
from nnslicer_tf.debugging._litert_graph import LiteRTGraph
from nnslicer_tf.debugging.places import Counterpart
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

CompressedLike: TypeAlias = keras.Model | InstrumentedModel | str | os.PathLike | bytes


def counterpart_of(im: InstrumentedModel, compressed: CompressedLike, x: np.ndarray) -> Counterpart:
    """Map a compressed model's values to the original's operations.

    Args:
        im: The original.
        compressed: A Keras model with the original's layers, or the path or content of a LiteRT
            file.
        x: Samples used to recognise values; only the first ones are needed.

    Raises:
        InvalidArgumentError: if the models do not correspond; the message names the first layer
            without a counterpart.
        CorruptFileError: if a file is damaged.
    """
    if isinstance(compressed, (str, os.PathLike, bytes)):
        return LiteRTFile(im, LiteRTGraph(compressed, x.shape[1:]), x)
    if isinstance(compressed, keras.Model):
        if any(getattr(layer, "quantization_mode", None) for layer in compressed.layers):
            return QuantisedLayers(im, compressed)
        compressed = InstrumentedModel(compressed)
    if isinstance(compressed, InstrumentedModel):
        return Copy(im, compressed)
    raise InvalidArgumentError(
        "A compressed model must be a Keras model, or the path or bytes of a .tflite file. "
        f"Received: {type(compressed).__name__}"
    )


def weights_twin(im: InstrumentedModel, counterpart: Counterpart) -> keras.Model:
    """Return a copy of the original with the compressed model's weights.

    It computes in floating point, so unlike the compressed model it does not round activations.
    It has all weights of a Keras model, but only the kernels of a LiteRT file.
    """
    return counterpart.twin(im)
