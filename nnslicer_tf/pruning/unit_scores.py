"""Scores of units from the scores of their synapses, for channels that are removed together.

The score of a channel is the sum of the magnitudes of its incoming and outgoing synapses' scores,
divided by their mean in each kernel so that all kernels have equal weight.
"""

from collections.abc import Mapping

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning.channels import is_reader
from nnslicer_tf.pruning.groups import ChannelGroups
from nnslicer_tf.pruning.recurrent_units import gate_reads, is_removable


def unit_scores(
    im: InstrumentedModel, groups: ChannelGroups, scores: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return a score for each group of channels, `(groups,)` float64.

    Args:
        im: The model.
        groups: Its `channel_groups`.
        scores: Kernel name → scores of its synapses, as from `pruning.scores`.
    """
    total = np.zeros(len(groups.fixed))
    seen = set()
    for operation in im.operations:
        if is_removable(operation):  # a gate of a recurrent layer
            for source, weights in gate_reads(operation):
                matrix = np.abs(weights.columns(np.asarray(scores[weights.kernel.name], float)))
                np.add.at(total, groups.of[operation.name], _over_mean(matrix.sum(axis=0)))
                np.add.at(total, groups.of[source], _over_mean(matrix.sum(axis=1)))
        if operation.kind != "weighted_sum" or operation.params.name in seen:
            continue
        kernel = operation.params
        seen.add(kernel.name)
        matrix = np.abs(kernel.from_kernel(np.asarray(scores[kernel.name], np.float64)))
        incoming = matrix.sum(axis=(0, 1))
        np.add.at(total, groups.of[operation.name], _over_mean(incoming))
        if is_reader(operation) and kernel.groups == 1:
            outgoing = matrix.sum(axis=(0, 2))
            np.add.at(total, groups.of[operation.inputs[0]], _over_mean(outgoing))
    return total


def _over_mean(values: np.ndarray) -> np.ndarray:
    mean = values.mean()
    return values / mean if mean else values


def families(im: InstrumentedModel, groups: ChannelGroups) -> np.ndarray:
    """Return the number of each group's family; groups in a family compete with each other.

    A family has the channels of one layer, or of layers whose channels are added to each other.
    """
    family = np.full(len(groups.fixed), -1)
    count = 0
    for operation in im.operations:
        if is_reader(operation) or is_removable(operation):
            numbers = groups.of[operation.name]
            known = family[numbers]
            number = known.max() if (known >= 0).any() else count
            family[numbers[known < 0]] = number
            count = max(count, number + 1)
    return family
