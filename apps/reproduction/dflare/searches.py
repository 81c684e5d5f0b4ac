"""Searches for deviations, and their repair: Tables 4, 6, 7, 8, and section 5.4.1."""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import wilcoxon
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier

from nnslicer_tf._checks import check_name
from nnslicer_tf.dflare import DeviationSet, ModelPair, as_classifier, repair_labels
from nnslicer_tf.dflare.repair import RepairedClassifier, fit_repair, repair_data
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.explorer import explore
from nnslicer_tf.slicing import Profile, Slicer
from reproduction import palette
from reproduction.dflare.agreement import count_deviations
from reproduction.dflare.methods import METHODS, paper_correlations, paper_repair
from reproduction.dflare.pairs import PUBLISHED, NamedPair, uint8_images
from reproduction.dflare.settings import (
    AblationSettings,
    DisseminationSettings,
    RepairSettings,
    SearchSettings,
)
from reproduction.dflare.sweep import Sweep
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentView
from reproduction.views import MOST_SAMPLES

_TIMEOUTS = (15, 10, 5, 1, 0.1)  # seconds; the first three are the paper's
_PROFILED = 2_000  # training images of the profiles of the interactive view


def search(s: SearchSettings) -> ExperimentResult:
    """Search with DFlare and, from fewer seeds, DiffChaser (Tables 4 and 10, Figure 4)."""
    sweep = Sweep(s)
    rows: list[dict] = []
    if s.explore is not None:
        compared_inside(sweep.pair((s.pairs or list(PUBLISHED))[0]))  # before long work
    runs: list[tuple[str, int | None, int | None]] = [
        ("DFlare", None, None),
        ("Algorithm 1", None, None),
    ]
    if s.diffchaser_seeds:
        runs.append(("DiffChaser", s.diffchaser_seeds, 1))
    shares: list[dict] = []
    for pair in s.pairs or PUBLISHED:
        for method, seeds, repeats in runs:
            rows += sweep.measure(pair, method, seeds, repeats)
            shares.append(sweep.found_within(pair, method, _TIMEOUTS, seeds, repeats))
    figure = ExperimentFigure(f"{s.name}_queries", plot_runs(pd.DataFrame(rows)))
    timeouts = sweep.table(f"{s.name}_timeouts", pd.DataFrame(shares))
    return ExperimentResult(
        [*sweep.tables(s.name, rows), timeouts], [figure], views=_views(s, sweep)
    )


def compared_inside(pair: NamedPair) -> dict[str, InstrumentedModel]:
    """Return both models of a pair, instrumented.

    Raises:
        InvalidArgumentError: if the compressed model is no Keras model of the same operations.
    """
    original, compressed = pair.load_original(), pair.load_compressed()
    if not (isinstance(original, keras.Model) and isinstance(compressed, keras.Model)):
        raise InvalidArgumentError(
            f"--explore compares the first pair inside, and '{pair.name}' has a model that is a "
            "LiteRT file. Name a pair of Keras models first, such as lenet5-pruned."
        )
    return {"original": InstrumentedModel(original), "compressed": InstrumentedModel(compressed)}


def _views(s: SearchSettings, sweep: Sweep) -> list[ExperimentView]:
    """Return a view of the first pair's slices of inputs on which the two models deviate."""
    if s.explore is None:
        return []
    pair = sweep.pair((s.pairs or list(PUBLISHED))[0])
    found = sweep.search(pair, "DFlare", 0, s.seeds)
    x = pair.preprocess(found.images[:MOST_SAMPLES])
    train = pair.preprocess(uint8_images(pair.dataset, f"train[:{_PROFILED}]"))
    ims = compared_inside(pair)
    slicers = {name: Slicer(im, Profile.from_data(im, train)) for name, im in ims.items()}
    view = explore(
        {name: slicer.slice_each(x, outputs="predicted") for name, slicer in slicers.items()},
        ims,
        x,
        profile={name: slicer.profile for name, slicer in slicers.items()},
        title=f"Inputs on which {pair.name} deviates from its original",
    )
    return [ExperimentView(s.explore, view)]


