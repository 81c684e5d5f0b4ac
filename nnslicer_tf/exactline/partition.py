"""`LinearPartition`: the exact outputs of a network on a segment."""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._archive import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError
from nnslicer_tf.exactline._kernels import lines as _kernels
from nnslicer_tf.exactline._points import check_ratios
from nnslicer_tf.exactline.curve import TOLERANCE, Curve
from nnslicer_tf.exactline.margin import Margin, check_label, least_margin

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_FORMAT = "nnslicer_tf line 1"
_ARRAYS = ("q", "r", "ratios", "outputs")


@dataclass(frozen=True)
class Regions(ShownAsTable):
    """The regions of a segment, each with one class.

    Attributes:
        ratios: `(regions + 1,)` float64, 0 first, 1 last.
        labels: `(regions,)` int64; neighbours differ.
    """

    ratios: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def label_at(self, ratio: float | np.ndarray) -> np.ndarray:
        """Return the class at ratios in [0, 1]; at a boundary, that of the region after it."""
        place = np.searchsorted(self.ratios, ratio, side="right") - 1
        return self.labels[np.clip(place, 0, len(self.labels) - 1)]

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per region: the ratios of its ends, and its class."""
        import pandas as pd

        return pd.DataFrame({"from": self.ratios[:-1], "to": self.ratios[1:], "class": self.labels})

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the classes as a strip, divided at the exact boundaries."""
        from nnslicer_tf.report import plot_regions

        return plot_regions(self, ax)

    def __repr__(self) -> str:
        return f"Regions({len(self)} regions of the classes {sorted(set(self.labels.tolist()))})"


@dataclass(frozen=True)
class LinearPartition(ShownAsTable):
    """A segment cut so that the network is affine on every part.

    Attributes:
        q: The start, of the model's input shape, float64.
        r: The end.
        ratios: `(parts + 1,)` float64, ascending from 0 to 1, further apart than 1e-12.
        outputs: Logits at these ratios, `(parts + 1, *output shape)` float64.
    """

    q: np.ndarray
    r: np.ndarray
    ratios: np.ndarray
    outputs: np.ndarray

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.ratios) - 1

    def __repr__(self) -> str:
        return f"LinearPartition({len(self)} parts, input shape {self.q.shape})"

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per end of a part: its ratio, and the outputs there."""
        import pandas as pd

        outputs = self.outputs.reshape(len(self.ratios), -1)
        columns = {f"output {i}": column for i, column in enumerate(outputs.T)}
        return pd.DataFrame({"ratio": self.ratios, **columns})

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the outputs along the segment, with a tick at every end of a part.

        Raises:
            InvalidArgumentError: if the output is not a vector.
        """
        from nnslicer_tf.report import plot_line

        return plot_line(self, ax=ax)

    @cached_property
    def points(self) -> np.ndarray:
        """The ends of the parts in the input space, `(parts + 1, *input shape)` float64."""
        return self.at(self.ratios)

    @property
    def length(self) -> float:
        """Euclidean length of the segment."""
        return float(np.linalg.norm(self.r - self.q))

    @property
    def midpoints(self) -> np.ndarray:
        """Ratios of the midpoints of the parts, `(parts,)`."""
        return (self.ratios[1:] + self.ratios[:-1]) / 2

    def at(self, ratios: np.ndarray) -> np.ndarray:
        """Return the points of the segment at `ratios` `(n,)`: `(n, *input shape)`."""
        weight = np.asarray(ratios, np.float64).reshape(-1, *(1,) * self.q.ndim)
        return (1 - weight) * self.q + weight * self.r

    def evaluate(self, ratios: np.ndarray) -> np.ndarray:
        """Return the network's exact logits at `ratios` `(n,)`: `(n, *output shape)`.

        Raises:
            InvalidArgumentError: if a ratio is not in [0, 1].
        """
        ratios = check_ratios(ratios)
        part = np.clip(np.searchsorted(self.ratios, ratios, side="right") - 1, 0, len(self) - 1)
        start, stop = self.ratios[part], self.ratios[part + 1]
        weight = ((ratios - start) / (stop - start)).reshape(-1, *(1,) * (self.outputs.ndim - 1))
        return (1 - weight) * self.outputs[part] + weight * self.outputs[part + 1]

    def classify(self, lowest: bool = False) -> Regions:
        """Divide the segment into regions of one class each, at the exact boundaries.

        With a single output the classes are 0 (negative) and 1 (positive).

        Args:
            lowest: Use the class of the lowest output instead of the highest.

        Raises:
            InvalidArgumentError: if the output is not a vector.
        """
        if self.outputs.ndim != 2:
            raise InvalidArgumentError(
                "classify needs a model whose output is a vector. Received outputs of shape "
                f"{self.outputs.shape[1:]}"
            )
        scores = -self.outputs if lowest else self.outputs
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        curve = Curve(1, np.array([0, len(scores)]), self.ratios, scores)
        crossings = _kernels.window_crossings(
            scores, curve.start, curve.ratio, 1, -np.inf, TOLERANCE
        )
        curve = curve.insert(*crossings)
        scores, ratios = curve.values, curve.ratio
        labels = np.argmax(scores[1:] + scores[:-1], axis=1)  # at the middle of each piece
        begins = np.flatnonzero(np.diff(labels, prepend=-1))
        return Regions(np.append(ratios[begins], 1.0), labels[begins])

    def margin(self, label: int | None = None) -> Margin:
        """Return the exact smallest difference between a class's logit and the largest other one.

        It is negative if another class wins somewhere. On a part the differences are affine, so
        that the smallest is at an end of one.

        Args:
            label: The class; by default that of the start.

        Raises:
            InvalidArgumentError: if there is no such class, or the output is not a vector of two
                values or more.
        """
        label = check_label(self.outputs, label, 0)
        value, place, other = least_margin(self.outputs, label)
        return Margin(label, other, value, float(self.ratios[place]), self.points[place])

    def save(self, path: str | os.PathLike) -> None:
        """Write an `.npz` file, completely or not at all.

        Raises:
            InvalidArgumentError: if the file cannot be written.
        """
        write_archive(path, _FORMAT, {}, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "LinearPartition":
        """Read a partition that `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptFileError: if the file is damaged, or not a partition.
        """
        what = "saved LinearPartition"
        _, arrays = read_archive(path, _FORMAT, what, bare=True)
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise CorruptFileError(f"'{path}' is not a {what}: it has no {missing[0]!r}.")
        return cls(**{name: arrays[name] for name in _ARRAYS})
