"""Loading of classifiers by name or file."""

from pathlib import Path

import keras

from nnslicer_tf import zoo
from nnslicer_tf.instrument.loading import load_model


def load_classifier(model: str, dataset: str) -> keras.Model:
    """Return the zoo's model of a name, trained on a data set, or the model in a file."""
    return load_model(model) if Path(model).suffix else zoo.load(model, dataset)
