"""Pruning: scores of synapses, masks that persist in training, removal of dead neurons.

    found = scores(im, "nnslicer", x, y, classes=[3, 5])
    pruned = prune(model, found, 0.6)  # a masked Keras model
    small = compact(pruned)  # the same outputs from fewer neurons

`shrink` does all of this and more; `remove_units` removes units that you name.
"""

from nnslicer_tf._faces import explain_all
from nnslicer_tf.pruning.fine_tuning import fine_tune
from nnslicer_tf.pruning.masks import apply_masks, masks, weight_masks, without_masks
from nnslicer_tf.pruning.prune import global_ratios, keep_masks, prune, renormalise
from nnslicer_tf.pruning.rankers import ClassRanker, NNSlicerRanker, Ranker, scores, times_weight
from nnslicer_tf.pruning.removal import compact, remove_units
from nnslicer_tf.pruning.shrinking import shrink

__all__ = ["ClassRanker", "NNSlicerRanker", "Ranker", "apply_masks", "compact", "fine_tune"]
__all__ += ["global_ratios", "keep_masks", "masks", "prune", "remove_units", "renormalise"]
__all__ += ["scores", "shrink", "times_weight", "weight_masks", "without_masks"]
explain_all(globals())
