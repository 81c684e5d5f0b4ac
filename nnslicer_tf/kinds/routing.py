"""Operations that only move values, such as reshaping, padding and concatenation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import Kind, Layout, Node, register_kind
from nnslicer_tf.kinds.rescale import midpoint

ops: Any = LazyModule("keras.ops")


@dataclass(frozen=True, eq=False)
class _Links:
    """The index map of a routing operation, for one of its inputs.

    Attributes:
        shape: Shape of the input's neurons.
        sources: Row-major indices of neurons of the input.
        targets: Row-major indices of the output neurons to which they are moved.
    """

    shape: tuple[int, ...]
    sources: np.ndarray
    targets: np.ndarray

    @cached_property
    def one_to_one(self) -> bool:
        """Whether no neuron of the input is moved to several outputs."""
        return len(np.unique(self.sources)) == len(self.sources)


def _links(operation: Operation, layout: Layout) -> list[_Links]:
    """Return, for each input, the distinct pairs of neurons that are linked."""
    by_channel = layout.granularity == "channel"
    sources = routing_map(operation).ravel()
    targets = np.arange(sources.size)
    moved = sources != INSERTED
    sources, targets = sources[moved], targets[moved]
    if by_channel:
        targets = targets % operation.shape[-1]
    links = []
    first = 0
    for shape in operation.input_shapes:
        size = int(np.prod(shape))
        of_input = (sources >= first) & (sources < first + size)
        source, target = sources[of_input] - first, targets[of_input]
        if by_channel:
            pairs = np.unique(np.stack([source % shape[-1], target]), axis=1)
            source, target = pairs
        links.append(_Links(layout.shape(shape), source, target))
        first += size
    return links


def _move(node: Node, contribution: np.ndarray) -> list[np.ndarray]:
    """Propagate CONTRIB unchanged; a neuron that is moved to several outputs gets their sum."""
    batch = len(contribution)
    moved = contribution.reshape(batch, -1)
    received = []
    for links in node.table:
        to_input = np.zeros((batch, int(np.prod(links.shape))), _wide(contribution.dtype))
        if links.one_to_one:
            to_input[:, links.sources] = moved[:, links.targets]
        else:
            np.add.at(to_input.T, links.sources, moved[:, links.targets].T)
        received.append(to_input.reshape(batch, *links.shape))
    return received


def _wide(dtype: np.dtype) -> np.dtype:
    """Return the type for sums of contributions."""
    return np.dtype(np.int32) if np.issubdtype(dtype, np.integer) else dtype


def _at_zero(
    operation: Operation, contribution: Any, signs: Sequence[Any], values: Mapping
) -> list[Any]:
    zeros = [ops.zeros((ops.shape(contribution)[0], *s)) for s in operation.input_shapes]
    return list(vector_jacobian_product(operation.compute, zeros, contribution))


register_kind(
    Kind(
        "routing",
        move=_move,
        table=_links,
        at_zero=_at_zero,
        rescale=midpoint,
    )
)
