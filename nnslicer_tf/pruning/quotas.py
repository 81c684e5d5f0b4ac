"""Quotas, which distribute the removal of units over the layers until enough parameters are gone.

A unit's score is the sum of |score| over its incoming and outgoing synapses, divided by the mean in
each kernel to give all kernels equal weight. A family has the channels of one layer, or of layers
whose channels are added to each other; its members compete.
"""

import math
from collections import Counter

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Synapses
from nnslicer_tf.pruning.channels import is_reader
from nnslicer_tf.pruning.class_scores import Scores
from nnslicer_tf.pruning.groups import ChannelGroups, own_layer
from nnslicer_tf.pruning.removal import size_without_groups
from nnslicer_tf.pruning.units import gate_reads, is_removable

QUOTAS = ("layer", "balanced", "global")

_MIN_SHARE = 8  # at least an eighth of every layer stays, and at least two units
_MAX_MULTIPLY_ADDS = 0.4  # largest share of multiply-adds that "balanced" leaves
_STEPS = 16


def unit_scores(im: InstrumentedModel, groups: ChannelGroups, scores: Scores) -> np.ndarray:
    """Return a score for each group of channels, `(groups,)` float64, from scores of synapses."""
    total = np.zeros(len(groups.fixed))

    def add(name: str, values: np.ndarray) -> None:
        mean = values.mean()
        np.add.at(total, groups.of[name], values / mean if mean else values)

    seen = set()
    for operation in im.operations:
        for source, weights in gate_reads(operation) if is_removable(operation) else ():
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


class Candidates:
    """The removable groups of channels, `numbers`, and their `families`; at first `first` stay."""

    def __init__(self, im: InstrumentedModel, groups: ChannelGroups, first: np.ndarray) -> None:
        self._im = im
        self._groups = groups
        self._first = first
        families = np.full(len(groups.fixed), -1)
        count = 0
        for operation in im.operations:
            if is_reader(operation) or is_removable(operation):
                members = groups.of[operation.name]
                known = families[members]
                family = known.max() if (known >= 0).any() else count
                families[members[known < 0]] = family
                count = max(count, family + 1)
        self.numbers = np.flatnonzero(first & ~groups.fixed & (families >= 0))
        self.families = families[self.numbers]
        self._whole = np.ones(2)
        self._whole = self._shares(np.ones(len(first), bool))

    def _shares(self, stays: np.ndarray) -> np.ndarray:
        """Return the remaining shares of the parameters and of the multiply-adds."""
        multiply_adds = 0
        for operation in self._im.operations:
            kernel, units = operation.params, int(stays[self._groups.of[operation.name]].sum())
            if isinstance(kernel, Synapses):
                inputs = int(stays[self._groups.of[operation.inputs[0]]].sum())
                read = kernel.layout.from_kernel(np.empty(kernel.shape, np.int8)).shape[1]
                multiply_adds += kernel.taps.size * units * (read if kernel.groups > 1 else inputs)
            for source, _ in gate_reads(operation) if is_removable(operation) else ():
                steps = math.prod(operation.shape[:-1])
                multiply_adds += steps * units * int(stays[self._groups.of[source]].sum())
        parameters = size_without_groups(self._im, self._groups, stays)
        return np.array([parameters, multiply_adds]) / self._whole

    def _best(self, shares: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the groups that stay if every family keeps its share of them, best first."""
        stays = self._first.copy()
        stays[self.numbers] = False
        for family in np.unique(self.families):
            members = self.numbers[self.families == family]
            least = min(len(members), max(2, len(members) // _MIN_SHARE))
            count = max(least, round(min(shares[family], 1.0) * len(members)))
            stays[members[np.argsort(-scores[members], kind="stable")[:count]]] = True
        return stays

    def _unchangeable(self) -> str:
        """Return which layers keep all their units, and the remedy, as a sentence, or ""."""
        sizes: Counter[str] = Counter()
        for operation in self._im.operations:
            layer = own_layer(self._im, operation)
            if layer and isinstance(operation.params, Synapses):
                sizes[f"'{layer}'"] += math.prod(operation.params.shape)
        if not sizes:
            return ""
        names = ", ".join(name for name, _ in sizes.most_common(3))
        return (
            f"The layers inside {names} keep all their units, because the code of an "
            "own layer says how many there are: write it as a function of layers, or as a Keras "
            "model, whose layers can be rebuilt for fewer. "
        )

    def choose(self, scores: np.ndarray, ratio: float, quota: str) -> np.ndarray:
        """Return which groups stay, bool `(groups,)`, without a share `ratio` of the parameters."""
        count = self.families.max() + 1
        relative = np.ones(count)
        limits = np.array([1 - ratio, 1.0])
        if quota == "balanced":
            # A layer's cost is, to first order, the product of its own share and that of the
            # previous layer: shares are inversely proportional to the square root of the cost.
            costs = np.zeros(count)
            for family in np.unique(self.families):
                stays = self._first.copy()
                stays[self.numbers[self.families == family]] = False
                costs[family] = (self._shares(self._first) - self._shares(stays)).sum()
            relative = 1 / np.sqrt(np.maximum(costs, costs.max() / 100) / costs.max())
            limits[1] = max(1 - ratio, _MAX_MULTIPLY_ADDS)

        def stays_at(share: float) -> np.ndarray:
            if quota != "global":
                return self._best(share * relative, scores)
            own = scores[self.numbers]
            above = np.bincount(self.families, own >= np.quantile(own, 1 - share), count)
            sizes = np.bincount(self.families, minlength=count)
            return self._best(above / np.maximum(sizes, 1), scores)

        def fits(stays: np.ndarray) -> bool:
            return bool((self._shares(stays) <= limits).all())

        # The largest share that meets the limits, by bisection.
        if not fits(stays_at(0.0)):
            left = self._shares(stays_at(0.0))[0]
            raise InvalidArgumentError(
                f"Cannot remove that many parameters: {left:.1%} of them remain when every layer "
                f"keeps an eighth of its units. {self._unchangeable()}Use a smaller ratio. "
                f"Received: ratio={ratio!r}"
            )
        low, high = 0.0, 1.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(stays_at(middle)) else (low, middle)
        return stays_at(low)
