"""Searches for deviations, and their repair: Tables 4, 6, 7, 8, and section 5.4.1."""

import dataclasses

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
from reproduction import palette
from reproduction.dflare.agreement import count_deviations
from reproduction.dflare.methods import METHODS, paper_correlations, paper_repair, paper_timeouts
from reproduction.dflare.pairs import PUBLISHED, NamedPair
from reproduction.dflare.settings import (
    AblationSettings,
    DisseminationSettings,
    RepairSettings,
    SearchSettings,
)
from reproduction.dflare.sweep import Sweep
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult

_TIMEOUTS = (15, 10, 5, 1, 0.1)  # seconds; the first three are the paper's


def search(s: SearchSettings) -> ExperimentResult:
    """Search with DFlare and, from fewer seeds, DiffChaser (Tables 4 and 10, Figure 4)."""
    sweep, rows, shares = Sweep(s), [], []
    for name in s.pairs or PUBLISHED:
        for method, seeds, repeats in s.runs("DFlare", "Algorithm 1"):
            rows += sweep.measure(name, method, seeds, repeats)
            # The shares of the searches that found a deviation within times (Table 10). A
            # search's seconds are its share of the time of all that run beside it.
            found = list(sweep.searches(sweep.pair(name), method, seeds, repeats))
            seconds = np.concatenate([np.where(f.found, f.seconds, np.inf) for f in found])
            row = {"pair": name, "method": method, "searches": len(seconds)}
            row |= {f"within {t:g} s": np.mean(seconds <= t) for t in _TIMEOUTS}
            row["slowest found, s"] = seconds[np.isfinite(seconds)].max(initial=0)
            shares.append(row | paper_timeouts(name, method))
    figure = ExperimentFigure(f"{s.name}_queries", plot_runs(pd.DataFrame(rows)))
    timeouts = sweep.table(f"{s.name}_timeouts", pd.DataFrame(shares))
    return ExperimentResult([*sweep.tables(s.name, rows), timeouts], [figure])


def ablation(s: AblationSettings) -> ExperimentResult:
    """Change one thing at a time in the search (Table 6)."""
    methods = s.method or [known for known in METHODS if known != "DiffChaser"]
    for method in methods:
        check_name("method", method, METHODS)
    sweep, rows, tests = Sweep(s), [], []
    for name in s.pairs or PUBLISHED:
        pair, queries = sweep.pair(name), {}
        for method in methods:
            rows += sweep.measure(name, method)
            # The mean queries of each seed; without a deviation, all that the search was given.
            found = sweep.searches(pair, method)
            queries[method] = np.mean(
                [np.where(f.found, f.queries, s.max_queries) for f in found], axis=0
            )
        # Compare each method with the first one by pairs of queries, one for each seed.
        for method in methods[1:]:
            change = queries[method] - queries[methods[0]]
            row = {"pair": name, "method": method, "against": methods[0], "seeds": len(change)}
            row |= {"fewer queries": (change < 0).sum(), "more queries": (change > 0).sum()}
            p = wilcoxon(change).pvalue if change.any() else np.nan
            tests.append({**row, "median change": np.median(change), "p": p})
    wilcoxon_table = sweep.table(f"{s.name}_wilcoxon", pd.DataFrame(tests))
    return ExperimentResult([*sweep.tables(s.name, rows), wilcoxon_table])


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

                def load_repaired(
                    pair: NamedPair = pair, learned: RepairedClassifier = learned
                ) -> RepairedClassifier:
                    compressed = as_classifier(pair.load_compressed())
                    return RepairedClassifier(compressed, learned.network, learned.classes)

                how = f"{pair.name}-repaired-{method}-{repeat}"
                repaired = dataclasses.replace(pair, name=how, load_compressed=load_repaired)
                for searched, label in ((pair, "without repair"), (repaired, "with repair")):
                    again = sweep.search(searched, method, repeat, s.seeds)
                    row = sweep.row(searched, method, repeat, again)
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
    """Score repairs of a search's outcomes on held-out pairs of seed and trigger (section 5.5.2).

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
        rows.append(
            {
                f"{name}_{figure}": value
                for name, count in counts.items()
                for figure, value in (("count", count), ("ratio", count / len(test)))
            }
        )
    return pd.DataFrame(rows)


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
        least, largest = (f"{value:,.0f}" for value in (low.min(), low.max()))
        span = least if least == largest else f"{least} to {largest}"
        finding.append(f"{method} {span}")
    axis.set_yticks(np.arange(len(pairs)) * (len(methods) + 1) + (len(methods) - 1) / 2, pairs)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="queries: median (mark), 90 % of the searches (bar), the longest")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(methods))
    put_finding(figure, f"Median queries until a deviation: {', '.join(finding)}")
    return figure
