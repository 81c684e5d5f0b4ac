"""Readings of the definitions on single slices, and special cases of the program's exclusion.

Faithfulness is measured by two interventions in which removed synapses pass on their means: only
the slice is kept, or only the slice is removed. A slice that decides the prediction preserves it
in the first case and destroys it in the second. The baseline is equally many random synapses of
every kernel.

The program excludes by the sum of the local values, as `Slicer(relative_to="sum")` does. In
addition it keeps every value within 1 % of the smallest one that it kept, and drops a neuron
whose sum is below its smallest local value, or below a thousandth of its largest (see "What
the original computes" in the docs). Both rules are applied here to real neurons, one at a time.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import Ablation, InstrumentedModel
from nnslicer_tf.slicing import Profile, Slice, Slicer
from reproduction.nnslicer.class_profiles import ClassProfiles
from reproduction.nnslicer.class_slicer import slice_each_by_class
from reproduction.nnslicer.settings import SliceReadingSettings, SpecialCaseSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.zoo.models import zoo

Masks = dict[str, np.ndarray]

_TOP = 0.3
_KEYS = ("relative_to", "rectify", "profile", "theta")


def slice_readings(s: SliceReadingSettings) -> ExperimentResult:
    """Measure single slices by each reading of the definitions."""
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    train = datasets.load(s.dataset, f"train[:{s.train}]")
    images = datasets.load(s.dataset, s.split).x[: s.images]
    whole = Profile.from_data(im, train.x)
    classes = ClassProfiles.from_data(im, train.x, train.y)
    ablation, predicted = Ablation(im, whole), im.logits(images).argmax(axis=1)
    noise = np.random.default_rng(s.seed).choice([-2, 2], images.shape) / 255
    noisy = np.clip(images + noise, 0, 1).astype(np.float32)

    def of_image(i: int, one: Slice, again: Slice) -> dict[str, float]:
        """Return the metrics of the slices of an image, and of the image with noise."""

        def same(keep: Masks) -> float:
            logits = ablation.outputs(keep, images[i : i + 1])
            return float(logits.argmax() == predicted[i])

        rng = np.random.default_rng([s.seed, i])
        mask, other = one.synapse_mask(), again.synapse_mask()
        random = {name: rng.permuted(m.ravel()).reshape(m.shape) for name, m in mask.items()}
        found = {"share": _size(mask) / sum(m.size for m in mask.values())}
        for what, kept in (("", mask), ("random ", random)):
            found[f"{what}kept"] = same(kept)
            found[f"{what}removed"] = same({name: ~m for name, m in kept.items()})
        found["top kept"] = same({n: _largest(v, _TOP, rng) for n, v in one.synapses.items()})
        both = _size({name: m & other[name] for name, m in mask.items()})
        return found | {"stable": both / max(_size(mask) + _size(other) - both, 1)}

    def means(profile: str, theta: float, **reading: str) -> list[dict]:
        """Return the mean metrics of a reading."""
        options = {"theta": theta, "workers": 0, "progress": False, **reading}
        slice_each = Slicer(im, whole, **options).slice_each
        if profile == "class":
            slice_each = partial(slice_each_by_class, im, classes, **options)
        found = slice_each(np.concatenate([images, noisy]), operations=())
        pairs = [(i, found[i], found[len(images) + i]) for i in range(len(images))]
        return [pd.DataFrame([of_image(*pair) for pair in pairs]).mean().to_dict()]

    fields, made_from = ("train", "split", "images", "seed"), {"weights": im.fingerprint}
    store = RowStore.of(s, f"{s.model}-{s.dataset}", _KEYS, *fields, **made_from, top=_TOP)
    choices = (("output", "sum"), ("sign", "pass"), ("whole", "class"), s.theta or (0.1, 0.3))
    readings = [dict(zip(_KEYS, values, strict=True)) for values in itertools.product(*choices)]
    table = store.fill(readings, means, "Readings")
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "images": f"the first {s.images} of {s.split}, means of {s.train:,} training images",
        "top": f"{_TOP:.0%} of every kernel",
        "seed": s.seed,
    }
    title = "Single slices by each reading of the definitions"
    name = f"slices-{s.model}-{s.dataset}"
    return ExperimentResult([ExperimentTable(name, table, title, head, note("readings"))])


def _size(masks: Masks) -> int:
    return sum(int(np.count_nonzero(m)) for m in masks.values())


def _largest(values: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return where the largest magnitudes are; ties are broken at random."""
    keys = np.abs(values).ravel() + rng.uniform(0, 0.5, values.size)
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-keys)[: max(1, round(share * values.size))]] = True
    return mask.reshape(values.shape)


