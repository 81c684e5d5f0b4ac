"""Inputs on which models disagree, from `generate`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._checks import counted
from nnslicer_tf._files import Saved
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.deepxplore.coverage import Coverage


@dataclass(eq=False, repr=False)
class Differences(Saved, ShownAsTable):
    """Difference-inducing inputs, one per row, in the order of discovery.

    Attributes:
        inputs: `(found, *input shape)` float32.
        seed_index: `(found,)` int64, each input's seed.
        predictions: `(found, models)` int64, each model's class.
        labels: `(found,)` int64, the models' common class for the seed, -1 if they disagreed.
        iterations: `(found,)` int64, steps from the seed; 0 if the models disagree on it.
        tried: Number of seeds that were tried.
        seconds: Time of the search.
        coverage: Each model's coverage by the inputs found; not saved, so empty after `load`.
    """

    _format = "nnslicer_tf differences 1"
    _arrays = {  # noqa: RUF012 - not changed
        "inputs": (np.number, "found ..."),
        "seed_index": (np.integer, "found"),
        "predictions": (np.integer, "found models"),
        "labels": (np.integer, "found"),
        "iterations": (np.integer, "found"),
    }
    _numbers = {"tried": (int,), "seconds": (int, float)}  # noqa: RUF012 - not changed

    inputs: np.ndarray
    seed_index: np.ndarray
    predictions: np.ndarray
    labels: np.ndarray
    iterations: np.ndarray
    tried: int
    seconds: float
    coverage: Sequence[Coverage] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def generated(self) -> np.ndarray:
        """Whether each was made by changing a seed, `(found,) bool`; the others are seeds."""
        return self.iterations > 0

    @property
    def success_rate(self) -> float:
        """Inputs generated per seed on which the models agreed; NaN without such seeds."""
        agreed = self.tried - int((~self.generated).sum())
        return float(self.generated.sum() / agreed) if agreed else float("nan")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per input: seed, its label, iterations, every model's prediction."""
        columns = {"seed": self.seed_index, "label": self.labels, "iterations": self.iterations}
        columns |= {f"model {i}": column for i, column in enumerate(self.predictions.T)}
        return pd.DataFrame(columns)

    def plot(self, seeds: np.ndarray, most: int = 8) -> Figure:
        """Draw seeds, and under each the input made from it, titled with the predictions.

        Args:
            seeds: The seeds, `(seeds, height, width, channels)` within 0 … 1.
            most: How many of the generated inputs to draw, starting with the first.
        """
        from matplotlib import pyplot

        chosen = np.flatnonzero(self.generated)[:most]
        figure = pyplot.figure(figsize=(max(3, 0.8 * len(chosen)), 2.5), layout="constrained")
        axes = figure.subplots(2, max(1, len(chosen)), squeeze=False)
        for column, row in zip(axes.T, chosen, strict=False):
            pair = seeds[self.seed_index[row]], self.inputs[row]
            for axis, image in zip(column, pair, strict=True):
                axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            column[1].set_title(", ".join(map(str, self.predictions[row])), fontsize=9)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        axes[0, 0].set_ylabel("seed", fontsize=9)
        axes[1, 0].set_ylabel("found", fontsize=9)
        figure.supxlabel("above each found input: the models' answers, in order", fontsize=9)
        return figure

    def __repr__(self) -> str:
        return (
            f"Differences({counted(len(self), 'input')} of {self.predictions.shape[1]} models, "
            f"{int(self.generated.sum())} generated from {counted(self.tried, 'seed')} in "
            f"{self.seconds:.1f} s)"
        )
