"""Ways to slice a model, side by side: curves, masked ranges, slices of one size.

`NeuSemSlice` compares landscapes as Equation 2 is printed; `NeuSemSlice, centred` centres
them first, as the centred kernel alignment does that the equation is called by.
"""

from collections.abc import Callable, Iterator

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.semantic.deeparc import layer_similarities, redundant_layers, remove_layers
from nnslicer_tf.semantic.experiments.trial import Trial, first, of_classes
from nnslicer_tf.semantic.neurons import CriticalNeurons
from nnslicer_tf.semantic.restructuring import Masker
from nnslicer_tf.semantic.slicer import SemanticSlicer
from nnslicer_tf.zoo import accuracy

__all__ = [
    "PAPER_SETTINGS",
    "SETTINGS",
    "WAYS",
    "SlicedModel",
    "curve_rows",
    "deeparc_row",
    "masked_range_rows",
    "redundant",
    "slices_of_one_size",
]

WAYS = ("Global", "Category-wise", "NeuSemSlice", "NeuSemSlice, centred")

_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_THETAS = (0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
_MORE_SHARES = (0.01, 0.02, 0.05)
_MORE_THETAS = (0.5, 0.7, 0.8, 0.995, 0.999, 0.9999)

PAPER_SETTINGS = dict(zip(WAYS, (_SHARES, _SHARES, _THETAS, _THETAS), strict=True))
"""Way to slice → the paper's shares or thresholds (section 5.2)."""

SETTINGS = {
    way: tuple(sorted((*known, *(_MORE_SHARES if known is _SHARES else _MORE_THETAS))))
    for way, known in PAPER_SETTINGS.items()
}
"""The same with more, so that all ways reach from slight to nearly full compression."""


class SlicedModel:
    """A model with all ways to slice it.

    Args:
        trial: The model and its data.
        metric: A name of `METRICS`.
    """

    def __init__(self, trial: Trial, metric: str = "taylor") -> None:
        data = first(trial.train, trial.samples)
        self.model = trial.model
        self.slicer = SemanticSlicer(InstrumentedModel(trial.model), data.x, data.y, metric)
        centred = self.slicer.with_centred(True)
        self._ways: dict[str, Callable[[float], CriticalNeurons]] = {
            "Global": self.slicer.global_slice,
            "Category-wise": self.slicer.category_slice,
            "NeuSemSlice": self.slicer.semantic_slice,
            "NeuSemSlice, centred": centred.semantic_slice,
        }
        self.masker = Masker(trial.model)

    def slice(self, way: str, setting: float) -> CriticalNeurons:
        """Return the slice of a way at a share or threshold."""
        return self._ways[way](setting)

    def compression(self, critical: CriticalNeurons) -> float:
        """Return the share of the parameters that restructuring removes."""
        return 1 - self.masker.size(critical) / self.model.count_params()

    def of_size(self, way: str, compression: float) -> CriticalNeurons:
        """Return the slice of a way whose compression rate is nearest to one asked for."""
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
    """Return a slice of every way, all of about the same compression rate.

    The size is that of the smallest centred semantic slice that alone keeps the accuracy
    on held-out samples; the others are brought to it, as in the paper (section 5.3).

    Args:
        trial: The model and its data.
        metric: A name of `METRICS`.
        loss: Accuracy on held-out samples that the slice may lose.
    """
    sliced = SlicedModel(trial, metric)
    lowest = accuracy(trial.model, trial.held_out) - loss
    way = "NeuSemSlice, centred"
    chosen = sliced.slice(way, 1.0)
    for theta in SETTINGS[way]:
        critical = sliced.slice(way, theta)
        if accuracy(sliced.masker.neurons(critical), trial.held_out) >= lowest:
            chosen = critical
            break
    size = sliced.compression(chosen)
    return {w: chosen if w == way else sliced.of_size(w, size) for w in WAYS}


def curve_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield compression rate and test accuracy of every way at every setting (figures 5, 6)."""
    sliced = SlicedModel(trial, metric)
    for way, settings in SETTINGS.items():
        for setting in settings:
            critical = sliced.slice(way, setting)
            yield {
                "metric": metric,
                "method": way,
                "setting": setting,
                "compression": sliced.compression(critical),
                "accuracy": accuracy(sliced.masker.neurons(critical), trial.test),
            }


def deeparc_row(trial: Trial, threshold: float = 0.99) -> dict:
    """Return what removing redundant layers comes to (the star of figure 5)."""
    layers = redundant(trial, threshold)
    samples = first(trial.train, 2_000).x
    small = remove_layers(trial.model, layers, samples) if layers else trial.model
    return {
        "method": "DeepArc",
        "setting": threshold,
        "compression": 1 - small.count_params() / trial.model.count_params(),
        "accuracy": accuracy(small, trial.test),
        "removed": len(layers),
    }


def redundant(trial: Trial, threshold: float) -> list[str]:
    """Return the hidden layers that are redundant on 500 training samples."""
    im = InstrumentedModel(trial.model)
    similarities = layer_similarities(im, first(trial.train, 500).x)
    hidden = list(similarities)[:-1]
    return [name for name in redundant_layers(similarities, threshold) if name in hidden]


def masked_range_rows(trial: Trial, metric: str) -> Iterator[dict]:
    """Yield test accuracy with a tenth of every layer masked, by rank (tables 1, 2 and 3).

    "global": ranks by the scores on all samples, accuracy on all; otherwise a category's
    ranks, and the accuracy on its samples.
    """
    sliced = SlicedModel(trial, metric)
    slicer = sliced.slicer
    for low in (0.0, 0.1, 0.2, 0.3, 0.4):
        row = {"metric": metric, "range": f"{low:.0%}→{low + 0.1:.0%}"}
        masked = sliced.masker.neurons(_outside(slicer.scores, low))
        yield {**row, "category": "global", "accuracy": accuracy(masked, trial.test)}
        for i, category in enumerate(slicer.categories):
            scores = {layer: values[i] for layer, values in slicer.category_scores.items()}
            masked = sliced.masker.neurons(_outside(scores, low))
            part = of_classes(trial.test, [category])
            yield {**row, "category": str(category), "accuracy": accuracy(masked, part)}


def _outside(scores: dict[str, np.ndarray], low: float) -> dict[str, np.ndarray]:
    """Keep all neurons but a tenth of every layer, by rank from `low` on."""
    keep = {}
    for layer, score in scores.items():
        begin, end = (round(share * len(score)) for share in (low, low + 0.1))
        keep[layer] = np.ones(len(score), bool)
        keep[layer][np.argsort(-score, kind="stable")[begin:end]] = False
    return keep
