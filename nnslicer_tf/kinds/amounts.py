"""Amounts with exclusion: multipliers of an operation's inputs, at any θ, without Keras.

A kind's rule takes the multipliers of an operation's outputs, finds the inputs that θ excludes as
its rule for counts does, and returns the multipliers of the others by DeepLIFT's rules (see
`rescale`). At granularity "channel", the means of a filter's channels decide the exclusion, and
the multipliers are those of single elements.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnslicer_tf._kernels import sums
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import Affine, Operation, Statistics
from nnslicer_tf.kinds import rescale
from nnslicer_tf.kinds.kind import Neurons, Node
from nnslicer_tf.kinds.lookup import add_rows
from nnslicer_tf.kinds.pointwise import excluded
from nnslicer_tf.kinds.pooling import expand_average
from nnslicer_tf.kinds.products import expand_products, expand_softmax
from nnslicer_tf.kinds.weighted_sum import synapses_by_kernel
from nnslicer_tf.kinds.windows import flat

Parts = tuple[Sequence[np.ndarray | None], dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Expansion:
    """An operation that is expanded in a batch."""

    node: Node  # all elements are neurons
    theta: float
    given: np.ndarray  # the multipliers of its outputs, (batch, *shape) float32
    output: Neurons
    inputs: Sequence[Neurons]
    # at granularity "channel": the node, its neurons, and its inputs', by channel
    by_channel: tuple[Node, Neurons, Sequence[Neurons]] | None = None
    each: bool = False  # keep the synapses' amounts of each sample separate
    data: Any = None  # result of `data_of` for the operation
    slopes: np.ndarray | None = None  # Δoutput / Δinput, for a function of single values


def data_of(operation: Operation) -> Any:
    """Return what a rule needs besides its node's table; refuse kinds without a rule."""
    kind = operation.kind
    if kind == "scale" and isinstance(operation.params, Affine):
        return operation.params.read()[0].astype(np.float32)
    if kind == "scale" and isinstance(operation.params, Statistics):
        import keras  # where plans are made; workers, which only follow them, need no Keras

        gamma = keras.ops.convert_to_numpy(operation.params.gamma()).astype(np.float32)
        return replace(operation.params, gamma=None), gamma  # type: ignore[arg-type]
    if kind not in RULES:
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' is of kind '{kind}', for which amounts have no rule "
            "with exclusion. Pass theta=0, or contribution='count'."
        )
    return None


def needs_slopes(operation: Operation) -> bool:
    """Return whether a rule needs the operation's slopes."""
    if operation.kind == "scale":
        return not isinstance(operation.params, (Affine, Statistics))
    return operation.kind in ("rectify", "elementwise")


def _weighted_sum(at: Expansion) -> Parts:
    (x,) = at.inputs
    if at.by_channel is not None:
        return _weighted_sum_by_channel(at, *at.by_channel)
    table = at.node.table
    shape = (len(at.given), len(table.taps), -1)
    received, synapses = sums.weighted_sum(
        at.given.reshape(shape),
        at.output.reference.reshape(shape),
        flat(x.delta),
        table.weights,
        table.taps,
        at.theta,
        at.each,
        by_sum=at.output.is_relative_to_sum and x.mask is not None,
        changes=flat(x.change),
    )
    return [received.reshape(x.captured.shape)], synapses_by_kernel(table, synapses)


