"""Batch normalisation after pruning: statistics of the pruned model (ours, not the paper's).

Pruning changes the mean and the variance of every sum, so the moving statistics of batch
normalisations no longer fit. Measuring them again needs samples, but no labels and no
training. Cost: a forward pass of the samples, all in one batch.
"""

import keras
from keras import layers

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Samples, instrumented
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning._rebuild import Twins, rebuild, rebuild_with_twins


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
    im = instrumented(model)
    x = Samples(x, im.input_shape, im.bounds).array()
    if len(x) < 2:
        raise InvalidArgumentError(f"Statistics need two samples at least. Received: {len(x)}")
    measured, twins = with_batch_statistics(im)
    measured(x, training=True)
    return rebuild(im, {id(v): keras.ops.convert_to_numpy(twin) for v, twin in twins}, {})


def with_batch_statistics(im: InstrumentedModel) -> tuple[keras.Model, Twins]:
    """Return a copy whose normalisations keep the statistics of the last training batch.

    The second value pairs the model's variables with those of the copy.
    """
    normalisations = {
        id(o.keras_layer): {"momentum": 0.0}
        for o in im.operations
        if isinstance(o.keras_layer, layers.BatchNormalization)
    }
    return rebuild_with_twins(im, {}, normalisations)
