"""Accuracy of a classifier on a data set."""

import keras
import numpy as np

from nnslicer_tf.datasets import Dataset


def accuracy(model: keras.Model, data: Dataset, batch_size: int = 512) -> float:
    """Return the share of samples whose largest output belongs to their label."""
    predicted = [
        np.argmax(model.predict_on_batch(data.x[i : i + batch_size]), axis=1)
        for i in range(0, len(data), batch_size)
    ]
    return float(np.mean(np.concatenate(predicted) == data.y))
