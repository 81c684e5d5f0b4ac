"""Pruning: scores of synapses, masks that persist in training, removal of dead neurons.

    found = scores(im, "nnslicer", x, y, classes=[3, 5])
    pruned = prune(model, found, 0.6)  # a masked Keras model
    small = compact(pruned)  # the same outputs from fewer neurons

`RANKERS` lists the methods by name; `remove_units` removes units that you name.
"""

from nnslicer_tf.pruning.class_scores import ClassScores
from nnslicer_tf.pruning.costs import Costs, measure_costs, multiply_adds
from nnslicer_tf.pruning.fine_tuning import fine_tune, imitate
from nnslicer_tf.pruning.masks import MaskedPredictor, apply_masks, masks, without_masks
from nnslicer_tf.pruning.normalisation import renormalise
from nnslicer_tf.pruning.prune import global_ratios, keep_masks, prune
from nnslicer_tf.pruning.quotas import QUOTAS
from nnslicer_tf.pruning.rankers import (
    RANKERS,
    ChannelRanker,
    ClassRanker,
    EffectivePathRanker,
    NNSlicerRanker,
    RandomRanker,
    Ranker,
    WeightRanker,
    scores,
)
from nnslicer_tf.pruning.reconstruction import reconstruct
from nnslicer_tf.pruning.removal import compact, mask_units, remove_units
from nnslicer_tf.pruning.shrinking import Shrunk, shrink
from nnslicer_tf.pruning.subsets import draw_subsets, subset_figures
from nnslicer_tf.pruning.weight_mask import WeightMask
from nnslicer_tf.pruning.weighted_scores import ties_by_weight, times_weight

__all__ = [
    "QUOTAS",
    "RANKERS",
    "ChannelRanker",
    "ClassRanker",
    "ClassScores",
    "Costs",
    "EffectivePathRanker",
    "MaskedPredictor",
    "NNSlicerRanker",
    "RandomRanker",
    "Ranker",
    "Shrunk",
    "WeightMask",
    "WeightRanker",
    "apply_masks",
    "compact",
    "draw_subsets",
    "fine_tune",
    "global_ratios",
    "imitate",
    "keep_masks",
    "mask_units",
    "masks",
    "measure_costs",
    "multiply_adds",
    "prune",
    "reconstruct",
    "remove_units",
    "renormalise",
    "scores",
    "shrink",
    "subset_figures",
    "ties_by_weight",
    "times_weight",
    "without_masks",
]
