"""A comparison of methods that find the synapses of a planted circuit.

Every method scores every synapse for every sample; the score of a synapse is the mean over the
samples of its absolute value, or, *netted*, the absolute value of the mean. The area under the ROC
curve measures how well the scores separate planted from dead synapses.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.amounts import Amounts
from reproduction.circuits import recurrent_networks, transformer_networks
from reproduction.circuits.recurrent_networks import Planted
from reproduction.circuits.settings import (
    CircuitSettings,
    RecurrentCircuitSettings,
    TransformerCircuitSettings,
)
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

_GOAL = 0.95
NET = "netted"

Scores = dict[str, np.ndarray]


def recurrent(s: RecurrentCircuitSettings) -> ExperimentResult:
    """Find parity, a counter and a first of kind in recurrent networks."""
    circuits = recurrent_networks.CIRCUITS
    return compare("recurrent", circuits, recurrent_networks.plant, s, "dead units, 10 steps")


def transformers(s: TransformerCircuitSettings) -> ExperimentResult:
    """Find copies, induction and a first of kind in transformers."""
    circuits, networks = transformer_networks.CIRCUITS, "dead channels and units, 10 tokens"
    return compare("transformer", circuits, transformer_networks.plant, s, networks)


def compare(
    what: str,
    circuits: Sequence[str],
    plant: Callable[[str, int, int], Planted],
    s: CircuitSettings,
    networks: str,
) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes."""
    store = RowStore.of(
        s.work,
        what,
        ["circuit", "seed"],
        {"readings": repr(s.readings)} | s.values("dead", "samples", "explained", "points"),
    )
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
    # The means over all networks, against each sort of dead units.
    sorts = [column for column in found if column.startswith("against")]
    order = found["method"].drop_duplicates()
    table = found.pivot_table("AUROC", "method", "circuit", sort=False).loc[order]
    table["all"] = found.groupby("method")["AUROC"].mean()
    table["least"] = found.groupby("method")["AUROC"].min()
    table[NET] = found.groupby("method")[NET].mean()
    accuracy = found.groupby("circuit")["accuracy"].mean().to_dict()
    last = {**accuracy, "all": found["accuracy"].mean(), "least": found["accuracy"].min()}
    last[NET] = last["all"]
    table.loc["(accuracy of the networks)"] = last
    return ExperimentResult(
        [
            ExperimentTable(
                what, table.reset_index().rename_axis(columns=None), title, head, _TEXT
            ),
            ExperimentTable(
                f"{what}-dead",
                found.groupby("method", sort=False)[sorts].mean().reset_index(),
                dead,
                head,
            ),
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
    logits = planted.model.predict(x, verbose=0)
    accuracy = float((logits.argmax(axis=1) == planted.answer(x)).mean())
    return [
        {"method": method, "accuracy": accuracy, **_areas(planted, scores)}
        for method, scores in _methods(planted, usual, x, s)
    ]


_TEXT = (
    "Means over the networks of a circuit; *least* is the worst single network, *netted* the mean "
    "over all networks if scores of opposite signs cancel between samples. Synapses whose "
    "weight is 0 are left out. Accuracy is that of the networks at the function that was planted."
)


def _methods(
    planted: Planted, usual: np.ndarray, x: np.ndarray, s: CircuitSettings
) -> Iterator[tuple[str, Scores]]:
    """Yield the name of each method, and its scores by kernel, `(samples, *kernel shape)`."""
    im = InstrumentedModel(planted.model)
    profile = Profile.from_data(im, usual, progress=False)
    of_channels = profile.per_channel()
    for reading in s.readings:
        means = of_channels if reading.of_channels else profile
        for theta in reading.thetas:
            # The contributions of the synapses of each sample.
            options = {"product": reading.product, "relative_to": reading.relative_to}
            slicer = Slicer(im, means, theta, workers=0, progress=False, **options)
            each = slicer.slice_each(x, operations=())
            ends = np.cumsum([int(np.prod(shape)) for shape in each.kernels.values()])[:-1]
            parts = np.split(each.to_array(), ends, axis=1)
            by_slices = {
                n: part.reshape(len(x), *each.kernels[n])
                for n, part in zip(each.kernels, parts, strict=True)
            }
            yield f"{reading.name}, θ = {theta:g}", by_slices
    names, variables = list(im.kernels), [k.variable() for k in im.kernels.values()]
    predicted = planted.model.predict(x, verbose=0).argmax(axis=1)
    if not any(kind_of(operation).through_time for operation in im.operations):
        yield "amounts", Amounts(im, of_channels, kernels=names)(x, predicted)[1]
    gradients_at = _weight_gradients(planted.model, variables)
    yield "gradient × weight", _scored(names, variables, gradients_at(x, predicted))
    baseline = usual.mean(axis=0)
    places = (np.arange(s.points) + 0.5) / s.points
    gradients = [
        gradients_at((baseline + p * (x - baseline)).astype("f4"), predicted) for p in places
    ]
    averaged = [np.mean(of_kernel, axis=0) for of_kernel in zip(*gradients, strict=True)]
    yield "integrated gradients", _scored(names, variables, averaged)
    yield (
        "one synapse deleted",
        dict(zip(names, deletion_effects(planted.model, variables, x, predicted), strict=True)),
    )
    yield "magnitude", {n: np.asarray(v)[None] for n, v in zip(names, variables, strict=True)}


def deletion_effects(
    model: keras.Model, variables: list, x: np.ndarray, chosen: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield, kernel by kernel, how much the chosen logits fall when a single weight is set to 0."""
    import tensorflow as tf

    @tf.function
    def logits() -> tf.Tensor:
        return tf.gather(model(x, training=False), chosen, axis=1, batch_dims=1)

    whole = logits().numpy()
    for variable in variables:
        kept = np.array(variable)
        fell = np.zeros((len(x), *kept.shape), np.float32)
        for place in zip(*np.nonzero(kept), strict=True):
            left = kept.copy()
            left[place] = 0
            variable.assign(left)
            fell[(slice(None), *place)] = whole - logits().numpy()
        variable.assign(kept)
        yield fell


def _scored(names: list[str], variables: list, gradients: list[np.ndarray]) -> Scores:
    pairs = zip(names, variables, gradients, strict=True)
    return {n: g * np.asarray(v) for n, v, g in pairs}


def _weight_gradients(
    model: keras.Model, variables: list
) -> Callable[[np.ndarray, np.ndarray], list[np.ndarray]]:
    """Return a function from samples and logit indices to per-sample gradients.

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
    """Return the AUROC over all synapses with a weight, and against each sort of dead ones."""
    kernels = InstrumentedModel(planted.model).kernels
    used = {name: kernel.kernel() != 0 for name, kernel in kernels.items()}

    def joined(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([arrays[name][used[name]] for name in kernels])

    truth = joined(planted.planted)
    found = joined({name: np.abs(values).mean(axis=0) for name, values in scores.items()})
    netted = joined({name: np.abs(values.mean(axis=0)) for name, values in scores.items()})
    areas = {name: float(roc_auc_score(truth, a)) for name, a in (("AUROC", found), (NET, netted))}
    for sort, of_kernels in planted.dead.items():
        chosen = truth | joined(of_kernels)
        areas[f"against {sort}"] = float(roc_auc_score(truth[chosen], found[chosen]))
    return areas


def plot(found: pd.DataFrame) -> Figure:
    """Draw the AUROC of each method on each circuit."""
    methods = list(found["method"].drop_duplicates())[::-1]
    table = found.pivot_table("AUROC", "method", "circuit", sort=False).loc[methods]
    figure = Figure(figsize=(8, 1.2 + 0.24 * len(methods)), layout="constrained")
    axis = figure.subplots()
    rows = np.arange(len(methods))
    means = found.groupby("method")["AUROC"].mean().loc[methods]
    axis.hlines(rows, 0, means, color="lightgrey", linewidth=6, zorder=0)
    for marker, circuit in zip("osD^", table, strict=False):
        axis.scatter(table[circuit], rows, s=22, marker=marker, label=circuit)
    axis.axvline(_GOAL, color="black", linewidth=0.8, linestyle="--")
    axis.annotate(
        f"goal {_GOAL}",
        (_GOAL, 1),
        (0, 3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
    axis.set_yticks(rows, methods, fontsize=8)
    axis.set_xlabel("area under ROC, synapses; bars: mean over the networks")
    axis.set_xlim(0, 1.02)
    put_finding(
        figure, f"Planted synapses are found best by {means.idxmax()}: area {means.max():.2f}"
    )
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
