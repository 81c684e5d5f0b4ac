"""Fault localisation: the rank of channels in which faults were planted."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import wilcoxon

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.debugging import METHODS, Runs, suspicious
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.debugging.faults import Fault, FaultyModel, rank
from reproduction.debugging.settings import FaultSettings, LocalisationSettings
from reproduction.palette import METHODS as COLOURS
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

_MOST_DRAWN = 500  # faults drawn for each one needed
_EARLY = 0.01  # share of the channels that one would examine first
_TEXT = (
    "`top_1_percent`: share of faults whose channel is among the first 1 % of all hidden channels; "
    "`exam`: mean share of channels that are looked at before the faulty one; `auc`: probability "
    "that the faulty channel scores above another one; `p`: two-sided Wilcoxon signed-rank test of "
    "the ranks against those of `gradient_contrast`."
)


def localisation(s: LocalisationSettings) -> ExperimentResult:
    """Rank the faulty channel among all hidden ones, by every method."""
    methods = s.methods.split(",")
    for method in methods:
        check_name("method", method, METHODS)
    faulty = FaultyModel(zoo.load(s.model))
    data = images(s)
    channels = sum(operation.shape[-1] for operation in faulty.hidden)
    name = f"faults_{s.model}"
    store = fault_rows(name, "method", faulty, s)
    names = []
    for index, (fault, cost) in enumerate(costly(faulty, data, s)):
        names += [{"fault": index, "method": method} for method in methods]
        if any(one not in store for one in names[-len(methods) :]):
            runs = Runs.split(faulty.im, data.x, data.y).sampled(s.samples, rng=index)
            failing, passing = ((part.x, part.right) for part in (runs.failing, runs.passing))
            made = []
            for method in methods:
                found = suspicious(
                    faulty.im, failing, passing, method, progress=False, rng=fault.seed
                )
                hidden = {o.name: found.channels[o.name] for o in faulty.hidden}
                row = {"fault": index, "method": method, "operation": fault.operation}
                row |= {"channel": fault.channel, "kind": fault.kind}
                row |= {"strength": fault.strength, "cost": cost}
                made.append(row | {"rank": rank(hidden, fault.operation, fault.channel)})
            store.add(made)
    faulty.heal()
    rows = store.to_frame(names).assign(channels=channels)
    ranks = rows.pivot(index="fault", columns="method", values="rank")
    ours = ranks.get("gradient_contrast")
    summary = []
    for method in methods:
        own = ranks[method]
        differ = ours is not None and (own != ours).any()
        summary.append(
            {
                "method": method,
                "top_1": (own <= 1).mean(),
                "top_5": (own <= 5).mean(),
                "top_1_percent": (own <= max(1.0, 0.01 * channels)).mean(),
                "median_rank": own.median(),
                "exam": (own / channels).mean(),
                "auc": ((channels - own) / (channels - 1)).mean(),
                "p": wilcoxon(own, ours).pvalue if differ else np.nan,
            }
        )
    head = {
        "model": s.model,
        "faults": s.faults,
        "cost_points": s.cost,
        "strengths": s.strengths,
        "test_samples": len(data),
        "compared": s.samples,
        "hidden_channels": channels,
        "seed": s.seed,
    }
    title = f"Planted faults in {s.model}: which method finds the channel"
    return ExperimentResult(
        [
            ExperimentTable(f"{name}_ranks", rows),
            ExperimentTable(name, pd.DataFrame(summary), title, head, _TEXT),
        ],
        [ExperimentFigure(name, plot(name, rows))],
    )


def images(s: FaultSettings) -> Dataset:
    """Return the first test images of the model's data set."""
    return datasets.load(zoo.models.entry(s.model).dataset, f"test[:{s.images}]")


def fault_rows(name: str, compared: str, faulty: FaultyModel, s: FaultSettings) -> RowStore:
    """Return the store of an experiment's rows, one for each fault and value of `compared`."""
    made_from = s.values("images", "samples", "cost", "strengths", "seed")
    made_from["weights"] = faulty.im.fingerprint
    return RowStore.of(s.work, name, ("fault", compared), made_from)


def costly(faulty: FaultyModel, data: Dataset, s: FaultSettings) -> Iterator[tuple[Fault, float]]:
    """Plant and yield the first faults that cost enough accuracy, with their cost in points."""
    try:
        strengths = [float(part) for part in s.strengths.split(",")]
    except ValueError:
        raise InvalidArgumentError(
            f"--strengths takes numbers such as '1,2,4'. Received: {s.strengths!r}"
        ) from None

    def accuracy() -> float:
        return float((faulty.im.logits(data.x).argmax(axis=1) == data.y).mean())

    whole = accuracy()
    drawn = faulty.draw(np.random.default_rng(s.seed), strengths)
    for _ in track(range(s.faults), "Faults"):
        for _ in range(_MOST_DRAWN):
            fault = next(drawn)
            faulty.plant(fault)
            cost = 100 * (whole - accuracy())
            if cost >= s.cost:
                yield fault, cost
                break
        else:
            raise InvalidArgumentError(
                f"None of {_MOST_DRAWN} faults costs {s.cost} points of accuracy. Choose --cost."
            )


def plot(name: str, rows: pd.DataFrame) -> Figure:
    """Draw for each method the share of faults found among the first channels."""
    model = name.removeprefix("faults_").removesuffix("_ranks")
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axis = figure.subplots()
    early = {}
    for method, part in rows.groupby("method", sort=False):
        ranks = np.sort(part["rank"] / part["channels"])
        style = "--" if str(method).startswith("deepfault") else "-"
        shares = np.arange(1, len(ranks) + 1) / len(ranks)
        label, colour = str(method).replace("_", " "), COLOURS[str(method)]
        axis.step(ranks, shares, style, where="post", label=label, color=colour)
        # With fewer than a hundred channels, only the first one counts.
        early[label] = np.mean(part["rank"] <= np.maximum(1, _EARLY * part["channels"]))
    axis.axvline(_EARLY, color="grey", linewidth=0.8)
    axis.annotate(f" {_EARLY:.0%}", (_EARLY, 0), xycoords=("data", "axes fraction"), fontsize=8)
    axis.set(
        xscale="log", xlabel="share of hidden channels looked at", ylabel="share of faults found"
    )
    best = max(early, key=early.__getitem__)
    put_finding(
        figure,
        f"{model}: {best} puts {early[best]:.0%} of the planted faults among the first "
        f"{_EARLY:.0%} of the channels",
    )
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure
