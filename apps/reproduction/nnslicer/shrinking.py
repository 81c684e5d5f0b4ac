"""Smaller models for two classes: contributions compared with class-blind rankings of units.

Units are scored, and layers fitted, on training images alone; accuracies are on test images of the
two classes, with predictions restricted to these two. An interrupted experiment resumes from its
working folder when it is run again.
"""

import numpy as np
import pandas as pd

from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.loading import load_model
from nnslicer_tf.pruning.shrinking import CONTRIBUTIONS
from reproduction.nnslicer.settings import ShrinkSettings
from reproduction.nnslicer.targets import draw_subsets
from reproduction.result import ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

_KEYS = ("method", "epochs", "classes")
_METHODS = {
    "contributions": CONTRIBUTIONS,
    "Weight": "weight",
    "Channel": "channel",
    "Random": "random",
}
_TEXT = (
    "Means over the pairs of classes. `left`: share of the original that is left. `before`, "
    "`after`: accuracy on the test images of the two classes; `points lost`: their difference, and "
    "the largest of a pair. Latencies are medians of one sample at a time, measured in one run; "
    "`load` in the head says how busy the machine was."
)


def shrink(s: ShrinkSettings) -> ExperimentResult:
    """Shrink a model for pairs of classes, using several rankings of units."""
    im = InstrumentedModel(load_model(s.file) if s.file else zoo.load(s.model, s.dataset))
    train = datasets.load(s.dataset, s.train, normalise=s.normalise)
    test = datasets.load(s.dataset, "test", normalise=s.normalise)
    pairs = draw_subsets(train.classes, 2, s.pairs, s.seed)
    stem = f"shrink-{s.file.stem if s.file else s.model}-{s.dataset}"
    store = RowStore.of(
        s.work,
        stem,
        _KEYS,
        {"weights": im.fingerprint} | s.values("train", "normalise", "ratio", "quota", "seed"),
    )
    names = []
    for method in s.method or list(_METHODS):
        for epochs in s.epochs or [0]:
            for classes in track(pairs, f"{method}, {epochs} epochs"):
                row = {"method": method, "epochs": epochs, "classes": "+".join(map(str, classes))}
                names.append(row)
                if row in store:
                    continue
                found = pruning.shrink(
                    im,
                    train,
                    classes=classes,
                    ratio=s.ratio,
                    by=_METHODS[method],
                    quota=s.quota,
                    epochs=epochs,
                    test=test,
                    rng=s.seed,
                    progress=False,
                )
                left = found.to_frame().set_index("what")["left"]
                before, after = found.accuracy
                figures = {
                    "parameters left": left["parameters"],
                    "multiply-adds left": left["multiply-adds"],
                    "Keras left": left["Keras, ms"],
                    "LiteRT left": left["LiteRT, ms"],
                    "file left": left["LiteRT file, bytes"],
                    "before": before,
                    "after": after,
                }
                store.add([{**row, **figures}])
    # Rows of an earlier run were read as text.
    table = store.to_frame(names).astype({"epochs": int})
    head = {
        "model": f"{s.file.name if s.file else s.model} on {s.dataset} ({s.normalise}), "
        f"{im.model.count_params():,} parameters",
        "images": f"{s.train} to score, fit and train; {len(test):,} test images",
        "ratio and quota": f"{s.ratio} of the parameters, {s.quota}",
        "pairs of classes": ", ".join("+".join(map(str, pair)) for pair in pairs),
        "seed": s.seed,
    }
    title = f"Smaller models for two classes: {head['model']}"
    tables = [
        ExperimentTable(stem, _means(table), title, head, _TEXT),
        ExperimentTable(f"{stem}-pairs", table),
    ]
    return ExperimentResult(tables)


def _means(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (method, epochs), part in table.groupby(["method", "epochs"], sort=False):
        lost = 100 * (part["before"] - part["after"])
        means = part.drop(columns=list(_KEYS)).mean()
        row = {"method": method, "epochs": epochs, **means}
        rows.append({**row, "points lost": np.mean(lost), "most points lost": np.max(lost)})
    return pd.DataFrame(rows)
