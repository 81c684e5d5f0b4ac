"""The domain that fits an array of seeds, where the caller does not name one."""

import keras
import numpy as np

from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.domain import Domain
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.tables import SignalDomain, TableDomain
from nnslicer_tf.dflare.text import TextDomain
from nnslicer_tf.errors import InputShapeError

_MIN_STEPS = 1000  # columns from which on rows are signals, not rows of a table


def default_domain(seeds: np.ndarray, original: ModelLike) -> Domain:
    """Choose the domain of seeds by their shape and dtype.

    Four axes, and bytes of three, are images; `(seeds, length)` integers are sentences if the
    original is a Keras model with an embedding, which defines similar words; other numbers
    `(seeds, columns)` are rows of a table, or signals from 1,000 columns on; numbers
    `(seeds, steps, channels)` are signals.

    Args:
        seeds: The seeds.
        original: The original model.

    Raises:
        InputShapeError: if seeds of this shape have no domain.
    """
    if seeds.ndim == 4 or (seeds.ndim == 3 and seeds.dtype == np.uint8):
        return ImageDomain()
    if seeds.ndim == 2 and seeds.dtype.kind in "iu":
        embedding = _embedding(getattr(original, "model", original))
        if embedding is not None:
            return TextDomain(keras.ops.convert_to_numpy(embedding.embeddings))
    if seeds.ndim == 2 and seeds.shape[1] < _MIN_STEPS:
        return TableDomain(seeds)
    if seeds.ndim in (2, 3):
        return SignalDomain(seeds)
    raise InputShapeError(
        f"There is no domain for seeds of shape {seeds.shape}. Known are images (seeds, height, "
        "width, channels), rows (seeds, columns), signals (seeds, steps, channels) and sentences "
        "(seeds, length) of integers. For others, subclass dflare.Domain and pass domain=."
    )


def _embedding(model: object) -> keras.layers.Embedding | None:
    """Return the embedding with the most words in a Keras model, if there is one."""
    waiting, best = [model], None
    while waiting:
        layer = waiting.pop()
        waiting.extend(getattr(layer, "layers", ()))
        if isinstance(layer, keras.layers.Embedding) and layer.built:
            best = max(best or layer, layer, key=lambda one: one.input_dim)
    return best
