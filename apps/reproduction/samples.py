"""Selections of samples from data sets."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from nnslicer_tf.datasets import Dataset


def first(data: Dataset, count: int | None) -> Dataset:
    """Return the first samples, or all."""
    return replace(data, x=data.x[:count], y=data.y[:count])


def of_classes(data: Dataset, classes: Iterable[int], invert: bool = False) -> Dataset:
    """Return the samples of some classes, or with `invert` those of all others."""
    chosen = np.isin(data.y, list(classes), invert=invert)
    return replace(data, x=data.x[chosen], y=data.y[chosen])
