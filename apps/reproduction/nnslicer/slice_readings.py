"""Single slices by each reading of the definitions: size, faithfulness, stability.

Faithfulness is measured by two interventions in which removed synapses pass on their means: only
the slice is kept, or only the slice is removed. A slice that decides the prediction preserves it
in the first case and destroys it in the second. The baseline is equally many random synapses of
every kernel.
"""

import itertools

import numpy as np
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf.instrument import InstrumentedModel, MaskedModel
from nnslicer_tf.slicing import ClassProfiles, Profile, Slice, Slicer
from reproduction.nnslicer.class_slicer import ClassSlicer
from reproduction.nnslicer.settings import SliceReadingSettings
from reproduction.result import ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

Masks = dict[str, np.ndarray]

_TOP = 0.3
_KEYS = ("relative_to", "rectify", "profile", "theta")
_TEXT = (
    "Means over the images. `share`: synapses in the slice. `kept`: the model with nothing but the "
    "slice predicts the same class; `random kept`: with as many random synapses of every kernel. "
    "`removed`: the model without the slice predicts the same class (low is good); `random "
    "removed` likewise. `top kept`: with the given share of every kernel, those of the largest "
    "|contribution|, so that readings are compared at equal size. `stable`: |A ∩ B| / |A ∪ B| for "
    "the slices of the image and of the image with noise of two grey levels."
)


def slice_readings(s: SliceReadingSettings) -> ExperimentResult:
    """Measure single slices by each reading of the definitions."""
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    train = datasets.load(s.dataset, f"train[:{s.train}]")
    images = datasets.load(s.dataset, s.split).x[: s.images]
    whole = Profile.from_data(im, train.x)
    classes = ClassProfiles.from_data(im, train.x, train.y)
    masked, predicted = MaskedModel(im, whole), im.logits(images).argmax(axis=1)
    noise = np.random.default_rng(s.seed).choice([-2, 2], images.shape) / 255
    noisy = np.clip(images + noise, 0, 1).astype(np.float32)

    def of_image(i: int, one: Slice, again: Slice) -> dict[str, float]:
        """Return the metrics of the slices of an image, and of the image with noise."""

        def same(keep: Masks) -> float:
            logits = masked.logits(keep, images[i : i + 1], ablation="mean")
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
        slicer = Slicer(im, whole, **options)
        if profile == "class":
            slicer = ClassSlicer(im, classes, **options)
        slices, again = (slicer.slice_each(x, operations=()) for x in (images, noisy))
        pairs = enumerate(zip(slices, again, strict=True))
        return [pd.DataFrame([of_image(i, *pair) for i, pair in pairs]).mean().to_dict()]

    store = RowStore.of(
        s.work,
        f"{s.model}-{s.dataset}",
        _KEYS,
        {"weights": im.fingerprint, "top": _TOP} | s.values("train", "split", "images", "seed"),
    )
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
    return ExperimentResult([ExperimentTable(name, table, title, head, _TEXT)])


def _size(masks: Masks) -> int:
    return sum(int(np.count_nonzero(m)) for m in masks.values())


def _largest(values: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return where the largest magnitudes are; ties are broken at random."""
    keys = np.abs(values).ravel() + rng.uniform(0, 0.5, values.size)
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-keys)[: max(1, round(share * values.size))]] = True
    return mask.reshape(values.shape)
