"""Decisive heads and synapses: deletion in the order of several methods, sentence by sentence.

A deleted head's output is replaced by its mean; a deleted synapse has the weight 0. A good order
makes the predicted class's lead fall fast. `words` does the same with words.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
from keras import ops

from nnslicer_tf import zoo
from nnslicer_tf.datasets import texts
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.kinds.weighted_sum import sample_gradients
from nnslicer_tf.slicing import Profile, Slicer, SliceSet
from reproduction.amounts import amounts
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.sentences.settings import PartSettings
from reproduction.sentences.words import (
    drawn_sentences,
    head_of,
    lead,
    p_values,
    profiled_sentences,
    rose,
)

MODEL = "text_transformer"
THETAS = (0.0, 0.1, 0.3)
SHARES = (0.001, 0.003, 0.01, 0.03, 0.1)


def parts(s: PartSettings) -> ExperimentResult:
    """Compare orders of heads and of synapses."""
    im = InstrumentedModel(zoo.load(MODEL))
    x = drawn_sentences(s, s.split)
    profile = Profile.from_data(im, profiled_sentences(s))
    head = head_of(s, MODEL, len(x), s.split)
    labels = im.logits(x).argmax(axis=1)
    whole, rows = lead(im.logits(x), labels), []
    for method, scores in head_scores(im, profile, x, labels, s.seed).items():
        place = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
        for count in range(1, scores.shape[1]):
            left = lead(without_heads(im, profile, x, place < count), labels) / whole
            row = {"method": method, "deleted": count}
            rows += [{"sentence": i, **row, "lead": v} for i, v in enumerate(left)]

    methods = synapse_scores(im, profile, x, labels)
    without_synapses = partial(_deleted_synapses, im, x, labels, methods, s.seed)

    fields = ("split", "sentences", "profile", "seed")
    store = RowStore.of(s, "synapses", ["sentence"], *fields, weights=im.fingerprint)
    sentences = [{"sentence": i} for i in range(len(x))]
    synapses = store.fill(sentences, without_synapses, "Sentences")
    tables = []
    for name, found, what in (
        ("heads", pd.DataFrame(rows), "By the number of heads deleted"),
        ("synapses", synapses, "By the share of synapses deleted"),
    ):
        table = found.pivot_table(index="method", columns="deleted", values="lead", sort=False)
        each = found.pivot_table(index="sentence", columns="method", values="lead")
        table["mean"] = each.mean()
        best = table["mean"].idxmin()
        table["p"] = p_values(each, table.index, best)
        table = table.rename(columns=str).rename_axis(columns=None).reset_index()
        title = f"{name.capitalize()} deleted, {MODEL} on SST-2"
        tables.append(ExperimentTable(f"{name}_leads", found))
        tables.append(ExperimentTable(name, table, title, head, note("parts", what=what)))
    return ExperimentResult(tables)


def head_scores(
    im: InstrumentedModel, profile: Profile, x: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Return how much each head supports a class by each method, `(samples, heads)`."""
    names = contexts(im)
    found = {}
    for name, slicer in _slicers(im, profile).items():
        each = slicer.slice_each(x, kernels=(), operations=names)
        totals = [np.concatenate([one.neurons[n].sum(axis=(0, 2)) for n in names]) for one in each]
        found[name] = np.stack(totals) * rose(im, profile, x, labels)[:, None]
    own = amounts(im, profile, x, labels, names)
    found["amounts"] = np.concatenate([own[n].sum(axis=(1, 3)) for n in names], axis=1)
    values, slopes = im.capture(x, of=names), im.gradients(x, of=labels.tolist(), wrt=names)
    effects = [((values[n] - profile.means[n]) * slopes[n]).sum(axis=(1, 3)) for n in names]
    found["gradient × change"] = np.concatenate(effects, axis=1)
    there = (x != texts.PADDING)[:, None, :]
    attention = im.capture(x, of=[n.replace("/context", "/probabilities") for n in names]).values()
    # As in Voita et al., ACL 2019.
    largest = [(a.max(axis=-1) * there).sum(axis=-1) / there.sum(axis=-1) for a in attention]
    found["largest attention"] = np.concatenate(largest, axis=1)
    found["random"] = np.random.default_rng(seed).random((len(x), len(totals[0])))
    return found


def contexts(im: InstrumentedModel) -> list[str]:
    """Return the operations with the heads' outputs, `(positions, heads, features)`."""
    return [o.name for o in im.operations if o.name.endswith("/context")]


