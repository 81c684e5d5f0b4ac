"""Mending of planted faults from few images, and provable repair of a model's own mistakes."""

from collections.abc import Iterator
from dataclasses import replace

import keras
import numpy as np
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._environment import track
from nnslicer_tf._numerics import largest
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.debugging import Runs, mend, repair, suspicious
from nnslicer_tf.errors import InfeasibleRepairError
from nnslicer_tf.instrument import InstrumentedModel, copy_model
from nnslicer_tf.pruning.fine_tuning import fine_tune
from reproduction.debugging.faults import FaultyModel
from reproduction.debugging.localisation import costly, fault_rows, images
from reproduction.debugging.settings import MendingSettings, RepairSettings
from reproduction.result import ExperimentResult, ExperimentTable, paper_text
from reproduction.samples import first

_EPOCHS = 30
_WAYS = ("as it is", "mask", "scale", "train", "fine-tune last layer", "fine-tune all")

_MENDING = (
    "In percent of images that were not used for mending. `accuracy`; `mended`: share of the "
    "images that the faulty model gets wrong and this one right; `drawdown`: share of those that "
    "the faulty model gets right and this one wrong. Mask, scale and train change one channel, "
    "the most suspicious by `gradient`; training takes as many epochs in each way."
)
_REPAIR = (
    "`repaired` test images, with training images that are to stay right; the weights that may "
    "change are the most suspicious of the kernel. `drawdown`: points of "
    "accuracy lost on the other test images; `generalisation`: share of the other images that the "
    "model gets wrong and the repaired one right. Infeasible programs have no figures."
)


def mending(s: MendingSettings) -> ExperimentResult:
    """Mend planted faults in several ways, and measure what is gained and lost."""
    faulty = FaultyModel(zoo.load(s.model))
    data = images(s)
    name = f"mending_{s.model}"
    store = fault_rows(name, "way", faulty, s)
    names = []
    for index, (fault, cost) in enumerate(costly(faulty, data, s)):
        names += [{"fault": index, "way": way} for way in _WAYS]
        if any(one not in store for one in names[-len(_WAYS) :]):
            base = {"fault": index, "operation": fault.operation, "kind": fault.kind, "cost": cost}
            store.add({**base, **row} for row in _mended(faulty.im, data, s.samples, index))
    faulty.heal()
    rows = store.to_frame(names)
    columns = ["accuracy", "mended", "drawdown"]
    means = rows.groupby("way", sort=False)[columns].agg(["mean", "std"])
    means.columns = [f"{a}_{b}" if b == "std" else a for a, b in means.columns]
    head = {
        "model": s.model,
        "faults": s.faults,
        "cost_points": s.cost,
        "failing_and_passing_images": s.samples,
        "unseen_images": s.images - s.images // 2,
        "seed": s.seed,
    }
    title = f"Planted faults in {s.model}: mended from {2 * s.samples} images"
    return ExperimentResult(
        [
            ExperimentTable(f"{name}_rows", rows),
            ExperimentTable(name, means.reset_index(), title, head, _MENDING),
        ]
    )


def _mended(im: InstrumentedModel, data: Dataset, samples: int, seed: int) -> Iterator[dict]:
    half = len(data) // 2
    runs = Runs.split(im, data.x[:half], data.y[:half]).sampled(samples, rng=seed)
    failing, passing = ((part.x, part.right) for part in (runs.failing, runs.passing))
    # Gradients need no common classes; strong faults may leave none.
    found = suspicious(im, failing, passing, "gradient", progress=False)
    x, y = (np.concatenate(pair) for pair in zip(failing, passing, strict=True))
    unseen, labels = data.x[half:], data.y[half:]
    before = im.logits(unseen).argmax(axis=1) == labels
    for way in _WAYS:
        if way in ("mask", "scale", "train"):
            model = mend(im, found, x, y, way, epochs=_EPOCHS, rng=seed)
        else:
            model = copy_model(im.model)
        if way.startswith("fine-tune"):
            for layer in model.layers:
                is_fixed = way != "fine-tune all" and layer is not model.layers[-1]
                if is_fixed or isinstance(layer, keras.layers.BatchNormalization):
                    layer.trainable = False
            fine_tune(model, x, y, _EPOCHS, batch_size=32, rng=seed, progress=False)
        after = model.predict(unseen, verbose=0).argmax(axis=1) == labels
        yield {
            "way": way,
            "accuracy": 100 * after.mean(),
            "mended": 100 * after[~before].mean(),
            "drawdown": 100 * (~after[before]).mean(),
        }


def provable_repair(s: RepairSettings) -> ExperimentResult:
    """Repair images that a model gets wrong by the least change of each of its dense layers."""
    dataset = zoo.models.entry(s.model).dataset
    im = InstrumentedModel(zoo.load(s.model))
    test = datasets.load(dataset, "test")
    kept = first(datasets.load(dataset, "train"), 10 * s.train)
    right = im.logits(kept.x).argmax(axis=1) == kept.y
    kept = first(replace(kept, x=kept.x[right], y=kept.y[right]), s.train)
    wrong = np.random.default_rng(s.seed).permutation(
        np.flatnonzero(im.logits(test.x).argmax(axis=1) != test.y)
    )
    dense = [name for name, kernel in im.kernels.items() if len(kernel.shape) == 2][-2:]
    rows = []
    for count in track(s.counts, "Repairs"):
        chosen = wrong[:count]
        found = suspicious(im, (test.x[chosen], test.y[chosen]), (kept.x, kept.y), progress=False)
        for kernel in dense:
            scores = found.synapses[kernel]
            among = largest(scores, min(s.among, scores.size))
            for size in ("sum", "largest"):
                measured = _repaired(im, test, kept, chosen, kernel, among, size)
                row = {"kernel": kernel, "repaired": len(chosen), "size": size}
                rows.append(row | {"may_change": int(among.sum())} | measured)
    head = {
        "model": s.model,
        "kept_right": s.train,
        "test_images": len(test),
        "wrong_before": len(wrong),
        "seed": s.seed,
    }
    name, title = f"repair_{s.model}", f"Provable repair of {s.model}: what it costs elsewhere"
    text = f"{_REPAIR}\n\n{paper_text('debugging/repair')}"
    return ExperimentResult([ExperimentTable(name, pd.DataFrame(rows), title, head, text)])


def _repaired(
    im: InstrumentedModel,
    test: Dataset,
    kept: Dataset,
    chosen: np.ndarray,
    kernel: str,
    among: np.ndarray,
    size: str,
) -> dict[str, object]:
    x, y = np.concatenate([test.x[chosen], kept.x]), np.concatenate([test.y[chosen], kept.y])
    try:
        found = repair(im, kernel, x, y, among=among, size=size)
    except InfeasibleRepairError:
        return {"feasible": False}
    logits = InstrumentedModel(found.model).logits
    others = np.delete(np.arange(len(test)), chosen)
    before = im.logits(test.x[others]).argmax(axis=1) == test.y[others]
    after = logits(test.x[others]).argmax(axis=1) == test.y[others]
    return {
        "feasible": True,
        "right": int((logits(x).argmax(axis=1) == y).sum()),
        "of": len(x),
        "changed": int(np.count_nonzero(found.change)),
        "largest": float(np.abs(found.change).max()),
        "drawdown": 100 * float(before.mean() - after.mean()),
        "generalisation": 100 * float(after[~before].mean()),
    }
