"""Selections of samples, and classifiers by name or file."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf.datasets import Dataset
from nnslicer_tf.instrument.loading import load_model
from reproduction.zoo.models import zoo


def choose(data: Dataset, rows: np.ndarray | slice) -> Dataset:
    """Return some samples: a mask, indices or a slice."""
    return replace(data, x=data.x[rows], y=data.y[rows])


def first(data: Dataset, count: int | None) -> Dataset:
    """Return the first samples, or all."""
    return choose(data, slice(count))


def of_classes(data: Dataset, classes: Iterable[int], invert: bool = False) -> Dataset:
    """Return the samples of some classes, or with `invert` those of all others."""
    return choose(data, np.isin(data.y, list(classes), invert=invert))


def load_classifier(model: str, dataset: str) -> keras.Model:
    """Return the zoo's model of a name, trained on a data set, or the model in a file."""
    return load_model(model) if Path(model).suffix else zoo.load(model, dataset)
