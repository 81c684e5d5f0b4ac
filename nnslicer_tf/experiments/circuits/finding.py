"""A comparison of methods that find the synapses of a planted circuit.

Every method scores every synapse for every sample; the score of a synapse is the mean over the
samples of its absolute value. The area under the ROC curve says how well the scores tell planted
from dead synapses.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from nnslicer_tf._progress import track
from nnslicer_tf.engine.rows import RowStore
from nnslicer_tf.experiments.circuits.recurrent_networks import Planted
from nnslicer_tf.experiments.circuits.settings import CircuitSettings
from nnslicer_tf.experiments.plots import put_finding
from nnslicer_tf.experiments.result import ExperimentFigure, ExperimentResult, ExperimentTable
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.palette import METHODS
from nnslicer_tf.slicing import Profile, Slicer

_GOAL = 0.95

Scores = dict[str, np.ndarray]


def compare(
    what: str,
    circuits: Sequence[str],
    plant: Callable[[str, int, int], Planted],
    s: CircuitSettings,
    networks: str,
) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes.

    Args:
        what: What the networks are, which is also the name of the tables.
        circuits: Names of the circuits.
        plant: Maps a circuit's name, the number of dead units and a seed to a network.
        s: Settings.
        networks: What the head of the tables says of them.
    """
    sizes = f"{s.dead}-{s.samples}-{s.explained}-{s.points}-{'-'.join(map(str, s.thetas))}"
    store = RowStore(s.work / f"{what}-{sizes}.csv", ["circuit", "seed"])
    drawn = [(name, seed) for name in circuits for seed in range(s.seed, s.seed + s.networks)]
    parts = []
    for name, seed in track(drawn, "Networks", progress=True):
        key = {"circuit": name, "seed": seed}
        parts.append(store.complete(key, partial(_rows, plant, name, seed, s)))
    found = pd.concat(parts, ignore_index=True).astype({"seed": int})
    head = {
        "networks": f"{s.networks} of each circuit, {s.dead} {networks}",
        "samples": f"{s.explained} explained, profile of {s.samples} others",
        "seeds": f"{s.seed} … {s.seed + s.networks - 1}",
    }
    title = f"Planted circuits in {what} networks: area under ROC of planted synapses"
    dead = f"Planted circuits in {what} networks: AUROC against each sort of dead weight"
    return ExperimentResult(
        [
            ExperimentTable(what, _summary(found), title, head, _TEXT),
            ExperimentTable(f"{what}-dead", _by_sort(found), dead, head),
            ExperimentTable(f"{what}-networks", found),
        ],
        [ExperimentFigure(what, plot(found))],
    )


def _rows(
    plant: Callable[[str, int, int], Planted], name: str, seed: int, s: CircuitSettings
) -> list[dict[str, object]]:
    """Return the areas of all methods on one network."""
    planted = plant(name, s.dead, seed)
    rng = np.random.default_rng(seed)
    usual, x = planted.draw(s.samples, rng), planted.draw(s.explained, rng)
    accuracy = _accuracy(planted, x)
    return [
        {"method": method, "accuracy": accuracy, **_areas(planted, scores)}
        for method, scores in _methods(planted, usual, x, s)
    ]


_TEXT = (
    "Means over the networks of a circuit; *least* is the worst single network. Synapses whose "
    "weight is 0 are left out. Accuracy is that of the networks at the function that was planted."
)


def _by_sort(found: pd.DataFrame) -> pd.DataFrame:
    """Return the means over all networks, against each sort of dead units."""
    sorts = [column for column in found if column.startswith("against")]
    return found.groupby("method", sort=False)[sorts].mean().reset_index()


def _accuracy(planted: Planted, x: np.ndarray) -> float:
    logits = planted.model.predict(x, verbose=0)
    return float((logits.argmax(axis=1) == planted.answer(x)).mean())


def _methods(
    planted: Planted, usual: np.ndarray, x: np.ndarray, s: CircuitSettings
) -> Iterator[tuple[str, Scores]]:
    """Yield the name of each method, and its scores by kernel."""
    im = InstrumentedModel(planted.model)
    profile = Profile.from_data(im, usual, progress=False)
    of_channels = profile.per_channel()
    for name, means, thetas in (
        ("slices", profile, s.thetas),
        ("slices, means of channels", of_channels, s.channel_thetas),
    ):
        for theta in thetas:
            slicer = Slicer(im, means, theta, workers=0, progress=False)
            each = slicer.slice_each(x, operations=())
            matrix = abs(each.to_array()).mean(axis=0)
            ends = np.cumsum([int(np.prod(shape)) for shape in each.kernels.values()])[:-1]
            parts = np.split(matrix, ends)
            yield (
                f"{name}, θ = {theta:g}",
                {n: p.reshape(each.kernels[n]) for n, p in zip(each.kernels, parts, strict=True)},
            )
    names, variables = list(im.kernels), [k.variable() for k in im.kernels.values()]
    gradients_at = _weight_gradients(planted.model, variables)
    predicted = planted.model.predict(x, verbose=0).argmax(axis=1)
    yield "gradient × weight", _scored(names, variables, gradients_at(x, predicted))
    baseline = usual.mean(axis=0)
    places = (np.arange(s.points) + 0.5) / s.points
    gradients = [
        gradients_at((baseline + p * (x - baseline)).astype("f4"), predicted) for p in places
    ]
    averaged = [np.mean(of_kernel, axis=0) for of_kernel in zip(*gradients, strict=True)]
    yield "integrated gradients", _scored(names, variables, averaged)
    yield "magnitude", {n: np.abs(np.asarray(v)) for n, v in zip(names, variables, strict=True)}


