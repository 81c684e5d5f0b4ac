"""Batch normalisation after pruning: statistics of the pruned model (ours, not the paper's).

Pruning changes the mean and the variance of every sum, so the moving statistics of batch
normalisations no longer fit. Measuring them again needs samples, but no labels and no
training. Cost: a forward pass of the samples, all in one batch.
"""

import keras
from keras import layers

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Samples, rebuild
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.masked import maskable
from nnslicer_tf.instrument.model import ModelLike


def renormalise(model: ModelLike, x: DataLike) -> keras.Model:
    """Return a copy whose batch normalisations have the statistics of these samples.

    Masks are kept. Layers that are only active in training, such as dropout, are active here too.

    Args:
        model: Any model with one input that `InstrumentedModel` accepts, usually a pruned one.
        x: Samples `(samples, *input_shape)`, at least a few hundred.

    Raises:
        InputShapeError: if the samples do not fit the model.
        SeveralInputsError: if the model has several inputs.
        InvalidArgumentError: if there are fewer than two samples.
    """
    im = maskable(model)
    x = Samples(x, im.input_shape, im.bounds).array()
    if len(x) < 2:
        raise InvalidArgumentError(f"Statistics need two samples at least. Received: {len(x)}")
    momentum = {
        id(o.keras_layer): {"momentum": 0.0}
        for o in im.operations
        if isinstance(o.keras_layer, layers.BatchNormalization)
    }
    measured = rebuild(im.functional, {}, momentum)
    measured(x, training=True)
    variables = zip(im.functional.variables, measured.variables, strict=True)
    return rebuild(im.functional, {id(v): keras.ops.convert_to_numpy(m) for v, m in variables})
