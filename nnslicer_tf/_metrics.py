"""Accuracy of a classifier on a data set."""

import keras
import numpy as np

from nnslicer_tf import _numerics
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel


def accuracy(model: keras.Model, data: Dataset, batch_size: int = 512) -> float:
    """Return the share of samples whose predicted class, by `OutputClasses`, is their label.

    Raises:
        InvalidArgumentError: if the model predicts a number.
    """
    parts = [
        np.asarray(model.predict_on_batch(data.x[i : i + batch_size]))
        for i in range(0, len(data), batch_size)
    ]
    outputs = np.concatenate(parts)
    if outputs.shape[-1] > 1:  # not instrumented, so that any model can be measured
        return _numerics.accuracy(outputs.argmax(axis=1), data.y)
    classes = InstrumentedModel(model, data.x.shape[1:]).classes
    if classes.is_number:
        raise InvalidArgumentError(
            f"Model '{model.name}' has one output without a sigmoid: it predicts numbers, which "
            "have no accuracy. End it with a sigmoid if it tells two classes apart."
        )
    return _numerics.accuracy(classes.from_outputs(outputs), data.y)
