"""Exact integrated gradients compared with sampled sums: the paper's tables 1 and 2.

Where the paper is silent, `attributions_by_program` follows its program (95616ARG/SyReNN):
attributions are for the label's logit. m̃ is the first number of samples, starting at 20, for which
the left sum is within 1 % of the output's change. Samples stay within 5 % for five consecutive
numbers, and the trapezoid sum counts its ends. Errors are means of relative errors of single
components.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets
from nnslicer_tf._environment import available_cores, track
from nnslicer_tf.exactline import Attributor
from nnslicer_tf.exactline.gradients import PathGradients
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.fingerprint import model_fingerprint
from reproduction.exactline.measures import (
    RULES,
    approximate,
    relative_error,
    samples_for_completeness,
    samples_within,
)
from reproduction.exactline.networks import NETWORKS, RELU_NETWORKS, relu_networks, trained_networks
from reproduction.exactline.settings import AttributionSettings, ProgramAttributionSettings
from reproduction.plots import plot_boxes, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, paper_text
from reproduction.rows import RowStore


def attributions(s: AttributionSettings) -> ExperimentResult:
    """Compare exact integrated gradients with sampled sums (tables 1 and 2)."""
    path = s.work / f"attributions-{s.most}.csv"
    store = RowStore(path, ("network", "dataset", "weights", "image"))
    tables = []
    for name, (dataset, model) in relu_networks(s.network or RELU_NETWORKS).items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        predicted = np.argmax(model.predict(data.x, verbose=0), axis=1)
        names = {"network": name, "dataset": dataset}
        tables.append(path_rows(model, data.x, predicted, lambda p: _row(p, s.most), names, store))
    table = pd.concat(tables, ignore_index=True)
    head = {"baseline": "black", "target": "the predicted class", "most_samples": s.most}
    title = "Integrated gradients: exact and by samples (tables 1 and 2)"
    text = paper_text("exactline/table1", "exactline/table2")
    # Means over images for each network, excluding images that need too many samples.
    rows = []
    for network, group in table.groupby("network", sort=False):
        row = {"network": network, "images": len(group), "exact": group.exact.mean()}
        row["completeness_error_max"] = group.completeness_error.max()
        row["m_tilde"] = group.m_tilde.mean()
        row["error_percent_at_m_tilde"] = 100 * group.error_at_m_tilde.mean()
        within = group.dropna(subset=list(RULES))
        row |= {rule: within[rule].mean() for rule in RULES}
        row["saving_of_trapezoid_percent"] = 100 * (1 - within.trapezoid / within.left).mean()
        row["trapezoid_worse_than_left"] = int((within.trapezoid > within.left).sum())
        row["beyond_most"] = len(group) - len(within)
        rows.append(row)
    images = ExperimentTable("attributions_images", table)
    tables = [images, ExperimentTable("attributions", pd.DataFrame(rows), title, head, text)]
    return ExperimentResult(tables, [ExperimentFigure("attributions", plot(table), dpi=120)])


def path_rows(
    model: keras.Model, x: np.ndarray, y: np.ndarray, row: Callable, names: dict, store: RowStore
) -> pd.DataFrame:
    """Return a row for each image: its metrics by `row`, from the gradients on the line from black.

    Rows are kept in the store as they finish, by `names`, "weights" and "image".
    """
    attributor = Attributor(InstrumentedModel(model))
    weights = model_fingerprint(model)[:12]  # the network may be trained again
    every = [{**names, "weights": weights, "image": i} for i in range(len(x))]
    missing = [i for i, name in enumerate(every) if name not in store]

    def measured(i: int) -> dict[str, object]:
        path = attributor.path(x[i], np.zeros(x[i].shape), int(y[i]))
        return {**every[i], **row(path)}

    pool = ThreadPoolExecutor(available_cores())
    try:
        what = "-".join(names.values())
        store.extend(track(pool.map(measured, missing), what, len(missing)))
    finally:
        pool.shutdown(cancel_futures=True)  # stop processing images, also after an interrupt
    return store.to_frame(every).drop(columns="weights")


def _row(path: PathGradients, most: int) -> dict[str, object]:
    exact = path.exact()
    outputs = path.partition.outputs[[0, -1], path.target]
    row: dict[str, object] = {"exact": len(path.partition)}
    row["completeness_error"] = abs(exact.sum() - (outputs[1] - outputs[0]))
    row["m_tilde"] = samples = samples_for_completeness(path, most=most)
    if samples is not None:
        row["error_at_m_tilde"] = relative_error(approximate(path, samples), exact)
    return row | {rule: samples_within(path, rule, most=most) for rule in RULES}


def plot(table: pd.DataFrame) -> Figure:
    """Plot the errors of sampled sums, and the number of samples needed, for each network."""
    groups = dict(list(table.groupby("network", sort=False)))
    figure = Figure(figsize=(10, 1.2 + 0.45 * len(groups) * len(RULES)), layout="constrained")
    axes = figure.subplots(1, 2)
    errors = {name: 100 * group.error_at_m_tilde.dropna() for name, group in groups.items()}
    plot_boxes(axes[0], errors, "relative error at m̃ left samples, %")
    counts = {f"{name}, {rule}": g[rule].dropna() for name, g in groups.items() for rule in RULES}
    plot_boxes(axes[1], counts, "samples to stay within 5 %")
    axes[1].set_xscale("log", subs=())
    largest = table[list(RULES)].max().max()
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1_000) if tick <= 1.2 * largest]
    axes[1].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    needed = table[list(RULES)].median()
    return put_finding(
        figure,
        f"Sampled integrated gradients are off by {100 * table.error_at_m_tilde.median():.0f} % "
        f"at m̃ samples (median); {needed.idxmin()} sums are within 5 % after {needed.min():.0f} "
        f"samples, {needed.idxmax()} sums after {needed.max():.0f}",
    )


_LEAST, _WITHIN = 20, 0.01  # samples, and share of the output's change
_CONSECUTIVE = 5


def attributions_by_program(s: ProgramAttributionSettings) -> ExperimentResult:
    """Compare exact integrated gradients with sampled sums by the program's procedure."""
    path = s.work / f"program-attributions-{s.most}.csv"
    store = RowStore(path, ("network", "dataset", "training", "weights", "image"))
    tables = []
    for (network, dataset, method), model in trained_networks(s.network or NETWORKS).items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        names = {"network": network, "dataset": dataset, "training": method}
        tables.append(path_rows(model, data.x, data.y, lambda p: _samples(p, s.most), names, store))
    table = pd.concat(tables, ignore_index=True)
    # Each network's means over images for which the samples tried were enough.
    rows, keys = [], ["network", "dataset", "training"]
    for key, group in table.groupby(keys, sort=False):
        kept = group.dropna()
        row = dict(zip(keys, key, strict=True)) | {"images": len(group), "counted": len(kept)}
        row |= {name: kept[name].mean() for name in ("exact", *RULES, "m_tilde")}
        errors = 100 * kept["error_at_m_tilde"]
        row |= {"error_percent_at_m_tilde": errors.mean(), "median_error_percent": errors.median()}
        rows.append(row)
    head = {"baseline": "black", "target": "the label", "most_samples": s.most}
    title = "By the program's procedure: integrated gradients, exact and by samples"
    text = paper_text("exactline/table1", "exactline/table2")
    images = ExperimentTable("program_attributions_images", table)
    means = ExperimentTable("program_attributions", pd.DataFrame(rows), title, head, text)
    return ExperimentResult([images, means])


def _samples(path: PathGradients, most: int) -> dict[str, float | None]:
    """Return the number of samples that an image needs, and the error at m̃ samples."""
    row: dict[str, float | None] = {"exact": len(path.partition), "error_at_m_tilde": None}
    row["m_tilde"] = count = samples_for_completeness(path, _WITHIN, most, _LEAST)
    if count is not None:
        sums, exact = approximate(path, count), path.exact()
        row["error_at_m_tilde"] = relative_error(sums, exact, by="components")
    for rule in RULES:
        row[rule] = samples_within(path, rule, 0.05, _CONSECUTIVE, most, by="components")
    if row["trapezoid"] is not None:
        row["trapezoid"] += 1
    return row
