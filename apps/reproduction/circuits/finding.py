"""A comparison of methods that find the synapses of a planted circuit.

Every method scores every synapse for every sample; the score of a synapse is the mean over the
samples of its absolute value, or, *netted*, the absolute value of the mean. The area under the ROC
curve measures how well the scores separate planted from dead synapses.
"""

from collections.abc import Iterable, Iterator
from types import ModuleType

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.amounts import amounts
from reproduction.circuits import recurrent_networks, settings, transformer_networks
from reproduction.circuits.recurrent_networks import Planted
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

_GOAL = 0.95
NET = "netted"

Scores = dict[str, np.ndarray]


def recurrent(s: settings.RecurrentCircuitSettings) -> ExperimentResult:
    """Find parity, a counter and a first of kind in recurrent networks."""
    return compare("recurrent", recurrent_networks, s, "dead units, 10 steps")


def transformers(s: settings.TransformerCircuitSettings) -> ExperimentResult:
    """Find copies, induction and a first of kind in transformers."""
    return compare("transformer", transformer_networks, s, "dead channels and units, 10 tokens")


def compare(
    what: str, module: ModuleType, s: settings.CircuitSettings, networks: str
) -> ExperimentResult:
    """Compare slices at several θ with gradients, integrated gradients and magnitudes."""

    def areas(circuit: str, seed: int) -> list[dict[str, object]]:
        """Return the areas of all methods on one network."""
        planted = module.plant(circuit, s.dead, seed)
        rng = np.random.default_rng(seed)
        usual, x = planted.draw(s.samples, rng), planted.draw(s.explained, rng)
        logits = planted.model.predict(x, verbose=0)
        accuracy = float((logits.argmax(axis=1) == planted.answer(x)).mean())
        methods = _methods(planted, usual, x, s)
        return [{"method": m, "accuracy": accuracy, **_areas(planted, of)} for m, of in methods]

    fields, readings = ("dead", "samples", "explained", "points"), repr(s.readings)
    store = RowStore.of(s, what, ["circuit", "seed"], *fields, readings=readings)
    seeds = range(s.seed, s.seed + s.networks)
    names = [{"circuit": name, "seed": seed} for name in module.CIRCUITS for seed in seeds]
    found = store.fill(names, areas, "Networks")

    # Means over the networks of a circuit, over all, and against each sort of dead units.
    by_method = found.groupby("method", sort=False)
    table = found.pivot_table("AUROC", "method", "circuit", sort=False)
    table = table.loc[found["method"].drop_duplicates()]
    table["all"] = by_method["AUROC"].mean()
    table["least"] = by_method["AUROC"].min()
    table[NET] = by_method[NET].mean()
    accuracy, mean = found.groupby("circuit")["accuracy"].mean(), found["accuracy"].mean()
    last = {"all": mean, "least": found["accuracy"].min(), NET: mean}
    table.loc["(accuracy of the networks)"] = accuracy.to_dict() | last
    table = table.reset_index().rename_axis(columns=None)
    sorts = [column for column in found if column.startswith("against")]
    head = {
        "networks": f"{s.networks} of each circuit, {s.dead} {networks}",
        "samples": f"{s.explained} explained, profile of {s.samples} others",
        "seeds": f"{s.seed} … {s.seed + s.networks - 1}",
    }
    title = f"Planted circuits in {what} networks: area under ROC of planted synapses"
    dead = f"Planted circuits in {what} networks: AUROC against each sort of dead weight"
    against = by_method[sorts].mean().reset_index()
    tables = [
        ExperimentTable(what, table, title, head, note("planted")),
        ExperimentTable(f"{what}-dead", against, dead, head),
        ExperimentTable(f"{what}-networks", found),
    ]
    return ExperimentResult(tables, [ExperimentFigure(what, plot(found))])


def _methods(
    planted: Planted, usual: np.ndarray, x: np.ndarray, s: settings.CircuitSettings
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
            each = list(slicer.slice_each(x, operations=()))
            by_kernel = {n: np.stack([one.synapses[n] for one in each]) for n in each[0].synapses}
            yield f"{reading.name}, θ = {theta:g}", by_kernel
    names, variables = list(im.kernels), [k.variable() for k in im.kernels.values()]
    weights = [np.array(variable) for variable in variables]
    predicted = planted.model.predict(x, verbose=0).argmax(axis=1)
    yield "amounts", amounts(im, of_channels, x, predicted, kernels=names)

    @tf.function(autograph=False)
    def compute(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = tf.gather(planted.model(x), predicted, axis=1, batch_dims=1)
        return tape.jacobian(logits, [v.value for v in variables])

    def gradients_of(x: np.ndarray) -> list[np.ndarray]:
        """Return the gradients of the predicted logits, `(samples, *kernel shape)` each."""
        return [gradient.numpy() for gradient in compute(x)]

    def times_weights(gradients: Iterable[np.ndarray]) -> Scores:
        pairs = zip(names, gradients, weights, strict=True)
        return {name: gradient * weight for name, gradient, weight in pairs}

    yield "gradient × weight", times_weights(gradients_of(x))
    baseline = usual.mean(axis=0)
    places = (np.arange(s.points) + 0.5) / s.points
    gradients = [gradients_of((baseline + p * (x - baseline)).astype("f4")) for p in places]
    averaged = (np.mean(of_kernel, axis=0) for of_kernel in zip(*gradients, strict=True))
    yield "integrated gradients", times_weights(averaged)
    deleted = deletion_effects(planted.model, variables, x, predicted)
    yield "one synapse deleted", dict(zip(names, deleted, strict=True))
    yield "magnitude", {n: weight[None] for n, weight in zip(names, weights, strict=True)}


def deletion_effects(
    model: keras.Model, variables: list, x: np.ndarray, chosen: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield, kernel by kernel, how much the chosen logits fall when a single weight is set to 0."""

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
    above = axis.get_xaxis_transform()
    axis.text(_GOAL, 1.02, f"goal {_GOAL}", transform=above, ha="center", fontsize=8)
    axis.set_yticks(rows, methods, fontsize=8)
    axis.set_xlabel("area under ROC, synapses; bars: mean over the networks")
    axis.set_xlim(0, 1.02)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    finding = f"Planted synapses are found best by {means.idxmax()}: area {means.max():.2f}"
    return put_finding(figure, finding)
