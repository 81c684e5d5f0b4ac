"""The pruning methods to compare: those of the paper, and our variants.

The paper's methods prune the same share of every layer. So do those that end in "renormalised";
they also re-estimate batch normalisation statistics after pruning, and sum the magnitudes of
each image's contributions. Those that end in "ours" multiply these magnitudes by the weights, and
prune the smallest scores of the whole model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnslicer_tf import pruning
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning import ClassScores
from reproduction.nnslicer.targets import Targets, TargetTask

Scores = dict[str, np.ndarray]

ENDINGS = {
    "": "the same share of each layer",
    ", renormalised": "and normalisations measured again",
    ", ours": "the smallest of the whole model",
}
"""Endings of method names → what such methods have in common."""

_RENORMALISE_ON = 500
_POWER = 0.25


@dataclass(frozen=True)
class PruningMethod:
    """A pruning method.

    Attributes:
        scores: Maps target classes to scores.
        targeted: Whether the scores depend on the classes.
        whole_model: Prune the smallest scores of the model, not the same share of each layer.
        renormalised: Re-estimate batch normalisation statistics after pruning.
    """

    scores: Callable[[Targets], Scores]
    targeted: bool = False
    whole_model: bool = False
    renormalised: bool = False

    def keep(self, targets: Targets, ratio: float) -> dict[str, np.ndarray]:
        """Return the masks for target classes and a ratio."""
        scores = self.scores(targets)
        return pruning.keep_masks(
            scores, pruning.global_ratios(scores, ratio) if self.whole_model else ratio
        )

    def statistics_of(self, train: Dataset) -> np.ndarray | None:
        """Return the images for re-estimating batch normalisation statistics, or None."""
        return train.x[:_RENORMALISE_ON] if self.renormalised else None


def ending_of(method: str) -> str:
    """Return the key of `ENDINGS` that a method's name ends in."""
    return next(ending for ending in reversed(ENDINGS) if method.endswith(ending))


def pruning_methods(task: TargetTask, seed: int) -> dict[str, PruningMethod]:
    """Return the methods of Figures 3 and 4 by name."""
    im = task.im
    slices, magnitudes, paths = (task.ranked[kind] for kind in ("slices", "magnitudes", "paths"))
    weight, channel = pruning.scores(im, "weight"), pruning.scores(im, "channel")
    random = pruning.scores(im, "random", rng=seed)
    everything, all_magnitudes = slices.total(), magnitudes.total()
    finer_all = pruning.times_weight(im, all_magnitudes, _POWER)
    again = partial(PruningMethod, renormalised=True)
    global_ = partial(PruningMethod, whole_model=True)

    def finer(scores: ClassScores) -> Callable[[Targets], Scores]:
        return lambda targets: pruning.times_weight(im, scores.total(targets), _POWER)

    return {
        "NNSlicer (targeted)": PruningMethod(slices.total, targeted=True),
        "NNSlicer (all)": PruningMethod(lambda targets: everything),
        "EffectivePath": PruningMethod(paths.total, targeted=True),
        "Weight": PruningMethod(lambda targets: weight),
        "Channel": PruningMethod(lambda targets: channel),
        "Random": PruningMethod(lambda targets: random),
        "NNSlicer (targeted), renormalised": again(magnitudes.total, True),
        "NNSlicer (all), renormalised": again(lambda targets: all_magnitudes),
        "EffectivePath, renormalised": again(paths.total, True),
        "Weight, renormalised": again(lambda targets: weight),
        "Channel, renormalised": again(lambda targets: channel),
        "Random, renormalised": again(lambda targets: random),
        "NNSlicer (targeted), ours": global_(finer(magnitudes), True),
        "NNSlicer (all), ours": global_(lambda targets: finer_all),
        "EffectivePath, ours": global_(finer(paths), True),
        "Weight, ours": global_(lambda targets: weight),
    }


def changes(task: TargetTask) -> dict[str, PruningMethod]:
    """Return variants of the paper's procedure and of pruning by weight, one change at a time."""
    im, ranked = task.im, task.ranked
    slices, magnitudes = ranked["slices"], ranked["magnitudes"]
    weight = pruning.scores(im, "weight")

    def with_weight(scores: ClassScores, power: float) -> Callable[[Targets], Scores]:
        return lambda targets: pruning.times_weight(im, scores.total(targets), power)

    finer = with_weight(magnitudes, _POWER)
    method = partial(PruningMethod, targeted=True)
    by_weight = partial(PruningMethod, lambda targets: weight)
    return {
        "paper: θ = 0.3, activations, images that the model is right on": method(slices.total),
        "θ = 0": method(ranked["theta0"].total),
        "θ = 1": method(ranked["theta1"].total),
        "channels as neurons": method(ranked["channels"].total),
        "images that the model is wrong on too": method(ranked["all-samples"].total),
        "ties by weight": method(lambda targets: _ties_by_weight(im, slices.total(targets))),
        "contributions × weight": method(with_weight(slices, 1.0)),
        "magnitudes of each image": method(magnitudes.total),
        "magnitudes of each image, ^ 0.25 × weight": method(finer),
        "normalisations measured again": method(slices.total, renormalised=True),
        "magnitudes of each image, normalisations measured again": method(
            magnitudes.total, renormalised=True
        ),
        "magnitudes of each image, ^ 0.25 × weight, normalisations measured again": method(
            finer, renormalised=True
        ),
        "ours: magnitudes ^ 0.25 × weight, smallest of the model": method(finer, whole_model=True),
        "Weight": by_weight(),
        "Weight, normalisations measured again": by_weight(renormalised=True),
        "Weight, smallest of the model": by_weight(whole_model=True),
    }


def _ties_by_weight(im: InstrumentedModel, scores: Scores) -> Scores:
    """Return scores that order synapses by |score|, and ties by |weight|."""
    result = {}
    for name, score in scores.items():
        weights = np.abs(im.kernels[name].kernel().astype(np.float64))
        largest = max(weights.max(), np.finfo(np.float64).tiny)
        result[name] = np.abs(score) + weights / largest / 2
    return result
