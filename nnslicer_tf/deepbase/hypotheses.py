"""Hypotheses: concepts that a unit may have learned, as behaviours over the records.

A hypothesis is a function from a batch of records `(batch, …)`, as the models get them, to
behaviours `(batch,)` or, one for every position, `(batch, height, width)`; or it is an
array of behaviours for the whole data set. Those here are for images with RGB or grey
values. All are plain functions of arrays, without Keras.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import as_array, check_labels
from nnslicer_tf.errors import InvalidArgumentError

Behaviour = Callable[[np.ndarray], np.ndarray]


def brightness(x: np.ndarray) -> np.ndarray:
    """Return the mean over the channels of every pixel, `(batch, height, width)`."""
    return x.mean(axis=-1)


def hue(degrees: float) -> Behaviour:
    """Return the hypothesis "this pixel's colour is of this hue": 0 red, 120 green, 240 blue.

    Its behaviour is the pixel's chroma times the cosine of the angle between the two hues:
    positive for the hue, zero for grey, negative for the opposite colour.

    Args:
        degrees: The hue's angle.
    """
    cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))

    def behaviour(x: np.ndarray) -> np.ndarray:
        if x.shape[-1] != 3:
            raise InvalidArgumentError(f"Hue needs RGB images. Received: {x.shape}")
        red, green, blue = x[..., 0], x[..., 1], x[..., 2]
        return cosine * (red - (green + blue) / 2) + sine * np.sqrt(0.75) * (green - blue)

    return behaviour


def edge_direction(degrees: float) -> Behaviour:
    """Return the hypothesis "an edge passes here, and brightness changes in this direction".

    Its behaviour is the magnitude of the brightness gradient (Sobel) in the direction: 0 is a
    change from left to right (a vertical edge), 90 from top to bottom.

    Args:
        degrees: The direction, 0 … 180; opposite directions are the same.
    """
    cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))

    def behaviour(x: np.ndarray) -> np.ndarray:
        grey = np.pad(brightness(x), ((0, 0), (1, 1), (1, 1)), mode="edge")
        down = grey[:, :-2] + 2 * grey[:, 1:-1] + grey[:, 2:]  # smoothed over rows
        across = grey[:, :, :-2] + 2 * grey[:, :, 1:-1] + grey[:, :, 2:]
        right = down[:, :, 2:] - down[:, :, :-2]
        below = across[:, 2:] - across[:, :-2]
        return np.abs(cosine * right + sine * below)

    return behaviour


def per_record(behaviour: Behaviour) -> Behaviour:
    """Return a hypothesis averaged over the positions of a record, `(batch,)`."""

    def average(x: np.ndarray) -> np.ndarray:
        values = np.asarray(behaviour(x))
        return values.reshape(len(values), -1).mean(axis=1)

    return average


def classes(y: ArrayLike, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return one hypothesis per class: 1 for its records, 0 for the others.

    Args:
        y: Labels `(records,)`, integers from 0, or one-hot rows.
        names: The classes' names.

    Raises:
        InvalidArgumentError: unless there is one label for each record, and each has a name.
    """
    y = as_array(y)
    y = check_labels(y, len(y))
    if y.max() >= len(names):
        raise InvalidArgumentError(
            f"{len(names)} names are for labels 0 … {len(names) - 1}. Received labels "
            f"{y.min()} … {y.max()}"
        )
    return {name: (y == label).astype(np.float64) for label, name in enumerate(names)}
