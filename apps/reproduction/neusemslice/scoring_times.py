"""Seconds that each metric needs to score all neurons, beside the paper's (section 5.2)."""

import statistics
import time

import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.semantic import METRICS, contributions
from reproduction.neusemslice.settings import ScoringTimeSettings
from reproduction.result import ExperimentResult, ExperimentTable, paper_frame


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
