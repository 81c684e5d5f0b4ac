"""Means over repeats beside the paper's figures, and paired tests and areas over repeats.

The area is that under a curve of accuracy over compression rate, over the range of rates
that all compared curves have, divided by the range: the mean accuracy at equal compression.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.neusemslice.settings import OURS, PAPER_SETTINGS, WAYS
from reproduction.neusemslice.trial import Repeats
from reproduction.result import ExperimentResult, paper_frame

AccuracyCurve = tuple[np.ndarray, np.ndarray]
"""Rates and accuracies, in any order."""


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Compare two methods by their results in the same repeats, in the same order.

    "gain" is the mean of first - second, "p_value" that of the two-sided paired t-test, "cohens_d"
    the gain over the differences' standard deviation; both NaN if all differences are the same.
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        needed = "Two methods are compared by one figure each for the same repeats."
        raise InvalidArgumentError(f"{needed} Received: {a.shape} and {b.shape} figures")
    differences = a - b
    gain = float(differences.mean())
    spread = float(differences.std(ddof=1)) if len(a) > 1 else 0.0
    rounding = 1e-12 * max(np.abs(a).max(), np.abs(b).max())
    if abs(gain) <= rounding:
        gain = 0.0
    p_value = cohens_d = np.nan
    if spread > rounding:
        p_value, cohens_d = float(stats.ttest_rel(a, b).pvalue), gain / spread
    return {"gain": gain, "p_value": p_value, "cohens_d": cohens_d, "repeats": len(a)}


def area_under(curve: AccuracyCurve, low: float, high: float) -> float:
    """Return the mean height of a curve between two rates, interpolated linearly.

    For equal rates the best accuracy counts.
    """
    rates, heights = map(np.asarray, curve)
    distinct = np.unique(rates)
    best = np.array([heights[rates == rate].max() for rate in distinct])
    inside = distinct[(distinct > low) & (distinct < high)]
    grid = np.concatenate([[low], inside, [high]])
    return float(np.trapezoid(np.interp(grid, distinct, best), grid) / (high - low))


def compare(first: Sequence[AccuracyCurve], second: Sequence[AccuracyCurve]) -> dict[str, float]:
    """Compare two methods by the areas under their curves, over each repeat's common range."""
    areas = []
    for pair in zip(first, second, strict=True):
        low = max(float(np.min(rates)) for rates, _ in pair)
        high = min(float(np.max(rates)) for rates, _ in pair)
        if not low < high:
            raise InvalidArgumentError(
                f"The curves have no common range of rates: all begin by {low:.4f} only, and one "
                f"ends at {high:.4f}."
            )
        areas.append([area_under(curve, low, high) for curve in pair])
    return paired(*np.array(areas).reshape(-1, 2).T)


_MODELS = {"mlp": "MLP", "alexnet": "AlexNet", "resnet101": "ResNet101"}
_MODELS |= {"vgg16": "VGG16", "vgg19": "VGG19"}
_DATA = {"mnist": "MNIST", "fashion_mnist": "FMNIST", "cifar10": "CIFAR10", "imagenet": "ImageNet"}
_COLUMNS = {"task_a": "TaskA", "task_b": "TaskB", "mean": "Avg"}

COUNTED = {"weights in and out": "compression", "weights in": "into"}
"""What a compression rate counts of a masked neuron → the column of `curve_rows`."""


def paper_table(number: int, model: str, dataset: str) -> pd.DataFrame:
    """Return the paper's table 5, 6, 7 or 8 for a model and data set, shares in [0, 1].

    Methods are named as the experiments here name them. No rows where the paper has none.
    """
    table = paper_frame(f"neusemslice/table{number}", na_values="/").rename(columns=_COLUMNS)
    table = table[table.setting == f"{_MODELS.get(model)}-{_DATA.get(dataset)}"].drop(
        columns="setting"
    )
    if number == 8:
        table = table.pivot(index="method", columns="task", values="accuracy")
        table = table.reindex(columns=["TaskA", "TaskB", "TaskC", "Avg"]).reset_index()
    table["method"] = table.method.str.replace(" Slicing", "")
    figures = [name for name in table.columns if name not in ("method", "attack", "NI")]
    table[figures] = table[figures] / 100
    return table


