"""DeepXplore's settings one at a time, and coverage by the number of inputs.

`sweep` varies the weights λ1 and λ2 and the step of the search. `numbers` compares the coverage of
growing numbers of inputs of several kinds, and measures how often three networks agree on them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, deepxplore, zoo
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.deepxplore import NeuronCoverage
from nnslicer_tf.deepxplore.constraints import find_constraint
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.deepxplore.networks import networks
from reproduction.deepxplore.retraining import majority_of
from reproduction.deepxplore.settings import NumberSettings, SweepSettings
from reproduction.exactline.measures import fgsm
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

WEIGHTS = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0)
STEPS = (0.1, 0.3, 1.0, 3.0, 10.0)
CONSTRAINT = "light"
THRESHOLDS = (0.0, 0.25, 0.5, 0.75)
NUMBERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
EPSILON = {"mnist": 0.1, "cifar10": 8 / 255}

_LOOKS = {
    "found": {"color": "#0072b2", "marker": "o"},
    "adversarial": {"color": "#d55e00", "marker": "D"},
    "test images": {"color": "#009e73", "marker": "^"},
    "random images": {"color": "#8a8f98", "marker": "s"},
}
_PARAMETERS = {"lambda1": "λ1", "lambda2": "λ2", "step": "step, times the constraint's own"}
_SWEPT = {
    "found, share": ("o-", "#0072b2", "found"),
    "majority is right": ("s--", "#009e73", "majority of the networks is right on them"),
    "coverage": ("^:", "#e69f00", "coverage"),
}
_COVERED = 0.25  # threshold of the coverage that a sweep reports


def sweep(s: SweepSettings) -> ExperimentResult:
    """Vary λ1, λ2 and the step of the search, one at a time; finished rows are kept."""
    ims = networks(s.dataset, s.models)
    data = datasets.load(s.dataset, f"test[:{s.seeds}]")
    keys, weights = ("parameter", "value"), [im.fingerprint for im in ims]
    store = RowStore.of(s, f"sweep-{s.dataset}", keys, "seeds", "seed", weights=weights)
    values = {"lambda1": WEIGHTS, "lambda2": WEIGHTS, "step": STEPS}
    names = [{"parameter": name, "value": value} for name in values for value in values[name]]
    search = partial(_searched, ims, data, s.seed)
    if any(name not in store for name in names):
        search(**names[0])  # compiled for all sizes, which should not count towards the time
    table = store.fill(names, lambda **row: [search(**row)], "Searches").astype({"value": float})
    head = {
        "networks": ", ".join(im.model.name for im in ims),
        "seeds": f"{s.dataset} test[:{s.seeds}], without labels; constraint {CONSTRAINT}",
        "others": "λ1 = 1, λ2 = 0.1, the constraint's step, at most 50 steps",
        "random seed": s.seed,
    }
    name = f"sweep-{s.dataset}"
    title = "DeepXplore with other weights and steps"
    tables = [ExperimentTable(name, table, title, head, note("sweep", threshold=_COVERED))]
    return ExperimentResult(tables, [ExperimentFigure(name, plot_sweep(table))])


def _searched(
    ims: list[InstrumentedModel], data: Dataset, seed: int, parameter: str, value: float
) -> dict[str, float]:
    """Return the metrics of a search with one parameter changed."""
    if parameter == "step":
        value *= find_constraint(CONSTRAINT).step
    coverage = [NeuronCoverage(im, _COVERED) for im in ims]
    options: dict[str, Any] = {parameter: value, "coverage": coverage, "rng": seed}
    found = deepxplore.generate(ims, data.x, CONSTRAINT, progress=False, **options)
    made = found.generated
    row = {"found": int(made.sum()), "found, share": found.success_rate}
    row["mean steps"] = float(found.iterations[made].mean()) if made.any() else np.nan
    row["seconds a difference"] = found.seconds / max(int(made.sum()), 1)
    row["coverage"] = float(np.mean([one.total() for one in coverage]))
    return row | _agreement(found.predictions[made], data.y[found.seed_index][made])


def plot_sweep(table: pd.DataFrame) -> Figure:
    """Plot the share of seeds with a difference, and the coverage, over each parameter."""
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    axes = figure.subplots(1, len(_PARAMETERS), sharey=True)
    for axis, (name, label) in zip(axes, _PARAMETERS.items(), strict=True):
        rows = table[table["parameter"] == name]
        for column, (style, colour, said) in _SWEPT.items():
            axis.plot(rows["value"], rows[column], style, color=colour, label=said)
        axis.set(xlabel=label, ylim=(0, 1), xscale="log" if name == "step" else "linear")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    shares = table.groupby("parameter")["found, share"]
    said = ", ".join(
        f"{low:.0%} to {high:.0%} by {_PARAMETERS[name].partition(',')[0]}"
        for name, low, high in zip(shares.min().index, shares.min(), shares.max(), strict=True)
    )
    return put_finding(figure, f"Seeds with a difference: {said}")


def numbers(s: NumberSettings) -> ExperimentResult:
    """Measure coverage by the number of inputs, and agreement, for several kinds of inputs."""
    ims = networks(s.dataset, s.models)
    data = datasets.load(s.dataset, f"test[:{s.seeds}]")
    found = deepxplore.generate(ims, data.x, CONSTRAINT, rng=s.seed)
    # The inputs by kind.
    attacked = [fgsm(im, data.x, data.y, EPSILON[s.dataset]).astype(np.float32) for im in ims]
    turn = np.arange(len(data)) % len(ims)
    rng = np.random.default_rng(s.seed)
    sets = {
        "found": found.inputs[found.generated],
        "adversarial": np.stack(attacked)[turn, np.arange(len(data))],
        "test images": data.x,
        "random images": rng.uniform(size=data.x.shape).astype(np.float32),
    }
    covered = pd.DataFrame(_covered(ims, sets, s))
    covered = covered.groupby(["inputs", "number", "threshold"], sort=False)["coverage"]
    table = covered.agg(**{"coverage": "mean", "coverage ±": "std"}).reset_index()
    # How often the networks agree on each kind of inputs.
    labels = {"found": data.y[found.seed_index[found.generated]], "random images": None}
    agreed = []
    for inputs, x in sets.items():
        predictions = np.stack([im.predict(x).argmax(axis=1) for im in ims], axis=1)
        agreement = _agreement(predictions, labels.get(inputs, data.y))
        agreed.append({"inputs": inputs, "number": len(x), **agreement})
    head = {
        "networks": ", ".join(f"{im.model.name} {zoo.accuracy(im.model, data):.4f}" for im in ims),
        "inputs": f"{s.dataset} test[:{s.seeds}], {int(found.generated.sum())} found under "
        f"{CONSTRAINT}, FGSM with {EPSILON[s.dataset]:.4g} for each network in turn, uniform noise",
        "draws": s.draws,
        "random seed": s.seed,
    }
    name, title = f"numbers-{s.dataset}", "Coverage by the number of inputs"
    agreement, of_three = pd.DataFrame(agreed), "Agreement of three networks"
    tables = [
        ExperimentTable(name, table, title, head, note("numbers")),
        ExperimentTable(
            f"agreement-{s.dataset}", agreement, of_three, head, note("networks_agree")
        ),
    ]
    return ExperimentResult(tables, [ExperimentFigure(name, plot_numbers(table))])


def _covered(
    ims: list[InstrumentedModel], sets: dict[str, np.ndarray], s: NumberSettings
) -> Iterator[dict[str, object]]:
    """Yield the coverage of the first inputs of every draw, for each number and threshold."""
    for inputs, x in sets.items():
        for draw in track(range(s.draws), inputs):
            order = np.random.default_rng((s.seed, draw)).permutation(len(x))
            coverage = {t: [NeuronCoverage(im, t) for im in ims] for t in THRESHOLDS}
            start = 0
            for number in (n for n in NUMBERS if n <= len(x)):
                for threshold, ones in coverage.items():
                    for one in ones:
                        one.update(x[order[start:number]])
                    total = float(np.mean([one.total() for one in ones]))
                    row = {"inputs": inputs, "number": number, "threshold": threshold}
                    yield {**row, "coverage": total}
                start = number


def _agreement(predictions: np.ndarray, y: np.ndarray | None) -> dict[str, float]:
    """Return shares of inputs by the number of networks that agree."""
    if not len(predictions):
        return dict.fromkeys(("all agree", "all differ", "majority is right"), np.nan)
    kinds = np.array([len(np.unique(row)) for row in predictions])
    return {
        "all agree": float((kinds == 1).mean()),
        "all differ": float((kinds == predictions.shape[1]).mean()),
        "majority is right": np.nan if y is None else float((majority_of(predictions) == y).mean()),
    }


def plot_numbers(table: pd.DataFrame) -> Figure:
    """Plot coverage over the number of inputs, with a panel for each threshold."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, len(THRESHOLDS), sharey=True)
    for axis, threshold in zip(axes, THRESHOLDS, strict=True):
        rows = table[table["threshold"] == threshold]
        for inputs, part in rows.groupby("inputs", sort=False):
            axis.plot(part["number"], part["coverage"], label=inputs, **_LOOKS[str(inputs)])
        axis.set(xscale="log", xlabel="inputs", ylim=(0, 1), title=f"threshold {threshold:g}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of the neurons covered")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    at = table[(table["threshold"] == 0.5) & (table["number"] == 100)].set_index("inputs")
    if len(at):
        shares = ", ".join(f"{inputs} {share:.0%}" for inputs, share in at["coverage"].items())
        put_finding(figure, f"Neurons above 0.5 on a hundred inputs: {shares}")
    return figure