def without_heads(
    im: InstrumentedModel, profile: Profile, x: np.ndarray, deleted: np.ndarray
) -> np.ndarray:
    """Return the logits with some heads' outputs replaced by their means.

    `deleted`: which heads to replace, bool `(samples, heads of all layers)`.
    """
    names = contexts(im)
    ends = np.cumsum([im[name].shape[1] for name in names])[:-1]
    gone = dict(zip(names, np.split(deleted, ends, axis=1), strict=True))

    def change(name: str, value: object) -> object:
        if name not in gone:
            return value
        mean = ops.convert_to_tensor(profile.means[name].astype(np.float32))
        return ops.where(ops.convert_to_tensor(gone[name][:, None, :, None]), mean, value)

    found = im.graph.run(ops.convert_to_tensor(x.astype(np.float32)), [im.logit_operation], change)
    return ops.convert_to_numpy(found[im.logit_operation])


def synapse_scores(
    im: InstrumentedModel, profile: Profile, x: np.ndarray, labels: np.ndarray
) -> dict[str, Callable[[int], np.ndarray]]:
    """Return by method a function that scores a sample's synapses, kernels as in `deletable`."""
    names = deletable(im)
    signs = rose(im, profile, x, labels)

    weights = {name: im.kernels[name].kernel() for name in names}
    sizes = np.abs(_joined(weights, names))

    def by_slice(each: SliceSet, factors: np.ndarray | float = 1.0) -> Callable[[int], np.ndarray]:
        return lambda i: _joined(each[i].synapses, names) * factors * signs[i]

    found = {}
    for name, slicer in _slicers(im, profile).items():
        each = slicer.slice_each(x, kernels=names, operations=())
        found[name] = by_slice(each)
        found[f"{name}, × |weight|"] = by_slice(each, sizes)
    own = amounts(im, profile, x, labels, kernels=names)
    found["amounts"] = lambda i: _joined({n: own[n][i] for n in names}, names)
    gradients = {}
    sums = [o for o in im.operations if o.kind == "weighted_sum"]
    slopes = im.gradients(x, of=labels.tolist(), wrt=[o.name for o in sums])
    values = im.capture(x, of=[o.inputs[0] for o in sums])
    for o in sums:
        read, slope = (ops.convert_to_tensor(v) for v in (values[o.inputs[0]], slopes[o.name]))
        by_tap = ops.convert_to_numpy(sample_gradients(o, read, slope))
        gradients[o.params.name] = np.stack([o.params.to_kernel(g) for g in by_tap])
    found["gradient × weight"] = lambda i: _joined(
        {name: gradients[name][i] * weights[name] for name in names}, names
    )
    found["magnitude"] = lambda i: sizes
    return found


def _slicers(im: InstrumentedModel, profile: Profile) -> dict[str, Slicer]:
    """Return slicers by the name of their reading."""
    readings = [("value", "slice", theta) for theta in THETAS]
    readings += [("midpoint", "slice, midpoints", theta) for theta in THETAS[1:]]
    return {
        f"{name}, θ = {theta}": Slicer(im, profile, theta, progress=False, product=product)
        for product, name, theta in readings
    }


def deletable(im: InstrumentedModel) -> list[str]:
    """Return the kernels of weighted sums."""
    return [o.params.name for o in im.operations if o.kind == "weighted_sum"]


def _deleted_synapses(
    im: InstrumentedModel, x: np.ndarray, y: np.ndarray, methods: dict, seed: int, sentence: int
) -> list[dict[str, object]]:
    """Return the remaining lead of a sentence after deletions in the order of each method."""
    i = sentence
    x, y = x[i : i + 1], y[i : i + 1]
    whole = lead(im.logits(x), y)[0]
    kernels = [im.kernels[name] for name in deletable(im)]
    kept = [kernel.kernel().copy() for kernel in kernels]
    ends = np.cumsum([k.size for k in kept])
    random = np.random.default_rng([seed, i]).random(ends[-1])
    rows: list[dict[str, object]] = []
    try:
        for method, score in {**methods, "random": lambda i: random}.items():
            order = np.argsort(-score(i), kind="stable")
            for share in SHARES:
                mask = np.ones(ends[-1], bool)
                mask[order[: round(share * len(order))]] = False
                masks = np.split(mask, ends[:-1])
                for kernel, value, part in zip(kernels, kept, masks, strict=True):
                    kernel.variable().assign(value * part.reshape(value.shape))
                left = lead(im.logits(x), y)[0] / whole
                rows.append({"method": method, "deleted": share, "lead": left})
    finally:
        for kernel, value in zip(kernels, kept, strict=True):
            kernel.variable().assign(value)
    return rows


def _joined(arrays: Mapping[str, np.ndarray], names: list[str]) -> np.ndarray:
    return np.concatenate([np.asarray(arrays[name]).ravel() for name in names])
