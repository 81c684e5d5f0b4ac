"""Edges of compiled programs: which method finds those that the program uses.

Ablation is by resampling: every input is paired with another random input, its *reference*, and an
ablated edge gives what it gives for the reference. Every method scores every edge; the area under
the ROC curve measures how well the scores separate the edges that the program uses from all other
candidates. Methods: contributions of slices whose profile is the reference, as counts and as
amounts; EAP (Syed et al., 2023), the first-order effect of an ablation on the answer; EAP-IG (Hanna
et al., 2024), the same with gradients averaged on the way from the reference; ACDC (Conmy et al.,
NeurIPS 2023), which ablates one edge after the other, from the output to the input, unless the
divergence grows by more than a bound; first-order effects that are estimated again after the
weakest edges were ablated.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import tensorflow as tf
from scipy.special import log_softmax
from sklearn.metrics import roc_auc_score

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.circuits.settings import TracrSettings
from reproduction.circuits.tracr_networks import (
    PROGRAMS,
    CompiledProgram,
    check_tracr,
    compile_program,
    layer_of,
)
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

SHARPNESS = 10.0  # the divergence is that of softmax(SHARPNESS · output), as outputs are 0 or 1
BOUNDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)


def tracr(s: TracrSettings) -> ExperimentResult:
    """Compare methods on all programs."""
    check_tracr()
    fields = ("references", "explained", "points", "rounds")
    store = RowStore.of(s, "tracr", ["program", "seed"], *fields)
    names = [{"program": name, "seed": s.seed} for name in s.programs or PROGRAMS]
    rows = store.fill(names, partial(_rows, s), "Programs")
    table = rows.pivot_table("AUROC", "method", "program", sort=False)
    summary = pd.DataFrame({"AUROC, mean": table.mean(axis=1), "least": table.min(axis=1)})
    summary["programs at 1"] = (table > 0.9999).sum(axis=1)
    summary["pairs, mean"] = rows.groupby("method", sort=False)["pairs"].mean()
    head = {
        "programs": f"{table.shape[1]}, compiled by Tracr",
        "samples": f"{s.explained} for each of {s.references} references",
        "ablation": "resampled: the values of another random input, the reference",
        "seed": s.seed,
    }
    title = "Edges that compiled programs use: area under ROC"
    table = ExperimentTable("tracr", summary.reset_index(), title, head, note("tracr"))
    return ExperimentResult([table, ExperimentTable("tracr-programs", rows)])


def _rows(s: TracrSettings, program: str, seed: int) -> list[dict[str, object]]:
    """Return the areas of all methods on one program."""
    network = compile_program(program)
    rng = np.random.default_rng(seed)
    x, answers = network.draw(s.references * s.explained, rng)
    references = network.draw(s.references, rng)[0].repeat(s.explained, axis=0)
    ablated = AblatedProgram(network, x, references)
    outputs = ablated.answers(np.ones(ablated.shape))
    predicted = outputs.argmax(axis=1)
    correct = [
        abs(row[0] - answer) < 0.05 if row.size == 1 else network.values[k] == str(answer)
        for row, k, answer in zip(outputs, predicted, answers, strict=True)
    ]

    truth = network.used(ablated.varies_at, ablated.active_at)
    places, rows = ablated.varies, []
    facts = {"accuracy": np.mean(correct), "used": truth.sum(), "candidates": places.sum()}
    pairs = places.any(axis=1)
    used = truth.any(axis=1)[pairs]
    for method, scores in _methods(network, ablated, s):
        whole = np.where(places, scores, -np.inf).max(axis=1)
        area = roc_auc_score(truth[places], scores[places])
        of_pairs = np.nan if used.all() else roc_auc_score(used, whole[pairs])
        rows.append({"method": method, **facts, "AUROC": area, "pairs": of_pairs})
    return rows


class AblatedProgram:
    """A program whose edges can be ablated, for the codes of all samples and of their references.

    `varies_at` and `active_at`, `(edges, LENGTH, dimensions)` bool, say where a writer's output
    varies between samples, and where it is ever nonzero. `varies`, `(edges, dimensions)`, has the
    candidates.
    """

    def __init__(self, network: CompiledProgram, x: np.ndarray, references: np.ndarray) -> None:
        self._network, self.x, self.references = network, x, references
        values: dict[tuple[str, str], np.ndarray] = {}

        def note(writer: str, reader: str, written: tf.Tensor) -> tf.Tensor:
            values[writer, reader] = written.numpy()
            return written

        self._embedded, self._reference = network.embed(x), network.embed(references)
        network.outputs(self._embedded, note)
        self.varies_at = np.stack([np.ptp(values[edge], 0) > 1e-4 for edge in network.edges])
        self.active_at = np.stack([np.abs(values[e]).max(axis=0) > 1e-4 for e in network.edges])
        network.outputs(self._reference, note)
        self._ablated = np.stack([values[edge] for edge in network.edges])
        self.varies = self.varies_at.any(axis=1)
        self.shape = self.varies.shape  # of a mask
        self.outputs = tf.function(self._outputs, autograph=False)
        self._gradient = tf.function(self._gradient_of_mask, autograph=False)

    def _outputs(self, embedded: object, mask: object) -> object:
        mask, ablated = tf.cast(mask, "float32"), tf.constant(self._ablated)
        places = {edge: i for i, edge in enumerate(self._network.edges)}

        def edge(writer: str, reader: str, values: tf.Tensor) -> tf.Tensor:
            i = places[writer, reader]
            return ablated[i] + mask[..., i, None, :] * (values - ablated[i])

        return self._network.outputs(embedded, edge)

    def _gradient_of_mask(self, embedded: object, mask: object, chosen: object) -> object:
        with tf.GradientTape() as tape:
            tape.watch(mask)
            outputs = self._outputs(embedded, mask)
            answer = tf.gather(outputs, chosen, axis=1, batch_dims=1)
        return tape.gradient(answer, mask)

    def effects(self, chosen: np.ndarray, mask: np.ndarray, points: int = 1) -> np.ndarray:
        """Return the first-order effects of ablations on outputs, `(samples, edges, dimensions)`.

        Gradients are averaged over `points` on the way from the reference; 1 takes the input
        itself. `mask`: the edges that are left.
        """
        masks = tf.constant(np.broadcast_to(mask, (len(chosen), *self.shape)), tf.float32)
        total = 0.0
        for k in range(points):
            share = 1.0 if points == 1 else (k + 0.5) / points
            at = self._reference + share * (self._embedded - self._reference)
            total += self._gradient(at, masks, chosen).numpy() / points
        return total

    def answers(self, mask: np.ndarray) -> np.ndarray:
        """Return the outputs with a mask, `(samples, values)`."""
        return self.outputs(self._embedded, mask).numpy()

    def divergence(self, whole: np.ndarray, mask: np.ndarray) -> float:
        """Return the mean divergence of the outputs with a mask from the whole outputs."""
        outputs = self.answers(mask)
        if outputs.shape[1] == 1:
            return float(np.mean((outputs - whole) ** 2))
        p, q = (log_softmax(SHARPNESS * v, axis=1) for v in (whole, outputs))
        return float(np.mean(np.sum(np.exp(p) * (p - q), axis=1)))


def _methods(
    network: CompiledProgram, ablated: AblatedProgram, s: TracrSettings
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each method, and its scores `(edges, dimensions)`."""
    im = InstrumentedModel(network.model())
    predicted = ablated.answers(np.ones(ablated.shape)).argmax(axis=1)
    names = [layer_of(*edge) for edge in network.edges]
    readings = {"counts, θ = 0": (0.0, "count"), "counts, θ = 0.3": (0.3, "count")}
    readings["amounts"] = 0.0, "amount"
    for what, (theta, contribution) in readings.items():
        total = np.zeros(ablated.shape)
        for reference in range(s.references):
            rows = slice(reference * s.explained, (reference + 1) * s.explained)
            profile = Profile.from_data(im, ablated.references[rows][:1], progress=False)
            options = {"progress": False, "contribution": contribution}
            slicer = Slicer(im, profile, theta, workers=0, **options)
            for one in slicer.slice_each(ablated.x[rows], kernels=(), operations=names):
                total += [np.abs(one.neurons[name]).sum(axis=0) for name in names]
        yield f"slices, {what}", total
    whole = np.ones(ablated.shape)
    yield "EAP", np.abs(ablated.effects(predicted, whole)).mean(axis=0)
    yield "EAP-IG", np.abs(ablated.effects(predicted, whole, s.points)).mean(axis=0)
    yield "first-order effects, in rounds", _in_rounds(ablated, predicted, s.rounds)
    yield "ACDC", _acdc(ablated)


