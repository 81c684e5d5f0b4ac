"""`LinearPartition`: the exact outputs of a network on a segment, and their margin."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from nnslicer_tf._checks import as_array, counted, is_int
from nnslicer_tf._files import Archive, Saved
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline.bends import Bends
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.report.figures import new_axes


@dataclass(frozen=True, eq=False)
class Margin:
    """The smallest difference between a class's logit and the largest other one."""

    label: int
    other: int  # the class that comes nearest to it, or exceeds it most
    value: float  # the difference; negative if `other` wins
    place: np.ndarray | float  # where it occurs: plane coordinates (2,), or the ratio on a line
    point: np.ndarray  # the same in the input space

    def __repr__(self) -> str:
        return f"Margin({self.value:.6g}, of class {self.label} against {self.other})"


def least_margin(values: np.ndarray, label: int | None, first: int) -> tuple[int, int, float, int]:
    """Return a class, by default of row `first`, the nearest other one, the margin, and its row."""
    if values.ndim != 2 or values.shape[1] < 2:
        raise InvalidArgumentError(
            "A margin needs a model whose output is a vector of two values or more. Received "
            f"outputs of shape {values.shape[1:]}"
        )
    label = int(values[first].argmax()) if label is None else label
    if not is_int(label) or not 0 <= label < values.shape[1]:
        raise InvalidArgumentError(f"label must be 0 … {values.shape[1] - 1}. Received: {label!r}")
    gaps = values[:, [label]] - values
    gaps[:, label] = np.inf
    row, other = np.unravel_index(np.argmin(gaps), gaps.shape)
    return int(label), int(other), float(gaps[row, other]), int(row)


def scores_of(outputs: np.ndarray, lowest: bool, most: int | None = None) -> np.ndarray:
    """Return scores `(n, classes)`, of which the largest wins; one output counts against zero."""
    if outputs.ndim != 2 or (most is not None and outputs.shape[1] > most):
        limit = f" of up to {most} values" if most else ""
        raise InvalidArgumentError(
            f"classify needs a model whose output is a vector{limit}. Received: {outputs.shape[1:]}"
        )
    scores = -outputs if lowest else outputs
    return np.hstack([np.zeros_like(scores), scores]) if scores.shape[1] == 1 else scores


def check_ratios(ratios: np.ndarray) -> np.ndarray:
    """Return ratios as float64 `(n,)`; raise InvalidArgumentError if one is not in [0, 1]."""
    ratios = np.ravel(as_array(ratios))
    if ratios.dtype.kind not in "biuf" or not ((ratios >= 0) & (ratios <= 1)).all():
        raise InvalidArgumentError(f"Ratios must be in [0, 1]. Received: {ratios}")
    return ratios.astype(np.float64)


@dataclass(frozen=True)
class Regions(ShownAsTable):
    """The regions of a segment, each with one class."""

    ratios: np.ndarray  # (regions + 1,) float64, from 0 to 1
    labels: np.ndarray  # (regions,) int64; neighbours differ

    def __len__(self) -> int:
        return len(self.labels)

    def label_at(self, ratio: float | np.ndarray) -> np.ndarray:
        """Return the class at ratios in [0, 1]; at a boundary, that of the region after it."""
        place = np.searchsorted(self.ratios, ratio, side="right") - 1
        return self.labels[np.clip(place, 0, len(self.labels) - 1)]

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per region: the ratios of its ends, and its class."""
        return pd.DataFrame({"from": self.ratios[:-1], "to": self.ratios[1:], "class": self.labels})

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the classes as a strip, divided at the exact boundaries."""
        ax = new_axes(ax, (7, 1.3))
        for (start, stop), label in zip(pairwise(self.ratios), self.labels, strict=True):
            ax.axvspan(start, stop, color=f"C{label % 10}")
            ax.text((start + stop) / 2, 0.5, f"{label}", ha="center", va="center", fontsize=8)
        ax.set(xlim=(0, 1), ylim=(0, 1), yticks=[])
        ax.set_xlabel(f"position on the line ({counted(len(self), 'region')})")
        return ax

    def __repr__(self) -> str:
        classes = sorted(set(self.labels.tolist()))
        return f"Regions({counted(len(self), 'region')} of the classes {classes})"


