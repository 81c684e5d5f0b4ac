"""Searches for deviations, and their repair: Tables 4, 6, 7, 8, and section 5.4.

`layers`: the paper asks which of thirteen copies of a VGG-16 to ship. In each another convolution
is pruned, by a share that it does not give; here it is half of the weights. Their accuracy is the
same; how long a search for a deviation takes is not.

`sentences` searches text classifiers, from sentences of SST-2; this is ours, not the paper's.
"""

import dataclasses
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from scipy.stats import wilcoxon
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier

from nnslicer_tf._checks import check_name
from nnslicer_tf.datasets import texts
from nnslicer_tf.dflare import (
    DeviationSet,
    ModelPair,
    as_classifier,
    find_deviations,
    minimise,
    repair_labels,
    verify,
)
from nnslicer_tf.dflare.repair import RepairedClassifier, repair_data
from nnslicer_tf.errors import InvalidArgumentError
from reproduction import plots
from reproduction.dflare import settings
from reproduction.dflare.agreement import count_deviations
from reproduction.dflare.methods import (
    METHODS,
    Sweep,
    paper_correlations,
    paper_repair,
    paper_timeouts,
    row_of,
)
from reproduction.dflare.pairs import (
    LAYER,
    PUBLISHED,
    NamedPair,
    convolutions,
    load_original,
    load_pair,
)
from reproduction.dflare.settings import SentenceSettings
from reproduction.plots import plot_methods, put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, versions

_TIMEOUTS = (15, 10, 5, 1, 0.1)  # seconds; the first three are the paper's
_FIGURES = ["success_rate", "mean_seconds", "mean_queries", "median_queries", "verified"]


def search(s: settings.SearchSettings) -> ExperimentResult:
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


def ablation(s: settings.AblationSettings) -> ExperimentResult:
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
            each = [np.where(f.found, f.queries, s.max_queries) for f in found]
            queries[method] = np.mean(each, axis=0)
        # Compare each method with the first one by pairs of queries, one for each seed.
        for method in methods[1:]:
            change = queries[method] - queries[methods[0]]
            row = {"pair": name, "method": method, "against": methods[0], "seeds": len(change)}
            row |= {"fewer queries": (change < 0).sum(), "more queries": (change > 0).sum()}
            p = wilcoxon(change).pvalue if change.any() else np.nan
            tests.append({**row, "median change": np.median(change), "p": p})
    wilcoxon_table = sweep.table(f"{s.name}_wilcoxon", pd.DataFrame(tests))
    return ExperimentResult([*sweep.tables(s.name, rows), wilcoxon_table])


def dissemination(s: settings.DisseminationSettings) -> ExperimentResult:
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
    means = runs.groupby([*keys, "mutated_percent"], sort=False)[_FIGURES].mean()
    correlations = means.reset_index(level=2).groupby(keys, sort=False).corr()
    correlations = correlations["mutated_percent"].unstack()[_FIGURES[1:4]].reset_index()
    published = pd.DataFrame([paper_correlations(model) for model in correlations["model"]])
    correlations = pd.concat([correlations, published], axis=1)
    tables = {"_runs": runs, "": means.reset_index(), "_correlation": correlations}
    return ExperimentResult([sweep.table(f"dissemination{end}", t) for end, t in tables.items()])


def repair(s: settings.RepairSettings) -> ExperimentResult:
    """Repair the deviations found, and search the repaired models (Tables 7 and 8)."""
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
                    row = row_of(searched, method, repeat, again)
                    # The share of all test images on which the two models differ anyway.
                    unsought = count_deviations(searched, "test")["share"]
                    row |= {"pair": name, "method": f"{method}, {label}", "unsought": unsought}
                    searches.append(row)
    table = pd.DataFrame(scores).groupby(["pair", "method"], sort=False).mean().reset_index()
    table = table.join(pd.DataFrame(map(paper_repair, table["pair"])))
    tables = sweep.tables(f"{s.name}_search", searches)
    return ExperimentResult([sweep.table(s.name, table), *tables])


def cross_validate(
    pair: ModelPair, found: DeviationSet, folds: int = 5, rng: int = 0
) -> pd.DataFrame:
    """Score repairs of a search's outcomes on held-out pairs of seed and trigger (section 5.5.2).

    There is a row per fold: `repair_count`, the triggering inputs that no longer deviate;
    `inducing_count`, the seeds that deviate only now; `improvement_count`, deviations before
    minus deviations after; and their ratios.
    """
    seeds, triggers, seed_labels, trigger_labels = repair_data(pair, found)
    if not 2 <= folds <= len(seeds):
        known = f"2 … {len(seeds)}, the number of pairs"
        raise InvalidArgumentError(f"folds must be in {known}. Received: {folds}")
    rows = []
    for train, test in KFold(folds, shuffle=True, random_state=rng).split(seeds):
        x = np.concatenate([seeds[train], triggers[train]])
        y = np.concatenate([seed_labels[train], trigger_labels[train]])
        network = MLPClassifier((100,), max_iter=500, random_state=rng)
        with warnings.catch_warnings():  # stopping early prevents overfitting, as `repair_labels`
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(x, y)
        repaired = int((network.predict(triggers[test]) == trigger_labels[test]).sum())
        broken = int((network.predict(seeds[test]) != seed_labels[test]).sum())
        counts = {"repair": repaired, "inducing": broken, "improvement": repaired - broken}
        row = {}
        for name, count in counts.items():
            row |= {f"{name}_count": count, f"{name}_ratio": count / len(test)}
        rows.append(row)
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
        colour = plots.METHODS[method]
        own = [pair for pair in pairs if (pair, method) in means.index]
        places = np.array([pairs.index(pair) * (len(methods) + 1) + row for pair in own])
        low, high, most = (means.loc[[(pair, method) for pair in own], c] for c in columns)
        axis.hlines(places, low, most, color=colour, linewidth=1)
        axis.hlines(places, low, high, color=colour, linewidth=5, alpha=0.5)
        axis.plot(low, places, plots.MARKERS[method], color=colour, label=method)
        least, largest = (f"{value:,.0f}" for value in (low.min(), low.max()))
        span = least if least == largest else f"{least} to {largest}"
        finding.append(f"{method} {span}")
    axis.set_yticks(np.arange(len(pairs)) * (len(methods) + 1) + (len(methods) - 1) / 2, pairs)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="queries: median (mark), 90 % of the searches (bar), the longest")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(methods))
    return put_finding(figure, f"Median queries until a deviation: {', '.join(finding)}")


