"""Which units to remove: the same share of every layer, until enough parameters are gone.

A unit's score is the sum of |score| over its incoming and outgoing synapses, divided by the mean in
each kernel to give all kernels equal weight. A family has the channels of one layer, or of layers
whose channels are added to each other; its members compete.
"""

import math
from bisect import bisect
from collections import Counter

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Synapses
from nnslicer_tf.pruning.channels import is_reader
from nnslicer_tf.pruning.groups import ChannelGroups, own_layer
from nnslicer_tf.pruning.rankers import Scores
from nnslicer_tf.pruning.removal import size_without_groups
from nnslicer_tf.pruning.units import gate_reads, is_removable

_MIN_SHARE = 8  # at least an eighth of every layer stays, and at least two units
_STEPS = 1 << 16  # of the shares that are tried


def unit_scores(im: InstrumentedModel, groups: ChannelGroups, scores: Scores) -> np.ndarray:
    """Return a score for each group of channels, `(groups,)` float64, from scores of synapses."""
    total = np.zeros(len(groups.fixed))

    def add(name: str, values: np.ndarray) -> None:
        mean = values.mean()
        np.add.at(total, groups.of[name], values / mean if mean else values)

    seen = set()
    for operation in im.operations:
        for source, weights in gate_reads(operation):
            matrix = np.abs(weights.columns(np.asarray(scores[weights.kernel.name], float)))
            add(operation.name, matrix.sum(axis=0))
            add(source, matrix.sum(axis=1))
        kernel = operation.params
        if operation.kind == "weighted_sum" and kernel.name not in seen:
            seen.add(kernel.name)
            matrix = np.abs(kernel.from_kernel(np.asarray(scores[kernel.name], np.float64)))
            add(operation.name, matrix.sum(axis=(0, 1)))
            if is_reader(operation) and kernel.groups == 1:
                add(operation.inputs[0], matrix.sum(axis=(0, 2)))
    return total


def families_of(im: InstrumentedModel, groups: ChannelGroups, first: np.ndarray) -> np.ndarray:
    """Return the family of each group of channels that can be removed, `(groups,)`; −1 for others.

    `first` are the groups that initially stay, bool `(groups,)`.
    """
    families = np.full(len(groups.fixed), -1)
    count = 0
    for operation in im.operations:
        if is_reader(operation) or is_removable(operation):
            members = groups.of[operation.name]
            known = families[members]
            family = known.max() if (known >= 0).any() else count
            families[members[known < 0]] = family
            count = max(count, family + 1)
    return np.where(first & ~groups.fixed, families, -1)


def remaining_groups(
    im: InstrumentedModel,
    groups: ChannelGroups,
    first: np.ndarray,
    families: np.ndarray,
    scores: np.ndarray,
    ratio: float,
) -> np.ndarray:
    """Return which groups stay, bool `(groups,)`, to remove a share `ratio` of the parameters."""
    whole = size_without_groups(im, groups, np.ones(len(first), bool))

    def stays_at(share: float) -> np.ndarray:
        """Return the groups that stay if every family keeps this share of its groups, the best."""
        stays = first & (families < 0)
        for family in np.unique(families[families >= 0]):
            members = np.flatnonzero(families == family)
            least = min(len(members), max(2, len(members) // _MIN_SHARE))
            count = max(least, round(share * len(members)))
            stays[members[np.argsort(-scores[members], kind="stable")[:count]]] = True
        return stays

    def left(share: float) -> float:
        return size_without_groups(im, groups, stays_at(share)) / whole

    if left(0.0) > 1 - ratio:
        raise InvalidArgumentError(
            f"Cannot remove that many parameters: {left(0.0):.1%} of them remain even if every "
            f"layer keeps only an eighth of its units. {_unchangeable(im)}Use a smaller ratio. "
            f"Received: ratio={ratio!r}"
        )
    # The largest share that leaves few enough parameters.
    steps = range(1, _STEPS)
    return stays_at(bisect(steps, 1 - ratio, key=lambda step: left(step / _STEPS)) / _STEPS)


def _unchangeable(im: InstrumentedModel) -> str:
    """Return which layers keep all their units, and the remedy, as a sentence, or ""."""
    sizes: Counter[str] = Counter()
    for operation in im.operations:
        layer = own_layer(im, operation)
        if layer and isinstance(operation.params, Synapses):
            sizes[f"'{layer}'"] += math.prod(operation.params.shape)
    if not sizes:
        return ""
    names = ", ".join(name for name, _ in sizes.most_common(3))
    return (
        f"The layers inside {names} keep all their units, because a custom layer's code fixes "
        "their number: write it as a function of layers, or as a Keras model. "
    )
