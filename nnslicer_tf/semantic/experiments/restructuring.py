"""Compression of whole and of restructured models (section 5.3, table 5)."""

from collections.abc import Iterator

import keras

from nnslicer_tf.semantic.experiments.slices import slices_of_one_size
from nnslicer_tf.semantic.experiments.trial import Trial
from nnslicer_tf.semantic.restructuring import restructure
from nnslicer_tf.semantic.weight_pruning import compress
from nnslicer_tf.zoo import accuracy

__all__ = ["restructure_rows"]

_NAMES = {"lamp": "LAMP", "global": "Glob", "uniform_plus": "Unif", "erk": "ERK"}


def restructure_rows(trial: Trial, metric: str, tolerance: float = 0.01) -> Iterator[dict]:
    """Yield what every compressor comes to, alone and after every way to slice.

    Args:
        trial: The model and its data.
        metric: A name of `METRICS`.
        tolerance: Loss of accuracy on held-out samples at which compression stops. The slices
            may lose a tenth of a point, at most half of it: they take only what is redundant.

    Yields:
        method, CR (share of the whole model's parameters removed), NI (iterations), MA (test
        accuracy).
    """
    lowest = accuracy(trial.model, trial.held_out) - tolerance
    starts: dict[str, keras.Model] = {"": trial.model}
    for way, critical in slices_of_one_size(trial, metric, min(0.001, tolerance / 2)).items():
        starts[f"{way}+"] = restructure(trial.model, critical)
    size = trial.model.count_params()
    for compressor, name in _NAMES.items():
        for way, start in starts.items():
            found = compress(start, compressor, lambda m: accuracy(m, trial.held_out), lowest)
            yield {
                "method": way + name,
                "CR": 1 - (1 - found.rate) * start.count_params() / size,
                "NI": found.iterations,
                "MA": accuracy(found.model, trial.test),
            }