def ablation(s: AblationSettings) -> ExperimentResult:
    """Change one thing at a time in the search (Table 6)."""
    methods = s.method or [known for known in METHODS if known != "DiffChaser"]
    for method in methods:
        check_name("method", method, METHODS)
    sweep = Sweep(s)
    rows = [
        row
        for pair in s.pairs or PUBLISHED
        for method in methods
        for row in sweep.measure(pair, method)
    ]
    tests = sweep.table(f"{s.name}_wilcoxon", _wilcoxon(sweep, s.pairs or list(PUBLISHED), methods))
    return ExperimentResult([*sweep.tables(s.name, rows), tests])


def _wilcoxon(sweep: Sweep, pairs: Sequence[str], methods: Sequence[str]) -> pd.DataFrame:
    """Compare each method with the first one: the queries of a seed, a pair of numbers each.

    A search without a deviation counts as all the queries that it was given; several random seeds
    count as their mean.
    """
    rows, first = [], methods[0]
    for pair in map(sweep.pair, pairs):
        queries = {method: sweep.queries(pair, method) for method in methods}
        for method in methods[1:]:
            change = queries[method] - queries[first]
            row = {"pair": pair.name, "method": method, "against": first, "seeds": len(change)}
            row |= {"fewer queries": (change < 0).sum(), "more queries": (change > 0).sum()}
            p = wilcoxon(queries[method], queries[first]).pvalue if change.any() else np.nan
            rows.append({**row, "median change": np.median(change), "p": p})
    return pd.DataFrame(rows)


def dissemination(s: DisseminationSettings) -> ExperimentResult:
    """Search pairs in which 10 … 50 % of the weights are mutated (section 5.4.1)."""
    sweep = Sweep(s)
    rows = [
        {**row, "model": model, "mutated_percent": percent}
        for model in s.originals or ["lenet5"]
        for method in ("DFlare", "Algorithm 1")
        for percent in (10, 20, 30, 40, 50)
        for row in sweep.measure(f"{model}-mutated{percent}", method)
    ]
    runs, keys = pd.DataFrame(rows), ["model", "method"]
    figures = ["success_rate", "mean_seconds", "mean_queries", "median_queries", "verified"]
    means = runs.groupby([*keys, "mutated_percent"], sort=False)[figures].mean()
    correlations = means.reset_index(level=2).groupby(keys, sort=False).corr()
    correlations = correlations["mutated_percent"].unstack()[figures[1:4]].reset_index()
    published = pd.DataFrame([paper_correlations(model) for model in correlations["model"]])
    correlations = pd.concat([correlations, published], axis=1)
    return ExperimentResult(
        [
            sweep.table("dissemination_runs", runs),
            sweep.table("dissemination", means.reset_index()),
            sweep.table("dissemination_correlation", correlations),
        ]
    )


def repair(s: RepairSettings) -> ExperimentResult:
    """Repair the deviations found, and search the repaired models (Tables 7 and 8).

    "unsought" is the share of all test images on which the two models of a pair differ anyway.
    """
    sweep, scores, searches = Sweep(s), [], []
    for name in s.pairs or PUBLISHED:
        pair = sweep.pair(name)
        asked = pair.load()
        for method in ("DFlare", "Algorithm 1"):
            for repeat in range(s.repeats):
                found = sweep.search(pair, method, repeat, s.seeds)
                folds = cross_validate(asked, found, rng=repeat).mean()
                scores.append({"pair": name, "method": method, **folds})
                learned = repair_labels(asked, found, rng=repeat)
                repaired = _repaired(pair, f"{method}-{repeat}", learned)
                for searched, label in ((pair, "without repair"), (repaired, "with repair")):
                    row = sweep.row(searched, method, repeat, s.seeds)
                    unsought = count_deviations(searched, "test")["share"]
                    row |= {"pair": name, "method": f"{method}, {label}", "unsought": unsought}
                    searches.append(row)
    table = pd.DataFrame(scores).groupby(["pair", "method"], sort=False).mean().reset_index()
    table = table.join(pd.DataFrame(map(paper_repair, table["pair"])))
    return ExperimentResult(
        [sweep.table(s.name, table), *sweep.tables(f"{s.name}_search", searches)]
    )