def _in_rounds(ablated: AblatedProgram, predicted: np.ndarray, rounds: int) -> np.ndarray:
    """Return the place at which each edge is ablated when the weakest go first, in rounds."""
    mask, rank = ablated.varies.astype(float), np.zeros(ablated.shape)
    count = int(mask.sum())
    for left in np.unique(np.geomspace(1, count, rounds + 1).astype(int))[::-1][1:]:
        effects = np.abs(ablated.effects(predicted, mask)).mean(axis=0)
        effects[mask == 0] = -np.inf
        order = np.argsort(effects, axis=None)[::-1]
        leaving = [k for k in order[left:] if mask.flat[k]]
        for place, k in enumerate(leaving):
            rank.flat[k] = count - int(mask.sum()) + (len(leaving) - place)
        mask.flat[leaving] = 0
    rank[mask > 0] = count + 1
    return rank


def _acdc(ablated: AblatedProgram) -> np.ndarray:
    """Return the largest bound at which ACDC keeps each edge."""
    whole = ablated.answers(np.ones(ablated.shape))
    scores = np.zeros(ablated.shape)
    candidates = np.argwhere(ablated.varies)[::-1]  # edges of late readers first
    for bound in BOUNDS:
        mask = ablated.varies.astype(float)
        now = ablated.divergence(whole, mask)
        for edge, dimension in candidates:
            mask[edge, dimension] = 0
            without = ablated.divergence(whole, mask)
            if without - now < bound:
                now = without
            else:
                mask[edge, dimension] = 1
        scores[mask > 0] = bound
    return scores