_BAR = 0.99  # share of the smallest magnitude that is kept
_SMALL = 1e-3  # share of the largest magnitude


class Kept(NamedTuple):
    """The local values `(neurons, values)` of some neurons that the exclusion keeps."""

    plain: np.ndarray  # by the plain rule
    bar: np.ndarray  # the same, and those within 1 % of the smallest one
    dropped: np.ndarray  # (neurons,): neurons whose values the program drops entirely


def exclude(v: np.ndarray, theta: float) -> Kept:
    """Apply the plain rule and the special cases to local values; a zero, too, counts as one."""
    magnitudes = np.abs(v)
    order = np.argsort(-magnitudes, axis=1, kind="stable")
    sums = v.sum(axis=1, dtype=np.float64)
    left = sums[:, None] - np.cumsum(np.take_along_axis(v, order, axis=1), axis=1, dtype=np.float64)
    within = np.abs(left) < theta * np.abs(sums)[:, None]
    count = np.where(within.any(axis=1), within.argmax(axis=1) + 1, v.shape[1])
    plain = np.zeros(v.shape, bool)
    np.put_along_axis(plain, order, np.arange(v.shape[1]) < count[:, None], axis=1)
    smallest = np.take_along_axis(magnitudes, order, axis=1)[np.arange(len(v)), count - 1]
    bar = plain | (magnitudes > _BAR * smallest[:, None])
    total = np.abs(sums)
    dropped = (total < magnitudes.min(axis=1)) | (total < _SMALL * magnitudes.max(axis=1))
    return Kept(plain, bar, dropped)


def special_cases(s: SpecialCaseSettings) -> ExperimentResult:
    """Count what the special cases change, over the neurons of a network."""
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    profile = Profile.from_data(im, datasets.load(s.dataset, f"train[:{s.train}]").x)
    images = datasets.load(s.dataset, s.split).x[: s.images]
    captured = im.capture(images)
    rng = np.random.default_rng(s.seed)
    rows: list[dict[str, object]] = []
    found: list[Kept] = []
    sums = [o for o in im.graph.operations.values() if o.kind == "weighted_sum"]
    for operation in track([o for o in sums if o.params.groups == 1], "Kernels"):
        # The local values of random neurons `(neurons, taps · inputs)`.
        kernel, source = operation.params, operation.inputs[0]
        delta = captured[source] - profile.means[source]
        x = delta.reshape(len(delta), -1, delta.shape[-1])
        inside = np.flatnonzero((kernel.taps >= 0).all(axis=1))
        weights = kernel.matrix().reshape(-1, kernel.matrix().shape[-1])
        sample = rng.integers(len(x), size=s.neurons)
        position = rng.choice(inside, s.neurons)
        output = rng.integers(weights.shape[1], size=s.neurons)
        windows = x[sample[:, None], kernel.taps[position]].reshape(s.neurons, -1)
        v = (windows * weights.T[output]).astype(np.float64)
        found.append(exclude(v[v.sum(axis=1) != 0], s.theta))
        rows.append({"kernel": kernel.name, **_figures(found[-1:])})
    rows.append({"kernel": "all", **_figures(found)})
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "neurons": f"up to {s.neurons} of each kernel, of the first {s.images} images of {s.split}",
        "means": f"{s.train:,} training images",
        "theta": f"{s.theta:g} times the sum of the local values",
        "seed": s.seed,
    }
    name, title = f"special-cases-{s.model}-{s.dataset}", "Special cases of the program's exclusion"
    table = ExperimentTable(name, pd.DataFrame(rows), title, head, note("special_cases"))
    return ExperimentResult([table])


def _figures(parts: Sequence[Kept]) -> dict[str, float]:
    """Return the metrics of a row over the neurons of several kernels."""
    kept = sum(int(part.plain.sum()) for part in parts)
    neurons = sum(len(part.dropped) for part in parts)
    dropped = sum(int(part.plain[part.dropped].sum()) for part in parts)
    figures = {"neurons": neurons, "kept": kept / sum(part.plain.size for part in parts)}
    figures["more by the bar"] = sum(int(part.bar.sum()) for part in parts) / kept - 1
    figures["dropped neurons"] = sum(int(part.dropped.sum()) for part in parts) / neurons
    return figures | {"dropped values": dropped / kept}