def _weighted_sum_by_channel(
    at: Expansion, node: Node, output: Neurons, inputs: Sequence[Neurons]
) -> Parts:
    """Exclude by the means of channels, and use the rest of the kernel for every position."""
    table, (x,) = at.node.table, at.inputs
    samples, channels = len(at.given), at.given.shape[-1]
    expanded = (at.given.reshape(samples, -1, channels) != 0).any(axis=1).astype(np.int8)
    assert node.kind.synapse_rule is not None
    _, members = node.kind.synapse_rule(node, at.theta, expanded, output, inputs, True)
    given, change = flat(at.given), flat(x.change)
    sources, groups = change.shape[-1], table.kernel.groups
    positions, taps = table.taps.shape
    last = change.shape[1]
    read = np.where(table.taps < 0, last, table.taps)
    received = np.zeros((samples, last + 1, sources), np.float32)
    amounts = np.zeros((samples if at.each else 1, *table.kernel.shape), np.float32)
    weights = table.weights.reshape(channels, taps, -1).transpose(1, 2, 0)  # taps, inputs, outputs
    for sample in range(samples):
        kept = table.kernel.from_kernel(members[table.kernel.name][sample] != 0)
        kernel = (weights * kept).reshape(taps, -1, groups, channels // groups)
        padded = np.pad(change[sample], ((0, 1), (0, 0)))
        of_outputs = given[sample].reshape(positions, groups, -1)
        found = np.zeros((taps, sources // groups, groups, channels // groups), np.float32)
        for tap in range(taps):
            to_tap = np.einsum("pgo,igo->pgi", of_outputs, kernel[tap], optimize=True)
            # No two outputs read the same position with one tap, except for padding.
            received[sample, read[:, tap]] += to_tap.reshape(positions, sources)
            window = padded[read[:, tap]].reshape(positions, groups, -1)
            found[tap] = np.einsum("pgi,pgo->igo", window, of_outputs, optimize=True)
        found *= kernel
        row = sample if at.each else 0
        amounts[row] += table.kernel.to_kernel(found.reshape(taps, -1, channels))
    parts = [received[:, :-1].reshape(x.captured.shape)]
    return parts, {table.kernel.name: amounts}


def _average(at: Expansion) -> Parts:
    theta = 0.0 if at.by_channel else at.theta
    return expand_average(at.node, theta, at.given, at.output, at.inputs, amounts=True), {}


def _maximum(at: Expansion) -> Parts:
    """Assign a maximum's change to the elements that attain it: the first in each window."""
    (x,) = at.inputs
    taps, channels = at.node.table, x.captured.shape[-1]
    last = int(np.prod(x.captured.shape[1:-1]))
    ends = []
    for values in (x.captured, np.broadcast_to(x.usual, x.captured.shape)):
        padded = np.pad(flat(values), ((0, 0), (0, 1), (0, 0)), constant_values=-np.inf)
        read = padded[:, np.where(taps < 0, last, taps)]
        ends.append((read.max(axis=2), read.argmax(axis=2)))
    (y, first), (y0, first0) = ends
    most = np.maximum(y, y0)
    given, change = flat(at.given), flat(x.change)
    received = np.zeros(change.shape, np.float32)
    sample, position, channel = np.ogrid[: len(given), : len(taps), :channels]
    for which, part in ((first, most - y0), (first0, y - most)):
        np.add.at(received, (sample, taps[position, which], channel), given * part)
    still = change == 0
    received = np.where(still, 0, received / np.where(still, 1, change))
    return [received.reshape(x.captured.shape)], {}


def _scale(at: Expansion) -> Parts:
    """Multiply by the slopes of a function of single values, or by what an operation scales by."""
    (x, *masks) = at.inputs
    if at.data is None:
        received = at.given * at.slopes
    elif isinstance(at.data, np.ndarray):
        received = at.given * at.data
    else:
        statistics, gamma = at.data
        received = rescale.normalised(np, statistics, gamma, x.captured, x.usual, at.given)
    return [received, *(None for _ in masks)], {}


def _merge(at: Expansion) -> Parts:
    """Multiply by the factors of a sum, difference or product, except for excluded inputs."""
    node, output, inputs = at.by_channel or (at.node, at.output, at.inputs)
    ones = np.ones(output.value.shape, np.int8)
    mask = np.array(excluded(node, at.theta, ones, output, inputs)) != 0
    if at.by_channel is not None:
        middle = (1,) * (at.given.ndim - 2)
        mask = mask.reshape(len(mask), len(at.given), *middle, -1)
    factors: list[Any] = [1.0] * len(at.inputs)
    if at.node.kind.multiplies:
        values, usual = [x.captured for x in at.inputs], [x.usual for x in at.inputs]
        factors = rescale.product_factors(values, usual)
    elif at.node.kind.name == "subtract":
        factors[1:] = [-1.0] * (len(factors) - 1)
    parts = zip(mask, factors, strict=True)
    return [at.given * (keep * factor).astype(np.float32) for keep, factor in parts], {}


def _extreme(at: Expansion) -> Parts:
    """Assign the change of a maximum or minimum of tensors to the inputs that attain it."""
    sign = 1.0 if at.node.kind.name == "maximum_merge" else -1.0
    xs = np.stack([np.broadcast_to(x.captured, at.given.shape) for x in at.inputs])
    usual = np.stack([np.broadcast_to(x.usual, at.given.shape) for x in at.inputs])
    first, first0 = (np.argmax(sign * end, axis=0) for end in (xs, usual))  # the first one wins
    y = np.take_along_axis(xs, first[None], axis=0)[0]
    y0 = np.take_along_axis(usual, first0[None], axis=0)[0]
    most = sign * np.maximum(sign * y, sign * y0)
    parts = []
    for k, change in enumerate(xs - usual):
        gained = (first == k) * (most - y0) + (first0 == k) * (y - most)
        factor = np.where(change == 0, 0, gained / np.where(change == 0, 1, change))
        parts.append((at.given * factor).astype(np.float32))
    return parts, {}


def _product(at: Expansion) -> Parts:
    expand = expand_products if at.node.kind.name == "product_sum" else expand_softmax
    return expand(at.node, at.theta, at.given, at.output, at.inputs, amounts=True), {}


def _lookup(at: Expansion) -> Parts:
    """Turn multipliers into amounts, for the table and the tokens."""
    amounts = at.given * at.output.change
    tokens = at.inputs[0].captured.astype(np.int64)
    rows = add_rows(at.node.table, tokens, amounts, at.each)
    return [amounts.sum(axis=-1)], {at.node.table.name: rows}


RULES: dict[str, Callable[[Expansion], Parts]] = {
    "weighted_sum": _weighted_sum,
    "average": _average,
    "maximum": _maximum,
    "rectify": _scale,
    "elementwise": _scale,
    "scale": _scale,
    "add": _merge,
    "subtract": _merge,
    "multiply": _merge,
    "maximum_merge": _extreme,
    "minimum_merge": _extreme,
    "product_sum": _product,
    "softmax": _product,
    "lookup": _lookup,
}
"""Kind → its rule: it returns the multipliers of the inputs (for a lookup, amounts), None for an
input that gets nothing, and the synapses' amounts, kernel name → `(batch or 1, *kernel shape)`."""