def means_beside_the_paper(
    rows: pd.DataFrame, number: int, model: str, dataset: str
) -> pd.DataFrame:
    """Return the means over seeds, with the paper's figures in columns `paper …`.

    Variants ("centred", "sealed") stand beside the paper's row of the method itself.
    """
    keys = [name for name in ("attack", "method") if name in rows]
    means = rows.drop(columns="seed").groupby(keys, sort=False).mean().reset_index()
    published = paper_table(number, model, dataset)
    published = published.rename(columns=lambda name: name if name in keys else f"paper {name}")
    names = means.assign(method=means.method.str.replace(r", (centred|sealed)", "", regex=True))
    beside = names[keys].merge(published, on=keys, how="left").drop(columns=keys)
    return pd.concat([means, beside], axis=1)


def paired_tests(
    rows: pd.DataFrame, figures: Sequence[str], methods: Sequence[tuple[str, str]]
) -> pd.DataFrame:
    """Return paired t-tests and Cohen's d over seeds: a row a pair of methods and figure.

    Pairs (first, second) with methods that are not in the rows are left out.
    """
    keys = [name for name in ("attack",) if name in rows]
    tests = []
    for group, part in rows.groupby(keys) if keys else [((), rows)]:
        by_method = {name: m.sort_values("seed") for name, m in part.groupby("method")}
        for first, second in methods:
            for figure in figures if {first, second} <= set(by_method) else ():
                row = dict(zip(keys, group, strict=True))
                row |= {"method": first, "against": second, "figure": figure}
                tests.append(row | paired(by_method[first][figure], by_method[second][figure]))
    return pd.DataFrame(tests)


def means_result(
    repeats: Repeats,
    rows: pd.DataFrame,
    number: int,
    title: str,
    tests: pd.DataFrame,
    name: str = "",
    **used: Any,
) -> ExperimentResult:
    """Return means over seeds beside the paper's figures, the rows of every seed, and paired tests.

    `used` are further settings for the heads of the tables, whose names begin with `name`, or
    "table" and the paper's number.
    """
    s, name = repeats.settings, name or f"table{number}"
    means = means_beside_the_paper(rows, number, s.model, s.dataset)
    used = {"metric": s.metric, **used}
    tables = [
        repeats.table(name, f"{title} (table {number})", means, **used),
        repeats.table(name, f"{title}, every seed", rows, "-runs", **used),
        repeats.table(name, f"Paired tests (table {number})", tests, "-tests", **used),
    ]
    return ExperimentResult(tables)


def area_tests(curves: pd.DataFrame) -> pd.DataFrame:
    """Compare semantic slicing with the other methods by areas under curves (table 4).

    "paper" settings are those of section 5.2 alone; methods whose compression rates do not
    overlap there have no figures. The paper does not say whether a compression rate counts the
    weights out of masked neurons; both counts are compared where the curves have both.
    """
    known = zip(curves.method, curves.setting, strict=True)
    published = [setting in PAPER_SETTINGS.get(method, ()) for method, setting in known]
    tests = []
    for settings, used in (("paper", curves[published]), ("all", curves)):
        for metric, rows in used.groupby("metric", sort=False):
            for counted, column in COUNTED.items():
                if column not in rows:
                    continue
                # Method → compression rates and accuracies, a pair a seed.
                pairs = {
                    method: [(of[column].to_numpy(), of.accuracy.to_numpy()) for _, of in seeds]
                    for method, part in rows.groupby("method")
                    for seeds in [part.groupby("seed")]
                }
                for method, other in ((one, two) for one in OURS for two in WAYS[:2]):
                    row = {"settings": settings, "metric": metric, "counted": counted}
                    row |= {"method": method, "against": other}
                    try:
                        row |= compare(pairs[method], pairs[other])
                    except InvalidArgumentError:  # the rates do not overlap
                        row["repeats"] = 0
                    tests.append(row)
    return pd.DataFrame(tests)


def masked_range_tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return tables 1, 2 and 3, the paper's columns beside (VGG16 on CIFAR-10).

    Ranks on all samples; by category, the mean; single categories, by DeepLIFT if it is there.
    """
    whole = rows.category == "global"
    detailed = "deeplift" if (rows.metric == "deeplift").any() else rows.metric.iloc[0]
    parts = {
        "table1": (rows[whole], "metric"),
        "table2": (rows[~whole], "metric"),
        "table3": (rows[~whole & (rows.metric == detailed)], "category"),
    }
    tables = {}
    for name, (part, columns) in parts.items():
        means = part.groupby(["range", columns], sort=False)["accuracy"].mean().unstack()
        means = means.rename(columns=str).rename_axis(columns=None).reset_index()
        published = paper_frame(f"neusemslice/{name}").drop(columns="range") / 100
        tables[name] = pd.concat([means, published.add_prefix("paper ")], axis=1)
    return tables
