"""Measures of a network's linearity between images and their neighbours (section 5 of the paper).

The Linear Explanation of adversarial examples (Goodfellow et al., 2015) assumes that an image
and its FGSM neighbour lie on one affine piece. Here the pieces between them, and those between
the image and a random neighbour, are counted, and their gradients are compared with that of the
first piece.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from nnslicer_tf._progress import track
from nnslicer_tf._random import as_generator
from nnslicer_tf.exactline.gradients import Attributor
from nnslicer_tf.exactline.partition import LinearPartition
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike


def density(partition: LinearPartition) -> float:
    """Return the number of parts per unit of Euclidean length, NaN if the line has no length."""
    return len(partition) / partition.length if partition.length else float("nan")


def fgsm(
    im: ModelLike, x: DataLike, labels: ArrayLike, epsilon: float, batch_size: int = 256
) -> np.ndarray:
    """Return x + epsilon · sign(gradient of the cross-entropy), clipped to [0, 1].

    Args:
        im: A classifier of images with values in [0, 1], whose logits are used; a Keras model
            also works.
        x: `(images, *input shape)`.
        labels: `(images,)` integers.
        epsilon: Size of the change of every pixel.
        batch_size: Images in one pass.
    """
    im = instrumented(im)
    x, labels = im.labelled(x, labels)
    out = np.array(x, np.float64)
    for label in np.unique(labels):
        chosen = np.flatnonzero(labels == label)
        gradient = im.gradients(x[chosen], _loss(im, int(label)), batch_size=batch_size)
        out[chosen] += epsilon * np.sign(gradient[im.input_operation])
    return np.clip(out, 0, 1)


def random_neighbours(x: np.ndarray, epsilon: float, rng: int | np.random.Generator) -> np.ndarray:
    """Return x with every pixel changed by ± epsilon at random, clipped to [0, 1]."""
    signs = as_generator(rng).choice([-1.0, 1.0], size=np.shape(x))
    return np.clip(np.asarray(x, np.float64) + epsilon * signs, 0, 1)


def gradient_error(
    attributor: Attributor, partition: LinearPartition, target: int, by: str = "norm"
) -> float:
    """Return the mean relative change of a logit's gradient over the line, 0 for an affine line.

    Parts are weighted by their length; g is a part's gradient, g₀ that at the start of the line.
    By norm it is NaN if g₀ is zero, that is, if the line starts where the logit is constant.

    Args:
        attributor: The model's attributor.
        partition: The line.
        target: Index of the logit.
        by: The measure; see `PathGradients.relative_change`.

    Raises:
        InvalidArgumentError: for another `by`.
    """
    return attributor.along(partition, target).relative_change(by)


def linearity(
    im: ModelLike,
    x: DataLike,
    labels: ArrayLike,
    epsilon: float,
    *,
    rng: int | np.random.Generator,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure the lines from images to their FGSM and random neighbours.

    Args:
        im: A piecewise-linear classifier of images with values in [0, 1]; a Keras model
            also works.
        x: `(images, *input shape)`.
        labels: `(images,)` integers.
        epsilon: Size of the change of every pixel.
        rng: Seed or generator of the random neighbours.
        progress: Show a progress bar.

    Returns:
        A table with one row per image: label, predicted classes before and after FGSM, and for
        both directions the number of parts, their density and the gradient error. The density is
        NaN where FGSM does not move an image, because the classifier is so confident that the
        gradient of its loss is zero. For the gradient error see `gradient_error`.

    Raises:
        InvalidArgumentError: if there is not one label for every image.
        UnsupportedLayerError, InputShapeError, NonFiniteActivationError: as `exact_line`.
    """
    im = instrumented(im)
    x, labels = im.labelled(x, labels)
    attributor = Attributor(im)
    ends = {"fgsm": fgsm(im, x, labels, epsilon), "random": random_neighbours(x, epsilon, rng)}
    predicted = im.logits(x).argmax(axis=1)
    adversarial = im.logits(ends["fgsm"]).argmax(axis=1)
    rows = []
    for i in track(range(len(x)), "Lines", len(x), progress):
        row = {"label": labels[i], "predicted": predicted[i], "fgsm_predicted": adversarial[i]}
        for direction, end in ends.items():
            path = attributor.path(end[i], x[i], int(labels[i]))
            row[f"{direction}_parts"] = len(path.partition)
            row[f"{direction}_density"] = density(path.partition)
            row[f"{direction}_gradient_error"] = path.relative_change()
        rows.append(row)
    return pd.DataFrame(rows)


def _loss(im: InstrumentedModel, label: int) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function that computes a label's cross-entropy from the operations' values."""

    def loss(values: Mapping[str, Any]) -> Any:
        return -keras.ops.log_softmax(values[im.logit_operation])[:, label]

    return loss
