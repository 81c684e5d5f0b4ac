"""Compression of whole and of restructured models (section 5.3, table 5)."""

from collections.abc import Iterator

import keras

from nnslicer_tf.semantic import compress
from nnslicer_tf.semantic import restructure as remove_neurons
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.settings import OURS, MaintenanceSettings
from reproduction.neusemslice.slices import slices_of_one_size
from reproduction.neusemslice.tables import means_result
from reproduction.neusemslice.trial import Repeats, Trial
from reproduction.result import ExperimentResult

COMPRESSORS = {"lamp": "LAMP", "global": "Glob", "uniform_plus": "Unif", "erk": "ERK"}
"""Name of a compressor → its name in the paper's tables."""


def restructure(s: MaintenanceSettings) -> ExperimentResult:
    """Compress whole and restructured models until the accuracy falls (table 5)."""
    repeats = Repeats(s)
    what = f"restructure-{s.metric}-{s.tolerance}"
    rows = repeats.rows(what, restructure_rows, s.metric, s.tolerance)
    pairs = [
        (f"{way}+{name}", other)
        for name in COMPRESSORS.values()
        for way in OURS
        for other in (name, f"Global+{name}", f"Category-wise+{name}")
    ]
    used = {"tolerance": f"{s.tolerance:.1%} of held-out accuracy"}
    name = f"table5-{1_000 * s.tolerance:.0f}permille"  # no dot: what follows is an ending
    title = "Compression until the accuracy falls"
    return means_result(repeats, rows, 5, title, ["CR", "NI", "MA"], pairs, used, name)


def restructure_rows(trial: Trial, metric: str, tolerance: float = 0.01) -> Iterator[dict]:
    """Yield the result of every compressor, alone and after every slicing method.

    Compression stops where `tolerance` of the held-out accuracy is lost. Slices may lose a tenth
    of a point of it, at most half: they remove only what is redundant.

    Yields:
        method, CR (share of the whole model's parameters removed), NI (iterations), MA (test
        accuracy); first those of the model as it is.
    """
    yield {"method": "Original", "CR": 0.0, "NI": 0, "MA": accuracy(trial.model, trial.test)}
    lowest = accuracy(trial.model, trial.held_out) - tolerance
    starts: dict[str, keras.Model] = {"": trial.model}
    for way, critical in slices_of_one_size(trial, metric, min(0.001, tolerance / 2)).items():
        starts[f"{way}+"] = remove_neurons(trial.model, critical)
    size = trial.model.count_params()
    for compressor, name in COMPRESSORS.items():
        for way, start in starts.items():
            found = compress(start, compressor, lambda m: accuracy(m, trial.held_out), lowest)
            yield {
                "method": way + name,
                "CR": 1 - (1 - found.rate) * start.count_params() / size,
                "NI": found.iterations,
                "MA": accuracy(found.model, trial.test),
            }