@dataclass(frozen=True)
class LinearPartition(Saved, ShownAsTable):
    """A segment cut so that the network is affine on every part.

    Attributes:
        start: The start, of the model's input shape, float64 (q in the paper).
        end: The end (r in the paper).
        ratios: `(parts + 1,)` float64, ascending from 0 to 1, further apart than 1e-12.
        outputs: Logits at these ratios, `(parts + 1, *output shape)` float64.
    """

    _format = "nnslicer_tf line 1"
    _arrays = {  # noqa: RUF012 - not changed
        "start": (np.float64, "..."),
        "end": (np.float64, "..."),
        "ratios": (np.float64, "ends"),
        "outputs": (np.float64, "ends ..."),
    }
    _names = {"start": "q", "end": "r"}  # noqa: RUF012 - not changed

    start: np.ndarray
    end: np.ndarray
    ratios: np.ndarray
    outputs: np.ndarray

    def _check(self, file: Archive) -> None:
        file.check(self.start.shape == self.end.shape, "its ends have different shapes")
        rises = (np.diff(self.ratios) > 0).all() and self.ratios[[0, -1]].tolist() == [0, 1]
        file.check(rises, "its ratios do not rise from 0 to 1")

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.ratios) - 1

    def __repr__(self) -> str:
        return f"LinearPartition({len(self)} parts, input shape {self.start.shape})"

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per end of a part: its ratio, and the outputs there."""
        outputs = self.outputs.reshape(len(self.ratios), -1)
        columns = {f"output {i}": column for i, column in enumerate(outputs.T)}
        return pd.DataFrame({"ratio": self.ratios, **columns})

    def plot(self, ax: Axes | None = None, outputs: Sequence[int] | None = None) -> Axes:
        """Plot the outputs, a vector, along the segment, with a tick at every end of a part.

        `outputs` are the indices of those to draw, all by default. Raises InvalidArgumentError if
        they are not a vector, or an index does not exist.
        """
        if self.outputs.ndim != 2:
            raise InvalidArgumentError(
                f"Only a vector of outputs can be drawn. Their shape: {self.outputs.shape[1:]}"
            )
        count = self.outputs.shape[1]
        chosen = list(range(count)) if outputs is None else list(outputs)
        if not chosen or not all(0 <= index < count for index in chosen):
            raise InvalidArgumentError(f"outputs are indices 0 … {count - 1}. Received: {outputs}")
        ax = new_axes(ax, (7, 3.8))
        for index in chosen:
            values, colour = self.outputs[:, index], f"C{index % 10}"
            ax.plot(self.ratios, values, color=colour, linewidth=1.2, label=f"{index}")
        # Drawn as lines, because minor ticks close to a major one would vanish.
        along = ax.get_xaxis_transform()
        ax.vlines(self.ratios, 0, 0.04, color="#08519c", linewidth=0.6, transform=along)
        ax.set(xlim=(0, 1), ylabel="output")
        ax.set_xlabel(f"position on the line ({len(self)} affine parts)")
        ax.legend(title="output", fontsize=7, title_fontsize=7, ncols=2)
        return ax

    @property
    def length(self) -> float:
        """Euclidean length of the segment."""
        return float(np.linalg.norm(self.end - self.start))

    @property
    def midpoints(self) -> np.ndarray:
        """Ratios of the midpoints of the parts, `(parts,)`."""
        return (self.ratios[1:] + self.ratios[:-1]) / 2

    def at(self, ratios: np.ndarray) -> np.ndarray:
        """Return the points of the segment at `ratios` `(n,)`: `(n, *input shape)`."""
        weight = np.asarray(ratios, np.float64).reshape(-1, *(1,) * self.start.ndim)
        return (1 - weight) * self.start + weight * self.end

    def evaluate(self, ratios: np.ndarray) -> np.ndarray:
        """Return the network's exact logits at `ratios` `(n,)` in [0, 1]: `(n, *output shape)`."""
        ratios = check_ratios(ratios)
        part = np.clip(np.searchsorted(self.ratios, ratios, side="right") - 1, 0, len(self) - 1)
        first, last = self.ratios[part], self.ratios[part + 1]
        weight = ((ratios - first) / (last - first)).reshape(-1, *(1,) * (self.outputs.ndim - 1))
        return (1 - weight) * self.outputs[part] + weight * self.outputs[part + 1]

    def classify(self, lowest: bool = False) -> Regions:
        """Divide the segment into regions of one class each, at the exact boundaries.

        With a single output the classes are 0 (negative) and 1 (positive). With `lowest`, the
        lowest output wins, instead of the highest.

        Raises InvalidArgumentError if the output is not a vector.
        """
        scores = scores_of(self.outputs, lowest)
        curve = Curve(1, np.array([0, len(scores)]), self.ratios, scores)
        curve = curve.insert(*Bends(scores.shape[1], np.array([-np.inf])).crossings(curve))
        scores, ratios = curve.values, curve.ratio
        labels = np.argmax(scores[1:] + scores[:-1], axis=1)  # at the middle of each piece
        begins = np.flatnonzero(np.diff(labels, prepend=-1))
        return Regions(np.append(ratios[begins], 1.0), labels[begins])

    def margin(self, label: int | None = None) -> Margin:
        """Return the exact smallest difference between a class's logit and the largest other one.

        It is negative if another class wins somewhere. The class is by default that of the start.

        Raises InvalidArgumentError if there is no such class, or the output is not a vector.
        """
        label, other, value, row = least_margin(self.outputs, label, 0)
        return Margin(label, other, value, float(self.ratios[row]), self.at(self.ratios[row])[0])
