"""Slicing methods side by side, and their slices of one size.

`NeuSemSlice` compares landscapes as Equation 2 is printed. `NeuSemSlice, centred` centres them
first, as does the centred kernel alignment after which the equation is named.
"""

from collections.abc import Callable
from functools import partial

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.semantic import CriticalNeurons, Masker, SemanticSlicer
from nnslicer_tf.semantic.deeparc import layer_similarities
from nnslicer_tf.semantic.neurons import neuron_layers
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.settings import OURS, SETTINGS, WAYS
from reproduction.neusemslice.trial import Trial
from reproduction.samples import first


class SlicedModel:
    """A trial's model with all slicing methods, by one of `METRICS`."""

    def __init__(self, trial: Trial, metric: str = "taylor") -> None:
        data = first(trial.train, trial.samples)
        self.model = trial.model
        self.slicer = SemanticSlicer(InstrumentedModel(trial.model), data.x, data.y, metric)
        centred = self.slicer.with_centred(True)
        self._ways: dict[str, Callable[[float], CriticalNeurons]] = {
            "Global": self.slicer.global_slice,
            "Category-wise": self.slicer.category_slice,
            "NeuSemSlice": partial(self.slicer.semantic_slice, step=trial.interval),
            "NeuSemSlice, centred": partial(centred.semantic_slice, step=trial.interval),
        }
        self.masker = Masker(trial.model)

    def slice(self, way: str, setting: float) -> CriticalNeurons:
        """Return the slice of a method at a share or threshold."""
        return self._ways[way](setting)

    def compression(self, critical: CriticalNeurons) -> float:
        """Return the share of the parameters that restructuring removes."""
        return 1 - self.masker.size(critical) / self.model.count_params()

    def own_share(self, critical: CriticalNeurons) -> float:
        """Return the share of the parameters in kernels and biases of masked neurons themselves."""
        own = sum(
            (1 - mask.mean()) * self.model.get_layer(layer).count_params()
            for layer, mask in critical.items()
        )
        return own / self.model.count_params()

    def of_size(self, way: str, compression: float) -> CriticalNeurons:
        """Return a method's slice whose compression rate is nearest to the one given."""
        low, high, found = 0.0, 1.0, []
        for _ in range(16):
            middle = (low + high) / 2
            critical = self.slice(way, middle)
            rate = self.compression(critical)
            found.append((abs(rate - compression), critical))
            if found[-1][0] < 1e-3:
                break
            low, high = (middle, high) if rate > compression else (low, middle)
        return min(found, key=lambda pair: pair[0])[1]

    def __repr__(self) -> str:
        return f"SlicedModel({self.slicer!r})"


def slices_of_one_size(trial: Trial, metric: str, loss: float) -> dict[str, CriticalNeurons]:
    """Return a slice by every method, all of about the same compression rate.

    It is the rate of the smallest centred semantic slice that keeps the held-out accuracy by
    itself; the other methods are adjusted to that rate, as in the paper (section 5.3).
    """
    sliced = SlicedModel(trial, metric)
    lowest = accuracy(trial.model, trial.held_out) - loss
    way = OURS[1]
    chosen = sliced.slice(way, 1.0)
    for theta in SETTINGS[way]:
        critical = sliced.slice(way, theta)
        if accuracy(sliced.masker.neurons(critical), trial.held_out) >= lowest:
            chosen = critical
            break
    size = sliced.compression(chosen)
    return {w: chosen if w == way else sliced.of_size(w, size) for w in WAYS}


def redundant(trial: Trial, threshold: float) -> list[str]:
    """Return the hidden layers that are redundant on 500 training samples."""
    im = InstrumentedModel(trial.model)
    similarities = layer_similarities(im, first(trial.train, 500).x)
    hidden = list(similarities.items())[:-1]
    return [name for name, similarity in hidden if similarity > threshold]


def all_neurons(model: keras.Model) -> dict[str, np.ndarray]:
    """Return masks of all neurons, the classes included."""
    layers = neuron_layers(InstrumentedModel(model), classes=True)
    return {name: np.ones(layer.units, bool) for name, layer in layers.items()}
