"""What slices of one size take from each layer, and what each layer's part costs alone.

Slices of two methods may remove equally many parameters and yet differ in accuracy, because they
take them from other layers. This experiment, which is not in the paper, says from which.

It also counts what is removed in another way: the weights into the masked neurons alone. The
compression rate of all other tables counts the weights out of them as well.
"""

from collections.abc import Iterator

import keras
import numpy as np
import pandas as pd

from nnslicer_tf.semantic import CriticalNeurons
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.settings import OURS, WAYS, MaintenanceSettings
from reproduction.neusemslice.slices import SlicedModel
from reproduction.neusemslice.tables import paired_tests
from reproduction.neusemslice.trial import Repeats, Trial
from reproduction.result import ExperimentResult

_COMPRESSIONS = (0.3, 0.5, 0.66)  # shares of the parameters that are removed; the paper names two
_KEYS = ["wanted", "method", "layer"]
_PAIRS = [(one, other) for one in OURS for other in WAYS[:2]]


def layers(s: MaintenanceSettings) -> ExperimentResult:
    """Measure what slices of one size take from each layer (not in the paper)."""
    repeats = Repeats(s)
    rows = repeats.rows(f"layers-{s.metric}", layer_rows, s.metric)
    means = rows.drop(columns="seed").groupby(_KEYS, sort=False).mean().reset_index()
    # Paired tests over seeds of whole slices of each compression rate.
    tests = []
    for wanted, part in rows[rows["layer"] == "all"].groupby("wanted"):
        tests.append(paired_tests(part, ["accuracy"], _PAIRS))
        tests[-1].insert(0, "wanted", wanted)
    tested = pd.concat(tests, ignore_index=True)
    title = "What slices of one size take from each layer, and what that costs alone"
    against = "Semantic slices against others of their size: accuracy"
    used = {"metric": s.metric}
    return ExperimentResult(
        [
            repeats.table("layers", title, means, more=used),
            repeats.table("layers", against, tested, "-tests", used),
        ]
    )


def layer_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield the share of neurons that a slice keeps, and the accuracy with only these masked.

    A row for each compression rate, method and layer, one for all convolutions, one for all dense
    layers, and one for all layers: the slice itself. "into" is the share of the model's parameters
    that are the masked neurons' own weights and biases.
    """
    sliced = SlicedModel(trial, metric)
    for wanted in _COMPRESSIONS:
        for way in WAYS:
            critical = sliced.of_size(way, wanted)
            compression = sliced.compression(critical)
            # The layers of each part of a model that is masked alone, by the part's name.
            parts = {name: [name] for name in critical}
            dense = [
                name
                for name in critical
                if isinstance(trial.model.get_layer(name), keras.layers.Dense)
            ]
            convolutions = [name for name in critical if name not in dense]
            if convolutions:
                parts["all convolutions"] = convolutions
            if dense:
                parts["all dense layers"] = dense
            parts["all"] = list(critical)
            for name, part in parts.items():
                taken = CriticalNeurons({layer: critical[layer] for layer in part})
                yield {
                    "wanted": wanted,
                    "method": way,
                    "layer": name,
                    "compression": compression,
                    "neurons": taken.total,
                    "kept": np.concatenate(list(taken.values())).mean(),
                    "into": sliced.own_share(taken),
                    "accuracy": accuracy(sliced.masker.neurons(taken), trial.test),
                }
