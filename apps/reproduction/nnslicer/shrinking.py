"""Smaller models for two classes: contributions compared with class-blind rankings of units.

Units are scored, and layers fitted, on training images alone; accuracies are on test images of the
two classes, with predictions restricted to these two. An interrupted experiment resumes from its
working folder when it is run again.
"""

import itertools

from nnslicer_tf import datasets, pruning, zoo
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

    def shrunk(method: str, epochs: int, classes: str) -> list[dict[str, float]]:
        found = pruning.shrink(
            im,
            train,
            classes=[int(c) for c in classes.split("+")],
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
        }
        return [figures | {"before": before, "after": after}]

    named = ["+".join(map(str, pair)) for pair in pairs]
    cases = itertools.product(s.method or _METHODS, s.epochs or [0], named)
    table = store.fill([dict(zip(_KEYS, case, strict=True)) for case in cases], shrunk, "Models")
    lost = 100 * (table["before"] - table["after"])
    table_of_means = table.assign(**{"points lost": lost, "most points lost": lost})
    groups = table_of_means.drop(columns="classes").groupby(["method", "epochs"], sort=False)
    largest = groups["most points lost"].max()
    means = groups.mean().assign(**{"most points lost": largest}).reset_index()
    head = {
        "model": f"{s.file.name if s.file else s.model} on {s.dataset} ({s.normalise}), "
        f"{im.model.count_params():,} parameters",
        "images": f"{s.train} to score, fit and train; {len(test):,} test images",
        "ratio and quota": f"{s.ratio} of the parameters, {s.quota}",
        "pairs of classes": ", ".join(named),
        "seed": s.seed,
    }
    title = f"Smaller models for two classes: {head['model']}"
    tables = [
        ExperimentTable(stem, means, title, head, _TEXT),
        ExperimentTable(f"{stem}-pairs", table),
    ]
    return ExperimentResult(tables)
