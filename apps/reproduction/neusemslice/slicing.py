"""Accuracy and compression of every slicing method: figure 5, tables 1 to 4, and two comparisons.

`intervals` and `layers` are not in the paper, which leaves open the interval i of Algorithm 1, by
which slices grow. A layer keeps at least i neurons for each category, so that with a large interval
small layers stay whole. Slices of two methods may remove equally many parameters and yet differ in
accuracy, because they take them from other layers: `layers` says from which, and what each layer's
part costs alone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.semantic import CriticalNeurons
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.deeparc import remove_layers
from reproduction.neusemslice.settings import OURS, SETTINGS, WAYS, MaintenanceSettings
from reproduction.neusemslice.tables import area_tests, masked_range_tables, paired_tests
from reproduction.neusemslice.trial import Repeats, SlicedModel, Trial, redundant
from reproduction.plots import METHODS, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult
from reproduction.samples import first, of_classes

_REDUNDANT = 0.99  # the similarity above which DeepArc removes a layer


def slicing(s: MaintenanceSettings) -> ExperimentResult:
    """Measure every slicing method's accuracy over compression rate, and the cost of masking."""
    repeats = Repeats(s)

    def rows(what: str, of_metric: Callable[[Trial, str], Iterable[dict]]) -> pd.DataFrame:
        metrics = s.metrics.split(",")
        return pd.concat([repeats.rows(f"{what}-{m}", of_metric, m) for m in metrics])

    stars = repeats.rows("deeparc", lambda trial: [deeparc_row(trial)])
    curve = pd.concat([stars, rows("slicing", curve_rows)])
    against = "Semantic slicing against the others, areas over the common range (table 4)"
    tables = [
        repeats.table("figure5", "Accuracy over compression rate (figure 5)", curve),
        repeats.table("table4", against, area_tests(curve)),
    ]
    if s.interval == 1:  # the cost of masking does not depend on it
        # Tables 1, 2 and 3.
        masked = masked_range_tables(rows("masking", masked_range_rows))
        title = "Accuracy after masking a tenth of the neurons by rank ({}; paper: VGG16-CIFAR10)"
        tables += [repeats.table(n, title.format(n), part) for n, part in masked.items()]
    name = f"{s.name}{s.interval_name}"
    figure = ExperimentFigure(f"figure5-{name}", plot_curves(f"figure5-{name}", curve))
    return ExperimentResult(tables, [figure])