def layers(s: settings.LayerSettings) -> ExperimentResult:
    """Prune one convolution at a time, and search for deviations (Figures 6 and 7)."""
    sweep, rows = Sweep(s), []
    found = convolutions(load_original(s.model, s.models).load())
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
    figure = ExperimentFigure(name, plot_layers(means))
    return ExperimentResult([sweep.table(name, means), trends], [figure])


def plot_layers(means: pd.DataFrame) -> Figure:
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
    return put_finding(
        figure,
        f"With one convolution pruned by half, accuracy is {100 * first.accuracy.min():.1f} to "
        f"{100 * first.accuracy.max():.1f} %; DFlare needs {ours.min():.0f} queries (convolution "
        f"{ours.idxmin()}) to {ours.max():.0f} (convolution {ours.idxmax()})",
    )


_PAIRS = ("text_transformer-dynamic", "text_transformer-pruned", "text_lstm-pruned")
_SHOWN = 5  # examples of a pair


def sentences(s: SentenceSettings) -> ExperimentResult:
    """Search pairs of text classifiers, and undo every edit that a deviation does not need."""
    texts.load("sst2", "test")  # where they are missing, it is said before models are compressed
    rows, examples = [], []
    for name in s.pairs or _PAIRS:
        pair = load_pair(name, work=s.work / "pairs")
        if pair.dataset not in texts.NAMES:
            raise InvalidArgumentError(f"'{name}' is no pair of text classifiers.")
        encoded = texts.vocabulary().encode(texts.load("sst2", "test").text)
        models, fresh = (ModelPair(pair.load_original(), pair.load_compressed()) for _ in range(2))
        # Words are similar if the original has learned similar vectors for them.
        models = models.for_seeds(encoded)
        # Sentences on which both models agree, and the share of all that these are.
        agreed = np.flatnonzero(~models.ask(encoded).deviates)
        chosen = np.sort(np.random.default_rng(0).permutation(agreed)[: s.seeds])
        seeds, agreed = encoded[chosen], len(agreed) / len(encoded)
        for method in ("DFlare", "Algorithm 1"):
            for repeat in range(s.repeats):
                file = f"{name}-{method}-{repeat}-{len(seeds)}-{s.max_queries}"
                checkpoint = s.work / "searches" / file.replace(" ", "_")
                search = replace(METHODS[method].search, max_queries=s.max_queries)
                options = {"search": search, "rng": repeat, "checkpoint": checkpoint}
                found = find_deviations(models, seeds, **options)
                least = minimise(models, found)
                edits, fewest = (one.to_frame()["words"].dropna() for one in (found, least))
                summary = found.summary()
                figures = ("seeds", "success_rate", "mean_queries", "median_queries")
                row = {"pair": name, "method": method, "rng": repeat}
                row["sentences on which they agree"] = agreed
                row |= {figure: summary[figure] for figure in figures}
                row |= {"verified": int(verify(fresh, found).sum())}
                row["median words edited"] = float(edits.median())
                rows.append(row | {"after undoing what is not needed": float(fewest.median())})
                print(rows[-1], flush=True)
                if method == "DFlare" and repeat == 0:
                    examples += _examples(name, seeds, least)
    head = {
        "seeds": f"{s.seeds} sentences of GLUE's SST-2 dev on which both models agree, drawn once",
        "random seeds": f"0 ... {s.repeats - 1}",
        "queries": f"at most {s.max_queries} a search",
        "libraries": versions("ai-edge-litert"),
    }
    table, shown = pd.DataFrame(rows), pd.DataFrame(examples)
    tables = [
        ExperimentTable("sentences", table, "Deviations of text classifiers", head),
        ExperimentTable("sentences_examples", shown, "The smallest changes found", head),
    ]
    return ExperimentResult(tables)


def _examples(name: str, seeds: np.ndarray, least: DeviationSet) -> list[dict[str, object]]:
    """Return the sentences with the fewest edits, as text."""
    table, vocabulary = least.to_frame(), texts.vocabulary()
    rows = []
    for index in table["words"].dropna().sort_values(kind="stable").index[:_SHOWN]:
        deviation = least[index].deviation
        assert deviation is not None  # it has a number of edits
        seed, disagreed = (
            " ".join(vocabulary.decode(np.asarray(one))) for one in (seeds[index], deviation.image)
        )
        row = {"pair": name, "words edited": int(table["words"][index]), "seed": seed}
        row |= {"models disagree on": disagreed, "original": deviation.labels[0]}
        rows.append(row | {"compressed": deviation.labels[1]})
    return rows
