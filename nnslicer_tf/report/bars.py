"""Bar charts: the share of every layer that a slice keeps or inputs cover."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes
from nnslicer_tf.report.protocols import CoverageLike, SliceLike, SliceSetLike

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def plot_bars(
    table: "pd.DataFrame", ax: "Axes | None" = None, spread: "pd.DataFrame | None" = None
) -> "Axes":
    """Draw vertical bars, with a group for each row and a bar for each column.

    Args:
        table: Heights; the index names the groups, the columns the series.
        ax: Where to draw.
        spread: Half the length of every bar's error bar, of the table's shape.

    Raises:
        InvalidArgumentError: if there is nothing to draw, or the spread has a different shape.
    """
    if table.empty:
        raise InvalidArgumentError("There is nothing to draw: the table is empty.")
    if spread is not None and spread.shape != table.shape:
        raise InvalidArgumentError(
            f"The spread must be of the table's shape {table.shape}. Received: {spread.shape}"
        )
    ax = new_axes(ax, (max(5, 0.6 * len(table)), 3.6))
    width = 0.8 / table.shape[1]
    for i, name in enumerate(table.columns):
        places = np.arange(len(table)) + i * width
        errors = None if spread is None else spread.iloc[:, i]
        ax.bar(places, table.iloc[:, i], width, label=name, yerr=errors)
    middle = (table.shape[1] - 1) * width / 2
    ax.set_xticks(np.arange(len(table)) + middle, table.index, rotation=40, ha="right")
    if table.shape[1] > 1:
        ax.legend(fontsize=8)
    return ax


def plot_kept_synapses(
    slices: SliceLike | SliceSetLike | Mapping[str, SliceLike] | Mapping[str, SliceSetLike],
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the share of every kernel's synapses that a slice keeps.

    For a set of slices, the mean over the samples is drawn, with the standard deviation.

    Args:
        slices: A slice, a set of slices, or several by name, all of the same model.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there are none, or they belong to different models.
    """
    import pandas as pd

    named = slices if isinstance(slices, Mapping) else {"kept": slices}
    shares = {name: _shares(one) for name, one in named.items()}
    if len({tuple(of_kernels) for of_kernels in shares.values()}) != 1:
        raise InvalidArgumentError(
            "Give one slice or more, all of the same model: their kernels differ. "
            f"Received: {', '.join(shares) or 'none'}"
        )
    means = pd.DataFrame({n: {k: s.mean() for k, s in v.items()} for n, v in shares.items()})
    spread = pd.DataFrame({n: {k: s.std() for k, s in v.items()} for n, v in shares.items()})
    ax = plot_bars(means, ax, spread if spread.to_numpy().any() else None)
    ax.set(ylim=(0, 1), ylabel="share of synapses kept")
    return ax


def plot_coverage(coverages: Mapping[str, CoverageLike], ax: "Axes | None" = None) -> "Axes":
    """Draw the share of every operation that several sets of inputs cover.

    Args:
        coverages: Name → coverage; all of the same operations.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there are none, or their operations differ.
    """
    import pandas as pd

    shares = {name: coverage.per_operation() for name, coverage in coverages.items()}
    if len({tuple(of_operations) for of_operations in shares.values()}) != 1:
        raise InvalidArgumentError(
            "Give one coverage or more, all of the same operations. "
            f"Received: {', '.join(shares) or 'none'}"
        )
    ax = plot_bars(pd.DataFrame(shares), ax)
    ax.set(ylim=(0, 1), ylabel="share of neurons covered")
    return ax


def _shares(one: SliceLike | SliceSetLike) -> dict[str, np.ndarray]:
    """Return kernel → share of its synapses kept in each sample's slice."""
    if hasattr(one, "synapses"):
        return {name: np.array([np.mean(s != 0)]) for name, s in one.synapses.items()}
    return {name: one.kept_share(name) for name in one.kernels}
