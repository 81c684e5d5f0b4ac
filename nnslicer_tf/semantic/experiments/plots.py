"""Curves of accuracy over compression rate (figures 5 and 6)."""

from typing import TYPE_CHECKING

import pandas as pd

from nnslicer_tf.semantic.experiments.slices import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_curves"]


def plot_curves(curves: pd.DataFrame, title: str = "") -> "Figure":
    """Draw the mean curve of every way to slice, a panel a metric, DeepArc as a star.

    Args:
        curves: Rows of `curve_rows` and `deeparc_row`.
        title: Above all panels.
    """
    from matplotlib.figure import Figure

    metrics = list(curves.metric.dropna().unique())
    figure = Figure(figsize=(3.6 * len(metrics) + 0.6, 3.8), layout="constrained")
    axes = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    star = curves[curves.method == "DeepArc"][["compression", "accuracy"]].mean()
    for axis, metric in zip(axes, metrics, strict=True):
        for method in SETTINGS:
            rows = curves[(curves.metric == metric) & (curves.method == method)]
            means = rows.groupby("setting")[["compression", "accuracy"]].mean()
            means = means.sort_values("compression")
            axis.plot(means.compression, means.accuracy, marker="o", markersize=3, label=method)
        axis.plot(star.compression, star.accuracy, "k*", markersize=10, label="DeepArc")
        axis.set(title=metric, xlabel="compression rate", xlim=(-0.02, 1), ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(fontsize=8, loc="lower left")
    figure.suptitle(title)
    return figure
