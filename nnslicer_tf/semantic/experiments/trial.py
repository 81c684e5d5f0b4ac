"""One repeat of an experiment: a model with its data, and parts of data."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import keras
import numpy as np

from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError

__all__ = ["Trial", "first", "of_classes", "split_classes"]


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model and its data.

    Attributes:
        model: A classifier that ends in logits.
        train: What it was trained on; its first samples give scores and similarities.
        held_out: Samples that choose thresholds and say when to stop.
        test: Samples that are only reported on.
        seed: Of all that is random.
        samples: Number of training samples for scores and similarities.
    """

    model: keras.Model
    train: Dataset
    held_out: Dataset
    test: Dataset
    seed: int = 0
    samples: int = 5_000


def first(data: Dataset, count: int) -> Dataset:
    """Return the first samples."""
    return replace(data, x=data.x[:count], y=data.y[:count])


def of_classes(data: Dataset, classes: Iterable[int]) -> Dataset:
    """Return the samples of some classes."""
    chosen = np.isin(data.y, list(classes))
    return replace(data, x=data.x[chosen], y=data.y[chosen])


def split_classes(classes: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, in order: as many each as can be, the rest to the last.

    Raises:
        InvalidArgumentError: if there are fewer than two tasks, or not a class for each.
    """
    if not 2 <= tasks <= classes:
        raise InvalidArgumentError(f"{classes} classes cannot be split into {tasks} tasks.")
    size = classes // tasks
    starts = [*range(0, size * tasks, size), classes]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(starts))
