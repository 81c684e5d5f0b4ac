"""The exact margin of a class over a line or a polygon."""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class Margin:
    """The smallest difference between a class's logit and the largest other one.

    Attributes:
        label: The class.
        other: The class that comes nearest, or exceeds it most.
        value: The difference; negative if `other` wins.
        place: Where it occurs: plane coordinates `(2,)`, or the ratio on a line.
        point: The same in the input space.
    """

    label: int
    other: int
    value: float
    place: np.ndarray | float
    point: np.ndarray

    def __repr__(self) -> str:
        return f"Margin({self.value:.6g}, of class {self.label} against {self.other})"


def check_label(values: np.ndarray, label: int | None, first: int) -> int:
    """Return `label`, checked, or by default the class of row `first` of values `(n, classes)`.

    Raises:
        InvalidArgumentError: if there is no such class, or the values are not vectors.
    """
    if values.ndim != 2 or values.shape[1] < 2:
        raise InvalidArgumentError(
            "A margin needs a model whose output is a vector of two values or more. "
            f"Received outputs of shape {values.shape[1:]}"
        )
    if label is None:
        return int(values[first].argmax())
    if not isinstance(label, (int, np.integer)) or not 0 <= label < values.shape[1]:
        raise InvalidArgumentError(
            f"label must be one of {values.shape[1]} classes. Received: {label!r}"
        )
    return int(label)


def least_margin(values: np.ndarray, label: int) -> tuple[float, int, int]:
    """Return the smallest margin of a class in `(n, classes)`: value, row and other class."""
    gaps = values[:, [label]] - values
    gaps[:, label] = np.inf
    row, other = np.unravel_index(np.argmin(gaps), gaps.shape)
    return float(gaps[row, other]), int(row), int(other)
