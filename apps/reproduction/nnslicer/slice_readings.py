"""Single slices by each reading of the definitions: size, faithfulness, stability.

Faithfulness is measured by two interventions in which removed synapses pass on their means: only
the slice is kept, or only the slice is removed. A slice that decides the prediction preserves it
in the first case and destroys it in the second. The baseline is equally many random synapses of
every kernel.
"""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel, MaskedModel
from nnslicer_tf.slicing import ClassProfiles, Profile, Slice, Slicer
from reproduction.nnslicer.class_slicer import ClassSlicer
from reproduction.nnslicer.settings import SliceReadingSettings
from reproduction.result import ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

Masks = dict[str, np.ndarray]

_PROFILES = ("whole", "class")
_READINGS = list(itertools.product(("output", "sum"), ("sign", "pass"), _PROFILES))
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
    tester = _Tester(im, whole, images, s)
    store = RowStore.of(
        s.work,
        f"{s.model}-{s.dataset}",
        _KEYS,
        {"weights": im.fingerprint} | s.values("train", "split", "images", "top", "seed"),
    )
    names = []
    for (relative_to, rectify, profile), theta in track(
        list(itertools.product(_READINGS, s.theta or (0.1, 0.3))), "Readings"
    ):
        reading = {"relative_to": relative_to, "rectify": rectify}
        row = {**reading, "profile": profile, "theta": theta}
        names.append(row)
        if row in store:
            continue
        slicer: Slicer | ClassSlicer = ClassSlicer(
            im, classes, theta=theta, workers=0, progress=False, **reading
        )
        if profile == "whole":
            slicer = Slicer(im, whole, theta, workers=0, progress=False, **reading)
        store.add([{**row, **tester.figures(slicer)}])
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "images": f"the first {s.images} of {s.split}, means of {s.train:,} training images",
        "top": f"{s.top:.0%} of every kernel",
        "seed": s.seed,
    }
    table = store.to_frame(names)
    title = "Single slices by each reading of the definitions"
    name = f"slices-{s.model}-{s.dataset}"
    return ExperimentResult([ExperimentTable(name, table, title, head, _TEXT)])


class _Tester:
    """Keeps or removes slices, and counts unchanged predictions.

    Args:
        im: The model.
        profile: The means that are passed on.
        images: The images to slice.
        s: Settings.
    """

    def __init__(
        self, im: InstrumentedModel, profile: Profile, images: np.ndarray, s: SliceReadingSettings
    ) -> None:
        self._predictor = MaskedModel(im, profile)
        self._images = images
        self._predicted = im.logits(images).argmax(axis=1)
        self._top = s.top
        noise = np.random.default_rng(s.seed).choice([-2, 2], images.shape) / 255
        self._noisy = np.clip(images + noise, 0, 1).astype(np.float32)
        self._seed = s.seed

    def figures(self, slicer: Slicer | ClassSlicer) -> dict[str, float]:
        """Return the mean metrics of a reading."""
        slices = slicer.slice_each(self._images, operations=())
        noisy = slicer.slice_each(self._noisy, operations=())
        rows = [
            dict(self._of_image(i, one, other))
            for i, (one, other) in enumerate(zip(slices, noisy, strict=True))
        ]
        return pd.DataFrame(rows).mean().to_dict()

    def _of_image(self, i: int, one: Slice, other: Slice) -> Iterator[tuple[str, float]]:
        rng = np.random.default_rng([self._seed, i])
        mask, again = one.synapse_mask(), other.synapse_mask()
        random = {name: rng.permuted(m.ravel()).reshape(m.shape) for name, m in mask.items()}
        yield "share", _size(mask) / sum(m.size for m in mask.values())
        for what, kept in (("", mask), ("random ", random)):
            yield f"{what}kept", self._same(i, kept)
            yield f"{what}removed", self._same(i, {name: ~m for name, m in kept.items()})
        top = {name: _largest(values, self._top, rng) for name, values in one.synapses.items()}
        yield "top kept", self._same(i, top)
        both = _size({name: m & again[name] for name, m in mask.items()})
        yield "stable", both / max(_size(mask) + _size(again) - both, 1)

    def _same(self, i: int, keep: Mapping[str, np.ndarray]) -> float:
        logits = self._predictor.logits(keep, self._images[i : i + 1], ablation="mean")
        return float(logits.argmax() == self._predicted[i])


def _size(masks: Masks) -> int:
    return sum(int(np.count_nonzero(m)) for m in masks.values())


def _largest(values: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return where the largest magnitudes are; ties are broken at random."""
    keys = np.abs(values).ravel() + rng.uniform(0, 0.5, values.size)
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-keys)[: max(1, round(share * values.size))]] = True
    return mask.reshape(values.shape)
