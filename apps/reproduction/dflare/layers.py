"""Models with one pruned convolution each: accuracy and searches, as in section 5.4.2.

The paper asks which of thirteen copies of a VGG-16 to ship. In each another convolution is pruned,
by a share that it does not give; here it is half of the weights. Their accuracy is the same; how
long a search for a deviation takes is not.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.dflare.agreement import count_deviations
from reproduction.dflare.pairs import LAYER, convolutions
from reproduction.dflare.settings import LayerSettings
from reproduction.dflare.sweep import Sweep
from reproduction.plots import plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult

_FIGURES = ["success_rate", "mean_seconds", "mean_queries", "median_queries", "verified"]


def layers(s: LayerSettings) -> ExperimentResult:
    """Prune one convolution at a time, and search for deviations (Figures 6 and 7)."""
    sweep, rows = Sweep(s), []
    found = convolutions(s.model, s.models)
    if not found:
        raise InvalidArgumentError(f"'{s.model}' has no convolution that could be pruned.")
    for number, layer in enumerate(found, start=1):
        pair = sweep.pair(f"{s.model}-{LAYER}{number}")
        said = count_deviations(pair, "test")
        about = {"model": s.model, "layer": number, "name": layer.name}
        about |= {"weights": int(np.prod(layer.kernel.shape)), "images": said["inputs"]}
        about |= {"accuracy": said["compressed"], "of the original": said["original"]}
        for method, seeds, repeats in s.runs("DFlare"):
            rows += [about | row for row in sweep.measure(pair.name, method, seeds, repeats)]
    keys = [*about, "method"]
    means = pd.DataFrame(rows).groupby(keys, sort=False)[["seeds", *_FIGURES]].mean().reset_index()
    # Spearman's correlation of a layer's place with accuracy and effort, by method.
    columns = ["accuracy", "mean_seconds", "mean_queries", "median_queries"]
    trend = []
    for method, group in means.groupby("method", sort=False):
        ranks = group[["layer", *columns]].corr("spearman").loc["layer", columns]
        row = {"method": method, "layers": len(group)}
        row |= {"least accuracy": group.accuracy.min(), "largest accuracy": group.accuracy.max()}
        trend.append(row | dict(ranks.add_prefix("rank correlation, ")))
    name = f"layers-{s.model}"
    trends = sweep.table(f"layer_trend-{s.model}", pd.DataFrame(trend))
    return ExperimentResult(
        [sweep.table(name, means), trends], [ExperimentFigure(name, plot(means))]
    )


def plot(means: pd.DataFrame) -> Figure:
    """Draw accuracy and queries by the layer that is pruned."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    accuracy, queries = figure.subplots(1, 2)
    first = means.drop_duplicates("layer")
    accuracy.bar(first.layer, 100 * first.accuracy, color="#8a8f98")
    original = 100 * first["of the original"].iloc[0]
    accuracy.axhline(original, color="#222222", linewidth=1, label="the original")
    low = min(100 * first.accuracy.min(), original)
    accuracy.set_ylim(max(0, low - 2), min(100, original + 2))
    accuracy.set(xlabel="pruned convolution", ylabel="accuracy, %")
    accuracy.legend(loc="lower right")
    plot_methods(queries, means, "layer", "mean_queries")
    queries.set(xlabel="pruned convolution", ylabel="queries until a deviation", yscale="log")
    # Plain numbers, also between the powers of ten where there is room.
    queries.yaxis.set_major_formatter(LogFormatter())
    queries.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
    queries.legend()
    for axis in (accuracy, queries):
        axis.xaxis.get_major_locator().set_params(integer=True)
    ours = means[means.method == "DFlare"].set_index("layer").mean_queries
    put_finding(
        figure,
        f"With one convolution pruned by half, accuracy is {100 * first.accuracy.min():.1f} to "
        f"{100 * first.accuracy.max():.1f} %; DFlare needs {ours.min():.0f} queries (convolution "
        f"{ours.idxmin()}) to {ours.max():.0f} (convolution {ours.idxmax()})",
    )
    return figure
