"""The pruning methods to compare: those of the paper, and our variants.

The paper's methods prune the same share of every layer. So do those that end in "renormalised";
they also re-estimate batch normalisation statistics after pruning, and sum the magnitudes of
each image's contributions. Those that end in "ours" multiply these magnitudes by the weights, and
prune the smallest scores of the whole model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from nnslicer_tf import pruning
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning.class_scores import ClassScores
from reproduction.nnslicer.targets import Targets, TargetTask

Scores = dict[str, np.ndarray]

ENDINGS = {
    "": "the same share of each layer",
    ", renormalised": "and normalisations measured again",
    ", ours": "the smallest of the whole model",
}
"""Endings of method names → what such methods have in common."""

RENORMALISE_ON = 500
POWER = 0.25


@dataclass(frozen=True)
class PruningMethod:
    """A pruning method."""

    scores: Callable[[Targets], Scores]
    targeted: bool = False  # whether the scores depend on the classes
    whole_model: bool = False  # prune the model's smallest scores, not the same share of each layer
    renormalised: bool = False  # re-estimate batch normalisation statistics after pruning

    @classmethod
    def fixed(cls, scores: Scores, **options: bool) -> Self:
        """Return a method with the same scores for all target classes."""
        return cls(lambda targets: scores, **options)

    def keep(self, targets: Targets, ratio: float) -> dict[str, np.ndarray]:
        """Return the masks for target classes and a ratio."""
        scores = self.scores(targets)
        return pruning.keep_masks(
            scores, pruning.global_ratios(scores, ratio) if self.whole_model else ratio
        )


def ending_of(method: str) -> str:
    """Return the key of `ENDINGS` that a method's name ends in."""
    return next(ending for ending in reversed(ENDINGS) if method.endswith(ending))


def pruning_methods(task: TargetTask, seed: int) -> dict[str, PruningMethod]:
    """Return the methods of Figures 3 and 4 by name."""
    im, fixed = task.im, PruningMethod.fixed
    slices, magnitudes, paths = (task.ranked[kind] for kind in ("slices", "magnitudes", "paths"))
    weight, channel = pruning.scores(im, "weight"), pruning.scores(im, "channel")
    random = pruning.scores(im, "random", rng=seed)
    targeted = partial(PruningMethod, targeted=True)
    again, whole = {"renormalised": True}, {"whole_model": True}
    return {
        "NNSlicer (targeted)": targeted(slices.total),
        "NNSlicer (all)": fixed(slices.total()),
        "EffectivePath": targeted(paths.total),
        "Weight": fixed(weight),
        "Channel": fixed(channel),
        "Random": fixed(random),
        "NNSlicer (targeted), renormalised": targeted(magnitudes.total, **again),
        "NNSlicer (all), renormalised": fixed(magnitudes.total(), **again),
        "EffectivePath, renormalised": targeted(paths.total, **again),
        "Weight, renormalised": fixed(weight, **again),
        "Channel, renormalised": fixed(channel, **again),
        "Random, renormalised": fixed(random, **again),
        "NNSlicer (targeted), ours": targeted(_times_weight(im, magnitudes), **whole),
        "NNSlicer (all), ours": fixed(pruning.times_weight(im, magnitudes.total(), POWER), **whole),
        "EffectivePath, ours": targeted(_times_weight(im, paths), **whole),
        "Weight, ours": fixed(weight, **whole),
    }


def changes(task: TargetTask) -> dict[str, PruningMethod]:
    """Return variants of the paper's procedure and of pruning by weight, one change at a time."""
    im, ranked = task.im, task.ranked
    slices, magnitudes = ranked["slices"], ranked["magnitudes"]
    finer = _times_weight(im, magnitudes)
    targeted = partial(PruningMethod, targeted=True)
    by_weight = partial(PruningMethod.fixed, pruning.scores(im, "weight"))
    again = {"renormalised": True}
    power = "magnitudes of each image, ^ 0.25 × weight"
    return {
        "paper: θ = 0.3, activations, images that the model is right on": targeted(slices.total),
        "θ = 0": targeted(ranked["theta0"].total),
        "θ = 1": targeted(ranked["theta1"].total),
        "channels as neurons": targeted(ranked["channels"].total),
        "images that the model is wrong on too": targeted(ranked["all-samples"].total),
        "ties by weight": targeted(lambda targets: _ties_by_weight(im, slices.total(targets))),
        "contributions × weight": targeted(_times_weight(im, slices, 1.0)),
        "magnitudes of each image": targeted(magnitudes.total),
        power: targeted(finer),
        "normalisations measured again": targeted(slices.total, **again),
        "magnitudes of each image, normalisations measured again": targeted(
            magnitudes.total, **again
        ),
        f"{power}, normalisations measured again": targeted(finer, **again),
        "ours: magnitudes ^ 0.25 × weight, smallest of the model": targeted(
            finer, whole_model=True
        ),
        "Weight": by_weight(),
        "Weight, normalisations measured again": by_weight(**again),
        "Weight, smallest of the model": by_weight(whole_model=True),
    }


def _times_weight(
    im: InstrumentedModel, scores: ClassScores, power: float = POWER
) -> Callable[[Targets], Scores]:
    return lambda targets: pruning.times_weight(im, scores.total(targets), power)


def _ties_by_weight(im: InstrumentedModel, scores: Scores) -> Scores:
    """Return scores that order synapses by |score|, and ties by |weight|."""
    result = {}
    for name, score in scores.items():
        weights = np.abs(im.kernels[name].kernel().astype(np.float64))
        largest = max(weights.max(), np.finfo(np.float64).tiny)
        result[name] = np.abs(score) + weights / largest / 2
    return result