def curve_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield compression rate and test accuracy of every method and setting (figures 5, 6).

    "into" counts the weights into masked neurons alone, "compression" those out of them as well.
    """
    sliced = SlicedModel(trial, metric)
    for way, settings in SETTINGS.items():
        for setting in settings:
            critical = sliced.slice(way, setting)
            row = {"metric": metric, "method": way, "setting": setting}
            row |= {"compression": sliced.compression(critical), "into": sliced.own_share(critical)}
            yield row | {"accuracy": accuracy(sliced.masked(critical), trial.test)}


def deeparc_row(trial: Trial) -> dict:
    """Return the result of removing the redundant layers that can be removed (figure 5's star)."""
    samples, layers = first(trial.train, 2_000).x, []
    for layer in redundant(trial, _REDUNDANT):
        with suppress(UnsupportedLayerError, InvalidArgumentError):  # some cannot be removed
            remove_layers(trial.model, [layer], samples)
            layers.append(layer)
    small = remove_layers(trial.model, layers, samples) if layers else trial.model
    compression = 1 - small.count_params() / trial.model.count_params()
    row = {"method": "DeepArc", "setting": _REDUNDANT, "compression": compression}
    return row | {"accuracy": accuracy(small, trial.test), "removed": len(layers)}


def masked_range_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield test accuracy with a tenth of every layer masked, by rank (tables 1, 2 and 3).

    Ranks and accuracies are "global", of all samples, or a category's, of its samples.
    """
    sliced = SlicedModel(trial, metric)
    slicer = sliced.slicer
    by_layer = slicer.category_scores.items()
    numbered = enumerate(slicer.categories)
    by_category = {str(c): {layer: of[i] for layer, of in by_layer} for i, c in numbered}
    for low in (0.0, 0.1, 0.2, 0.3, 0.4):
        for category, scores in {"global": slicer.scores, **by_category}.items():
            keep = {}  # all but a tenth of every layer, from the rank `low` on
            for layer, score in scores.items():
                begin, end = (round(share * len(score)) for share in (low, low + 0.1))
                keep[layer] = np.ones(len(score), bool)
                keep[layer][np.argsort(-score, kind="stable")[begin:end]] = False
            test = trial.test
            test = test if category == "global" else of_classes(test, [int(category)])
            row = {"metric": metric, "range": f"{low:.0%}→{low + 0.1:.0%}", "category": category}
            yield row | {"accuracy": accuracy(sliced.masked(keep), test)}


def plot_curves(name: str, curves: pd.DataFrame) -> Figure:
    """Draw the mean curve of every slicing method, a panel for each metric, DeepArc as a star."""
    metrics = list(curves.metric.dropna().unique())
    columns = 2 if len(metrics) == 4 else min(len(metrics), 3)
    lines = -(-len(metrics) // columns)
    size = (3.4 * max(columns, 2) + 0.6, 3.4 * lines + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axis in axes[len(metrics) :]:
        axis.remove()
    stars = curves[curves.method == "DeepArc"]
    for axis, metric in zip(axes, metrics, strict=False):
        for method in SETTINGS:
            rows = curves[(curves.metric == metric) & (curves.method == method)]
            means = rows.groupby("setting")[["compression", "accuracy"]].mean()
            means = means.sort_values("compression")
            line = {"color": METHODS[method], "label": method}
            axis.plot(means.compression, means.accuracy, marker="o", markersize=3, **line)
        if len(stars):
            line = {"color": METHODS["DeepArc"], "label": "DeepArc"}
            axis.plot(stars.compression.mean(), stars.accuracy.mean(), "*", markersize=10, **line)
        axis.set(title=metric, xlabel="compression rate", xlim=(-0.02, 1), ylim=(0, 1))
        axis.grid(alpha=0.3)
    for axis in axes[::columns]:
        axis.set_ylabel("test accuracy")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    # The methods that keep 95 % of the best accuracy at the highest compression.
    means = curves.dropna(subset=["metric"]).groupby(["metric", "method", "setting"])
    means = means[["compression", "accuracy"]].mean()
    enough = means[means["accuracy"] >= 0.95 * means["accuracy"].max()]
    most = enough["compression"].groupby("method").max().sort_values(ascending=False)
    best, second = most.index[:2]
    values = f"{best} {most[best]:.0%}, {second} {most[second]:.0%}"
    finding = f": parameters removed at 95 % of the best accuracy: {values}"
    return put_finding(figure, f"{name.partition('-')[2]}{finding}")


_INTERVALS = (1, 16, 64, 256)


def intervals(s: MaintenanceSettings) -> ExperimentResult:
    """Compare the curves of semantic slices that grow by different numbers of neurons."""
    if s.interval != 1:
        raise InvalidArgumentError(
            f"intervals compares slices that grow by {', '.join(map(str, _INTERVALS))} neurons: "
            f"leave out --interval. Received: --interval {s.interval}"
        )
    repeats = Repeats(s)
    parts = []
    for interval in _INTERVALS:
        grown = Repeats(replace(s, interval=interval))
        rows = grown.rows(f"slicing-{s.metric}", curve_rows, s.metric)
        parts.append(rows.assign(metric=f"{s.metric}, i = {interval}"))
    curve = pd.concat(parts, ignore_index=True)
    title = "Semantic slices that grow by i neurons against the others, areas over the common range"
    tables = [
        repeats.table("intervals", "Accuracy over compression rate by the interval i", curve),
        repeats.table("intervals", title, area_tests(curve), "-tests"),
    ]
    figure = ExperimentFigure(f"intervals-{s.name}", plot_curves(f"intervals-{s.name}", curve))
    return ExperimentResult(tables, [figure])


_COMPRESSIONS = (0.3, 0.5, 0.66)  # shares of the parameters that are removed; the paper names two
_KEYS = ["wanted", "method", "layer"]
_PAIRS = [(one, other) for one in OURS for other in WAYS[:2]]


def layers(s: MaintenanceSettings) -> ExperimentResult:
    """Measure what slices of one size take from each layer (not in the paper)."""
    repeats = Repeats(s)
    rows = repeats.rows(f"layers-{s.metric}", layer_rows, s.metric)
    means = rows.drop(columns="seed").groupby(_KEYS, sort=False).mean().reset_index()
    # Paired tests over seeds of whole slices of each compression rate.
    tests = []
    for wanted, part in rows[rows["layer"] == "all"].groupby("wanted"):
        tests.append(paired_tests(part, ["accuracy"], _PAIRS))
        tests[-1].insert(0, "wanted", wanted)
    tested = pd.concat(tests, ignore_index=True)
    title = "What slices of one size take from each layer, and what that costs alone"
    against, used = "Semantic slices against others of their size: accuracy", {"metric": s.metric}
    tests = repeats.table("layers", against, tested, "-tests", **used)
    return ExperimentResult([repeats.table("layers", title, means, **used), tests])


def layer_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield the share of neurons that a slice keeps, and the accuracy with only these masked.

    A row for each compression rate, method and layer, one for all convolutions, one for all dense
    layers, and one for all layers: the slice itself.
    """
    sliced = SlicedModel(trial, metric)
    for wanted in _COMPRESSIONS:
        for way in WAYS:
            critical = sliced.of_size(way, wanted)
            compression = sliced.compression(critical)
            # The layers of each part of a model that is masked alone, by the part's name.
            parts = {name: [name] for name in critical}
            of_model = {name: trial.model.get_layer(name) for name in critical}
            dense = [n for n, one in of_model.items() if isinstance(one, keras.layers.Dense)]
            convolutions = [name for name in critical if name not in dense]
            parts |= {"all convolutions": convolutions, "all dense layers": dense}
            parts = {name: part for name, part in parts.items() if part} | {"all": list(critical)}
            for name, part in parts.items():
                taken = CriticalNeurons({layer: critical[layer] for layer in part})
                row = {"wanted": wanted, "method": way, "layer": name, "compression": compression}
                kept = np.concatenate(list(taken.values())).mean()
                row |= {"neurons": taken.total, "kept": kept, "into": sliced.own_share(taken)}
                yield row | {"accuracy": accuracy(sliced.masked(taken), trial.test)}
