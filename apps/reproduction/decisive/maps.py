"""Which attributions order the features of an input best, by deletion and insertion?"""

import time

import numpy as np

from nnslicer_tf.attributions import ATTRIBUTIONS, metrics
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.slicing import Slicer
from reproduction.decisive.attributions import METHODS
from reproduction.decisive.comparison import drawn, note_on
from reproduction.decisive.settings import MapSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

# All but exact gradients, which take long.
_METHODS = {n: method for n, method in ATTRIBUTIONS.items() if n != "integrated gradients"}
_METHODS |= METHODS
_RESAMPLES = 10_000
_COLUMNS = ("method", "deletion", "insertion", "seconds")


def maps(s: MapSettings) -> ExperimentResult:
    """Compare the orders of pixels or words by all methods, sample by sample."""
    rng, im, profile, x, head = drawn(s)
    labels = im.classes.from_logits(im.logits(x))
    slicer = Slicer(im, profile, 0.1, workers=0, progress=False)

    def measured(sample: int) -> list[dict]:
        one, label, values, seconds = x[sample], int(labels[sample]), {}, {}
        for name, method in _METHODS.items():
            start = time.perf_counter()
            try:
                values[name] = method(im, one, profile.means, label)
            except (InvalidArgumentError, UnsupportedLayerError):
                continue  # the model has no such maps: no convolution, or bends
            seconds[name] = time.perf_counter() - start
        start = time.perf_counter()
        counts = slicer.slice(one[None], [label]).neurons
        seconds["slice by counts"] = time.perf_counter() - start
        values["slice by counts"] = counts[im.input_operation].astype(float)
        values["random"] = np.random.default_rng([s.seed, sample]).random(np.shape(one))
        deletion, insertion = metrics.curves(im, one, profile.means, label, values)
        rows = [(n, c.area, insertion[n].area, seconds.get(n)) for n, c in deletion.items()]
        return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]

    fields, names = ("split", "samples", "profile", "seed"), tuple(_METHODS)
    made_from = {"model": profile.fingerprint, "methods": names}
    store = RowStore.of(s, f"maps-{s.model}", ["sample"], *fields, **made_from)
    found = store.fill([{"sample": i} for i in range(len(x))], measured, "Samples")

    # Each method's means, and 95 % intervals of its paired differences from the best one's.
    rows = found.groupby("method", sort=False)[["deletion", "insertion"]].mean()
    resamples = rng.integers(0, len(x), (_RESAMPLES, len(x)))
    for metric, sign in (("deletion", 1), ("insertion", -1)):
        best = (sign * rows[metric]).idxmin()
        by_method = found.pivot(index="sample", columns="method", values=metric)
        for name in rows.index:
            difference = (by_method[name] - by_method[best]).to_numpy()
            low, high = np.quantile(difference[resamples].mean(axis=1), [0.025, 0.975])
            rows.loc[name, [f"{metric}, from", f"{metric}, to"]] = low, high
            rows.loc[name, f"{metric}, tied"] = bool(low <= 0 <= high)
    rows["ms"] = 1000 * found.groupby("method", sort=False)["seconds"].median()
    title = f"{s.model}: maps of the input by deletion and insertion"
    text = note("maps", data=note_on(s.split))
    table = rows.round(4).reset_index()
    return ExperimentResult([ExperimentTable(f"maps-{s.model}", table, title, head, text)])