def _scored(names: list[str], variables: list, gradients: list[np.ndarray]) -> Scores:
    pairs = zip(names, variables, gradients, strict=True)
    return {n: np.abs(g * np.asarray(v)).mean(axis=0) for n, v, g in pairs}


def _weight_gradients(
    model: keras.Model, variables: list
) -> Callable[[np.ndarray, np.ndarray], list[np.ndarray]]:
    """Return a function from samples and logits' indices to the gradients of each sample.

    They are `(samples, *kernel shape)`, one array for each of the variables.
    """
    import tensorflow as tf

    @tf.function(autograph=False)
    def compute(x: tf.Tensor, chosen: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = tf.gather(model(x), chosen, axis=1, batch_dims=1)
        return tape.jacobian(logits, [v.value for v in variables])

    return lambda x, chosen: [g.numpy() for g in compute(x, chosen)]


def _areas(planted: Planted, scores: Scores) -> dict[str, float]:
    """Return the area under ROC over all synapses with a weight, and against each sort of dead."""
    kernels = InstrumentedModel(planted.model).kernels
    used = {name: kernel.kernel() != 0 for name, kernel in kernels.items()}

    def joined(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([arrays[name][used[name]] for name in kernels])

    truth, found = joined(planted.planted), joined(scores)
    areas = {"AUROC": float(roc_auc_score(truth, found))}
    for sort, of_kernels in planted.dead.items():
        chosen = truth | joined(of_kernels)
        areas[f"against {sort}"] = float(roc_auc_score(truth[chosen], found[chosen]))
    return areas


def _summary(found: pd.DataFrame) -> pd.DataFrame:
    order = found["method"].drop_duplicates()
    table = found.pivot_table("AUROC", "method", "circuit", sort=False).loc[order]
    table["all"] = found.groupby("method")["AUROC"].mean()
    table["least"] = found.groupby("method")["AUROC"].min()
    accuracy = found.groupby("circuit")["accuracy"].mean().to_dict()
    last = {**accuracy, "all": found["accuracy"].mean(), "least": found["accuracy"].min()}
    table.loc["(accuracy of the networks)"] = last
    return table.reset_index().rename_axis(columns=None)


def plot(found: pd.DataFrame) -> Figure:
    """Draw the AUROC of each method, a group of bars a circuit.

    Args:
        found: A row for each network and method.
    """
    order = found["method"].drop_duplicates()
    table = found.pivot_table("AUROC", "circuit", "method", sort=False)[list(order)]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / table.shape[1]
    colours = _colours(list(table))
    for k, method in enumerate(table):
        places = np.arange(len(table)) + (k - table.shape[1] / 2 + 0.5) * width
        axis.bar(places, table[method], width, label=method, color=colours[method])
    axis.axhline(_GOAL, color="black", linewidth=0.8, linestyle="--")
    axis.annotate(f" goal {_GOAL}", (0, _GOAL), xycoords=("axes fraction", "data"), fontsize=8)
    axis.set_xticks(range(len(table)), table.index)
    axis.set_ylabel("area under ROC, synapses")
    axis.set_ylim(0, 1.02)
    means = found.groupby("method")["AUROC"].mean()
    put_finding(
        figure, f"Planted synapses are found best by {means.idxmax()}: area {means.max():.2f}"
    )
    figure.legend(loc="outside right center", fontsize=8)
    return figure


def _colours(methods: list[str]) -> dict[str, Any]:
    """Return shades of one colour for slices at several θ, and those of other methods."""
    found: dict[str, Any] = {}
    for family, shades in (("slices, means of channels", "Purples"), ("slices, θ", "Blues")):
        own = [method for method in methods if method.startswith(family)]
        steps = np.linspace(0.35, 0.95, len(own))
        found |= dict(zip(own, colormaps[shades](steps), strict=True))
    others = {"gradient × weight": "gradient × input", "magnitude": "Weight"}
    return found | {m: METHODS[others.get(m, m)] for m in methods if m not in found}
