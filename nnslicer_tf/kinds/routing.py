"""Operations that only move values, such as reshaping and concatenation, and masks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import AtZero, Kind, Layout, Node, Rule, register_kind
from nnslicer_tf.kinds.rescale import midpoint


class _Links(NamedTuple):
    """The index map of a routing operation, for one of its inputs."""

    shape: tuple[int, ...]  # of the input's neurons
    sources: np.ndarray  # row-major indices of neurons of the input
    targets: np.ndarray  # row-major indices of the output neurons to which they are moved
    one_to_one: bool  # whether no neuron of the input is moved to several outputs


def _table(operation: Operation, layout: Layout) -> list[_Links]:
    """Return, for each input, the distinct pairs of neurons that are linked."""
    by_channel = layout.granularity == "channel"
    sources = routing_map(operation).ravel()
    targets = np.arange(sources.size)
    moved = sources != INSERTED
    sources, targets = sources[moved], targets[moved]
    if by_channel:
        targets = targets % (1, *operation.shape)[-1]  # a value without axes is one channel
    links = []
    first = 0
    for shape in operation.input_shapes:
        size = int(np.prod(shape))
        of_input = (sources >= first) & (sources < first + size)
        source, target = sources[of_input] - first, targets[of_input]
        if by_channel:
            source, target = np.unique(np.stack([source % (1, *shape)[-1], target]), axis=1)
        one_to_one = len(np.unique(source)) == len(source)
        links.append(_Links(layout.shape(shape), source, target, one_to_one))
        first += size
    return links


def _move(node: Node, theta: float, contribution: np.ndarray, *_: Any) -> list[np.ndarray]:
    """Propagate CONTRIB unchanged; a neuron that is moved to several outputs gets their sum."""
    batch = len(contribution)
    moved = contribution.reshape(batch, -1)
    received = []
    for links in node.table:
        to_input = np.zeros((batch, int(np.prod(links.shape))), np.int32)
        if links.one_to_one:
            to_input[:, links.sources] = moved[:, links.targets]
        else:
            np.add.at(to_input.T, links.sources, moved[:, links.targets].T)
        received.append(to_input.reshape(batch, *links.shape))
    return received


def _at_zero(operation: Operation, contribution: Any, signs: list, values: Mapping) -> list[Any]:
    zeros = [ops.zeros((ops.shape(contribution)[0], *s), "float32") for s in operation.input_shapes]
    return list(vector_jacobian_product(operation.compute, zeros, contribution))


def _stop(node: Node | Operation, *_: Any) -> list[None]:
    """Propagate nothing: a mask is treated as constant, whatever it is computed from."""
    return [None] * len(node.inputs)


register_kind(
    Kind("routing", moves=True), Rule(_move, _move, table=_table), AtZero(_at_zero), midpoint
)

register_kind(Kind("mask", moves=True), Rule(_stop, _stop), AtZero(_stop), _stop)
