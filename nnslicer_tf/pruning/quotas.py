"""Quotas, which distribute the removal of units over the layers until enough parameters are gone.

To add one, write a function that maps candidates, scores and ratio to the groups that stay, and
add a line to `QUOTAS`.
"""

import math
from collections.abc import Callable

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, Synapses
from nnslicer_tf.pruning.groups import ChannelGroups
from nnslicer_tf.pruning.recurrent_units import gate_reads, is_removable
from nnslicer_tf.pruning.removal import size_without_groups

_LEAST = 8  # at least an eighth of every layer stays, and at least two units
_MULTIPLY_ADDS = 0.4  # largest share of multiply-adds that "balanced" leaves
_STEPS = 16


class Candidates:
    """The groups of channels that can be removed.

    Args:
        im: The model.
        groups: Its groups of channels.
        families: The family of each group; groups in a family compete for the same layer.
        first: Groups that stay at first, which are all except unwanted outputs.

    Attributes:
        numbers: Numbers of the groups that can be removed.
        families: Their families, of the same length.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        groups: ChannelGroups,
        families: np.ndarray,
        first: np.ndarray,
    ) -> None:
        self.im = im
        self.groups = groups
        self.first = first
        free = first & ~groups.fixed & (families >= 0)
        self.numbers = np.flatnonzero(free)
        self.families = families[self.numbers]
        everything = np.ones(len(first), bool)
        self._parameters = size_without_groups(im, groups, everything)
        self._multiply_adds = self._count(everything)

    @property
    def any(self) -> bool:
        """Whether any group can be removed."""
        return len(self.numbers) > 0

    def parameters(self, stays: np.ndarray) -> float:
        """Return the share of the parameters that is left."""
        return size_without_groups(self.im, self.groups, stays) / self._parameters

    def multiply_adds(self, stays: np.ndarray) -> float:
        """Return the share of the multiply-adds that is left."""
        return self._count(stays) / self._multiply_adds

    def best(self, shares: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the groups that stay if every family keeps a share of its groups, best first.

        Args:
            shares: Family → share of its groups that stay.
            scores: Score of each group.
        """
        stays = self.first.copy()
        stays[self.numbers] = False
        for family in np.unique(self.families):
            members = self.numbers[self.families == family]
            least = min(len(members), max(2, len(members) // _LEAST))
            count = max(least, round(min(shares[family], 1.0) * len(members)))
            stays[members[np.argsort(-scores[members], kind="stable")[:count]]] = True
        return stays

    def costs(self) -> np.ndarray:
        """Return each family's cost: its share of parameters plus its share of multiply-adds."""
        costs = np.zeros(self.families.max() + 1)
        for family in np.unique(self.families):
            stays = self.first.copy()
            stays[self.numbers[self.families == family]] = False
            costs[family] = self.parameters(self.first) - self.parameters(stays)
            costs[family] += self.multiply_adds(self.first) - self.multiply_adds(stays)
        return costs

    def _count(self, stays: np.ndarray) -> int:
        total = 0
        for operation in self.im.operations:
            kernel = operation.params
            if isinstance(kernel, Synapses):
                outputs = stays[self.groups.of[operation.name]].sum()
                inputs = stays[self.groups.of[operation.inputs[0]]].sum()
                read = kernel.matrix().shape[1] if kernel.groups > 1 else inputs
                total += kernel.taps.size * int(read) * int(outputs)
            for source, _ in gate_reads(operation) if is_removable(operation) else ():
                units = stays[self.groups.of[operation.name]].sum()
                steps = math.prod(operation.shape[:-1])
                total += steps * int(units) * int(stays[self.groups.of[source]].sum())
        return total


Quota = Callable[[Candidates, np.ndarray, float], np.ndarray]
"""Function that takes candidates, the score of each group and the share of parameters to remove,
and returns whether each group stays, bool `(groups,)`."""


def by_layer(candidates: Candidates, scores: np.ndarray, ratio: float) -> np.ndarray:
    """Keep the same share of every family."""
    even = np.ones(candidates.families.max() + 1)
    return _largest(lambda share: candidates.best(share * even, scores), candidates, ratio, 1.0)


def overall(candidates: Candidates, scores: np.ndarray, ratio: float) -> np.ndarray:
    """Keep the largest scores, whatever their layer."""
    own = scores[candidates.numbers]

    def of(share: float) -> np.ndarray:
        above = own >= np.quantile(own, 1 - share)
        kept = np.bincount(candidates.families, above, candidates.families.max() + 1)
        sizes = np.bincount(candidates.families, minlength=len(kept))
        return candidates.best(kept / np.maximum(sizes, 1), scores)

    return _largest(of, candidates, ratio, 1.0)


def balanced(candidates: Candidates, scores: np.ndarray, ratio: float) -> np.ndarray:
    """Keep less of the families that cost more, until multiply-adds are reduced as well.

    The share of a family is inversely proportional to the square root of its cost, because a
    layer's cost is, to first order, the product of its own share and the previous layer's.
    """
    costs = candidates.costs()
    relative = 1 / np.sqrt(np.maximum(costs, costs.max() / 100) / costs.max())
    most = max(1 - ratio, _MULTIPLY_ADDS)
    return _largest(
        lambda share: candidates.best(share * relative, scores), candidates, ratio, most
    )


def _largest(
    of: Callable[[float], np.ndarray], candidates: Candidates, ratio: float, multiply_adds: float
) -> np.ndarray:
    """Return the groups that stay at the largest share that meets the limits, by bisection."""

    def fits(stays: np.ndarray) -> bool:
        few = candidates.parameters(stays) <= 1 - ratio
        return few and candidates.multiply_adds(stays) <= multiply_adds

    if not fits(of(0.0)):
        raise InvalidArgumentError(
            f"Cannot remove that many parameters: {candidates.parameters(of(0.0)):.1%} of them "
            f"remain when every layer keeps an eighth. Received: ratio={ratio!r}"
        )
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(of(middle)) else (low, middle)
    return of(low)


QUOTAS: dict[str, Quota] = {"balanced": balanced, "layer": by_layer, "global": overall}
"""The quotas by name."""
