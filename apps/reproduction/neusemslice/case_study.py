"""Experiments on one trained model of the zoo: figure 6 and section 5.6, and times of scoring.

The paper states three kinds of figures for MobileNetV3: curves of accuracy over compression
rate, the accuracy at a compression rate of about one half, and what is left where slices of
that size are compressed on to about 60 %, beside the whole model, compressed as far.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.fingerprint import model_fingerprint
from nnslicer_tf.semantic import METRICS, contributions, restructure
from reproduction.neusemslice.maintenance import COMPRESSORS
from reproduction.neusemslice.settings import WAYS, CaseStudySettings, ScoringTimeSettings
from reproduction.neusemslice.slicing import curve_rows, plot_curves
from reproduction.neusemslice.trial import SlicedModel, Trial, zoo_trial
from reproduction.neusemslice.weight_pruning import compress
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, paper_frame
from reproduction.rows import RowStore
from reproduction.zoo.models import zoo

_HALF = 0.5  # of the parameters that slices remove
_COMPRESSED = 0.6  # of the parameters that are removed in the end
_SHARE = 0.1  # of the remaining weights that an iteration removes
_PAPER_WAYS = dict(zip(WAYS, ("global", "category-wise", "semantic", "semantic"), strict=True))


def case_study(s: CaseStudySettings) -> ExperimentResult:
    """Measure the slices of a trained model, and what compressing them on leaves."""
    trial = replace(zoo_trial(s.model, s.dataset, s.tests, s.samples), interval=s.interval)
    weights = model_fingerprint(trial.model)

    def stored(what: str, rows: Callable[[Trial, str], Iterable[dict]]) -> pd.DataFrame:
        """Return the rows of all metrics; those on file, of the same weights, are read."""
        name = f"case-study/{what}-{s.name}"
        store = RowStore.of(s, name, ["metric"], "tests", "samples", weights=weights)
        parts = []
        for metric in s.metrics.split(","):
            make = partial(rows, trial, metric)
            parts.append(store.complete({"metric": metric}, lambda m=make: track(m(), what)))
        return pd.concat(parts, ignore_index=True)

    curves = stored("curves", curve_rows)
    half = stored("half", half_rows).merge(stated(["method", "metric"]), how="left")
    keys = ["method", "metric", "compressor"]
    compressed = stored("compressed", compressed_rows).merge(stated(keys), how="left")
    accuracies = f"Accuracy of slices of {s.name}"
    of_half = f"{accuracies} that remove half of the parameters"
    on = f"{of_half}, compressed on to {_COMPRESSED:.0%} (section 5.6)"
    head = {
        "model": f"weights of the zoo, {zoo.accuracy(trial.model, trial.test):.1%} right",
        "sizes": f"{s.tests} test images; scores on {s.samples} training images",
        "interval": f"semantic slices grow by {s.interval} neurons at a time",
    }
    figure = f"figure6-{s.name}"
    tables = [
        ExperimentTable(figure, curves, f"{accuracies} (figure 6)", head),
        ExperimentTable(f"section56-half-{s.name}", half, f"{of_half} (section 5.6)", head),
        ExperimentTable(f"section56-compressed-{s.name}", compressed, on, head),
    ]
    return ExperimentResult(tables, [ExperimentFigure(figure, plot_curves(figure, curves))])


def half_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield the whole model's accuracy, and those of slices without half of the parameters."""
    whole = {"method": "whole", "compression": 0.0}
    yield {**whole, "accuracy": zoo.accuracy(trial.model, trial.test)}
    sliced = SlicedModel(trial, metric)
    for way in WAYS:
        critical = sliced.of_size(way, _HALF)
        right = zoo.accuracy(sliced.masked(critical), trial.test)
        yield {"method": way, "compression": sliced.compression(critical), "accuracy": right}


def compressed_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield what compressing the whole model, and slices of half of it, to 60 % leaves."""
    sliced = SlicedModel(trial, metric)
    starts = {"whole": trial.model}
    for way in WAYS:
        starts[way] = restructure(trial.model, sliced.of_size(way, _HALF))
    size = trial.model.count_params()
    for compressor, name in COMPRESSORS.items():
        for way, start in starts.items():
            left = start.count_params() / size
            steps = max(1, round(math.log((1 - _COMPRESSED) / left, 1 - _SHARE)))
            # One accuracy is of interest, that of the end; what is removed does not depend on it.
            found = compress(start, compressor, lambda _: 1.0, 0.0, share=_SHARE, most=steps)
            compression = 1 - (1 - found.rate) * left
            row = {"method": way, "compressor": name, "compression": compression}
            yield row | {"iterations": steps, "accuracy": zoo.accuracy(found.model, trial.test)}


def stated(keys: list[str]) -> pd.DataFrame:
    """Return the accuracies of section 5.6 by method, metric and perhaps compressor."""
    table = paper_frame("neusemslice/figure6")
    table = table[table.compressor.notna() == ("compressor" in keys)]
    table = table.assign(
        metric=table.metric.fillna("Taylor").str.lower(),  # the whole model has no metric
        compressor=table.compressor.str.replace("Global", "Glob").str.replace("Uniform+", "Unif"),
        accuracy=table.accuracy / 100,
    )
    table["compressor"] = table.compressor.str.split(" or ")
    table = table.explode("compressor")
    ways = pd.Series({**_PAPER_WAYS, "whole": "none"}, name="paper").rename_axis("method")
    table = ways.reset_index().merge(table, left_on="paper", right_on="method", suffixes=("", "_p"))
    return table[[*keys, "accuracy"]].rename(columns={"accuracy": "paper accuracy"})


def scoring_times(s: ScoringTimeSettings) -> ExperimentResult:
    """Time the metrics on the training images of a data set (section 5.2)."""
    split = f"train[:{s.images}]" if s.images else "train"
    data = datasets.load(s.dataset, split)
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    rows = []
    for metric in track(METRICS, "metrics"):
        seconds = []
        for _ in range(s.runs + 1):
            start = time.perf_counter()
            contributions(im, data.x, metric, y=data.y)
            seconds.append(time.perf_counter() - start)
        row = {"metric": metric, "seconds": statistics.median(seconds[1:])}
        rows.append(row | {"least": min(seconds[1:]), "most": max(seconds[1:])})
    table = pd.DataFrame(rows)
    # The seconds that the paper states, for MNIST.
    stated = paper_frame("neusemslice/stated")
    metrics = stated.what.str.extract(r"seconds to score MNIST by (\w+)")[0].dropna().str.lower()
    published = dict(zip(metrics, stated.value[metrics.index], strict=True))
    table["paper seconds"] = table.metric.map(published if s.dataset == "mnist" else {})
    head = {
        "model": f"{s.model}, weights of the zoo",
        "images": f"{len(data)} of {s.dataset}",
        "runs": f"{s.runs} of each metric after one that is not counted",
    }
    title = "Seconds to score all neurons (section 5.2)"
    return ExperimentResult([ExperimentTable(f"times-{s.model}-{s.dataset}", table, title, head)])
