"""Batch normalisation after pruning: statistics of the pruned model (ours, not the paper's).

Pruning changes the mean and the spread of every sum, and the moving statistics of batch
normalisations no longer fit. Measuring them again needs samples, but no labels and no
training. Cost: a forward pass of the samples, all in one batch.
"""

import keras
import numpy as np
from keras import layers

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning._rebuild import rebuild


def renormalise(model: keras.Model, x: np.ndarray) -> keras.Model:
    """Return a copy whose batch normalisations have the statistics of these samples.

    Masks stay. Layers that act in training alone, such as dropout, act here too.

    Args:
        model: Any model that `InstrumentedModel` takes, as a rule a pruned one.
        x: Samples `(samples, *input_shape)`, some hundred at least.

    Raises:
        InputShapeError: if the samples do not fit the model.
        InvalidArgumentError: if there are fewer than two samples.
    """
    im = InstrumentedModel(model)
    x = im.check(x)
    if len(x) < 2:
        raise InvalidArgumentError(f"Statistics need two samples at least. Received: {len(x)}")
    measured = with_batch_statistics(im)
    measured(x, training=True)
    pairs = zip(im.model.variables, measured.variables, strict=True)
    return rebuild(im, {id(v): keras.ops.convert_to_numpy(m) for v, m in pairs}, {})


def with_batch_statistics(im: InstrumentedModel) -> keras.Model:
    """Return a copy whose normalisations keep the statistics of the last batch in training."""
    normalisations = {
        id(o.keras_layer): {"momentum": 0.0}
        for o in im.operations
        if isinstance(o.keras_layer, layers.BatchNormalization)
    }
    return rebuild(im, {}, normalisations)
