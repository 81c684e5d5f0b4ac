"""Curves with their spread over repeats; histograms of queries."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import new_axes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Name → function from the repeats' values to the lower and the upper edge of the band.
SPREADS: Mapping[str, Callable[[np.ndarray], tuple[float, float]]] = {
    "deviation": lambda v: (v.mean() - v.std(), v.mean() + v.std()),
    "quartiles": lambda v: (np.percentile(v, 25), np.percentile(v, 75)),
    "range": lambda v: (v.min(), v.max()),
}
"""Bands around a mean: one standard deviation, the quartiles, or the full range."""


def plot_curves(
    table: "pd.DataFrame",
    x: str,
    y: str,
    by: str,
    spread: str = "deviation",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw means over repeats as curves, one for each group, with a band for the spread.

    Args:
        table: A row for each repeat, group and value of x.
        x: Column of the horizontal axis.
        y: Column of the values.
        by: Column that names the groups.
        spread: The kind of band, a name in `SPREADS`. Without repeats, no band is drawn.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: for an empty table, a missing column, or an unknown spread.
    """
    missing = [name for name in (x, y, by) if name not in table.columns]
    if missing or table.empty:
        raise InvalidArgumentError(
            f"The table needs rows and the columns {x!r}, {y!r} and {by!r}. "
            f"Received: {len(table)} rows of {list(table.columns)}"
        )
    check_name("spread", spread, SPREADS)
    ax = new_axes(ax, (6, 4))
    for name, rows in table.groupby(by, sort=False):
        places, values = zip(*((p, g[y].to_numpy()) for p, g in rows.groupby(x)), strict=True)
        (line,) = ax.plot(places, [v.mean() for v in values], marker="o", label=name)
        low, high = zip(*map(SPREADS[spread], values), strict=True)
        if low != high:
            ax.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set(xlabel=x, ylabel=y)
    ax.legend(fontsize=8)
    ax.grid(alpha=0.3)
    return ax


def plot_queries(queries: np.ndarray, title: str = "", ax: "Axes | None" = None) -> "Axes":
    """Draw a histogram of queries on a logarithmic scale (DFlare, Figure 4).

    Args:
        queries: Queries of the successful searches, `(searches,)`.
        title: The title's first line; mean and median follow.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there are none, or a number is below 1.
    """
    queries = np.asarray(queries)
    if queries.ndim != 1 or not len(queries) or queries.min() < 1:
        raise InvalidArgumentError(
            f"queries must be a vector of positive numbers. Received: {queries!r}"
        )
    ax = new_axes(ax, (4, 2.6))
    ax.hist(queries, bins=np.geomspace(1, max(queries.max(), 2), 40).tolist())
    ax.set(xscale="log", xlabel="queries", ylabel="searches")
    figures = f"mean {queries.mean():.1f}, median {np.median(queries):.0f}"
    ax.set_title(f"{title}\n{figures}" if title else figures, fontsize=9)
    return ax