def cross_validate(
    pair: ModelPair, found: DeviationSet, folds: int = 5, rng: int = 0
) -> pd.DataFrame:
    """Score repairs on held-out pairs of a seed and its triggering input (section 5.5.2).

    Args:
        pair: The models of the search.
        found: Its outcomes.
        folds: Number of folds; every one is the test set once.
        rng: Seed of the folds and of the perceptrons.

    Returns:
        One row per fold: `repair_count`, the triggering inputs that no longer deviate;
        `inducing_count`, the seeds that deviate only now; `improvement_count`, deviations before
        minus deviations after; and their ratios.

    Raises:
        InvalidArgumentError: if nothing was found, or there are fewer pairs than folds.
    """
    seeds, triggers, seed_labels, trigger_labels = repair_data(pair, found)
    if not 2 <= folds <= len(seeds):
        raise InvalidArgumentError(
            f"folds must be in 2 … {len(seeds)}, the number of pairs. Received: {folds}"
        )
    rows = []
    for train, test in KFold(folds, shuffle=True, random_state=rng).split(seeds):
        x = np.concatenate([seeds[train], triggers[train]])
        y = np.concatenate([seed_labels[train], trigger_labels[train]])
        network = fit_repair(MLPClassifier((100,), max_iter=500, random_state=rng), x, y)
        repaired = int((network.predict(triggers[test]) == trigger_labels[test]).sum())
        broken = int((network.predict(seeds[test]) != seed_labels[test]).sum())
        counts = {"repair": repaired, "inducing": broken, "improvement": repaired - broken}
        row = {}
        for name, count in counts.items():
            row |= {f"{name}_count": count, f"{name}_ratio": count / len(test)}
        rows.append(row)
    return pd.DataFrame(rows)


def _repaired(pair: NamedPair, how: str, learned: RepairedClassifier) -> NamedPair:
    """Return the pair with a repaired compressed model."""

    def load_repaired() -> RepairedClassifier:
        compressed = as_classifier(pair.load_compressed())
        return RepairedClassifier(compressed, learned.network, learned.classes)

    name = f"{pair.name}-repaired-{how}"
    return dataclasses.replace(pair, name=name, load_compressed=load_repaired)


def plot_runs(runs: pd.DataFrame) -> Figure:
    """Draw the queries of each pair by every method: median, 90th percentile, largest (fig. 4)."""
    columns = ["median_queries", "queries_90th_percentile", "max_queries"]
    pairs, methods = (list(runs[key].unique()) for key in ("pair", "method"))
    figure = Figure(figsize=(8, 1.2 + 0.25 * len(pairs) * (len(methods) + 1)), layout="constrained")
    axis = figure.subplots()
    means = runs.groupby(["pair", "method"])[columns].mean()
    finding = []
    for row, method in enumerate(methods):
        colour = palette.METHODS[method]
        own = [pair for pair in pairs if (pair, method) in means.index]
        places = np.array([pairs.index(pair) * (len(methods) + 1) + row for pair in own])
        low, high, most = (means.loc[[(pair, method) for pair in own], c] for c in columns)
        axis.hlines(places, low, most, color=colour, linewidth=1)
        axis.hlines(places, low, high, color=colour, linewidth=5, alpha=0.5)
        axis.plot(low, places, palette.MARKERS[method], color=colour, label=method)
        finding.append(f"{method} {_span(low)}")
    axis.set_yticks(np.arange(len(pairs)) * (len(methods) + 1) + (len(methods) - 1) / 2, pairs)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="queries: median (mark), 90 % of the searches (bar), the longest")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(methods))
    put_finding(figure, f"Median queries until a deviation: {', '.join(finding)}")
    return figure


def _span(medians: pd.Series) -> str:
    low, high = (f"{value:,.0f}" for value in (medians.min(), medians.max()))
    return low if low == high else f"{low} to {high}"
