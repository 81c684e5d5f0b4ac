"""Seconds that each metric needs to score all neurons, beside the paper's (section 5.2)."""

import statistics
import time
from collections.abc import Iterator

import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.semantic import METRICS, contributions
from reproduction.neusemslice.settings import ScoringTimeSettings
from reproduction.result import ExperimentResult, ExperimentTable, paper_frame

_TIMED_IN_THE_PAPER = "mnist"


def scoring_times(s: ScoringTimeSettings) -> ExperimentResult:
    """Time the metrics on the training images of a data set (section 5.2)."""
    split = f"train[:{s.images}]" if s.images else "train"
    data = datasets.load(s.dataset, split)
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    table = pd.DataFrame(track(timed(im, data, s.runs), "metrics", len(METRICS)))
    published = paper_seconds() if s.dataset == _TIMED_IN_THE_PAPER else {}
    table["paper seconds"] = table.metric.map(published)
    head = {
        "model": f"{s.model}, weights of the zoo",
        "images": f"{len(data)} of {s.dataset}",
        "runs": f"{s.runs} of each metric after one that is not counted",
    }
    title = "Seconds to score all neurons (section 5.2)"
    return ExperimentResult([ExperimentTable(f"times-{s.model}-{s.dataset}", table, title, head)])


def timed(im: InstrumentedModel, data: Dataset, runs: int) -> Iterator[dict]:
    """Yield the median, least and most seconds of each metric."""
    for metric in METRICS:
        seconds = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            contributions(im, data.x, metric, y=data.y)
            seconds.append(time.perf_counter() - start)
        yield {
            "metric": metric,
            "seconds": statistics.median(seconds[1:]),
            "least": min(seconds[1:]),
            "most": max(seconds[1:]),
        }


def paper_seconds() -> dict[str, float]:
    """Return the seconds that the paper states for MNIST, by metric."""
    stated = paper_frame("neusemslice/stated")
    found = stated.what.str.extract(r"seconds to score MNIST by (\w+)")[0].dropna()
    return dict(zip(found.str.lower(), stated.value[found.index], strict=True))
