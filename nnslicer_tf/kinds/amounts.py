"""Amounts with exclusion: multipliers of an operation's inputs, at any θ, without Keras.

For each kind there is a rule that takes the multipliers of an operation's outputs, finds the
inputs that θ excludes, as the kind's rule for counts does, and returns the multipliers of the
others by DeepLIFT's rules (see `rescale`). At granularity "channel", the inputs of a filter are
excluded by the means of its channels, and the multipliers are those of single elements.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnslicer_tf._kernels import pointwise, products, sums
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.operations import Affine, Operation, Statistics
from nnslicer_tf.kinds import rescale
from nnslicer_tf.kinds._windows import flat
from nnslicer_tf.kinds.kind import Neurons, Node

Found = tuple[Sequence[np.ndarray | None], dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Expansion:
    """An operation that is expanded in a batch.

    Attributes:
        node: The operation, with all elements as neurons.
        theta: Threshold θ.
        given: The multipliers of its outputs, `(batch, *shape)` float32.
        output: Its neurons.
        inputs: Those of its inputs.
        by_channel: At granularity "channel": the node, the neurons, and those of the inputs, by
            channel; otherwise None.
        each: Keep the synapses' amounts of each sample separate.
        data: Result of `data_of` for the operation.
        slopes: Δoutput / Δinput, for a function of single values.
    """

    node: Node
    theta: float
    given: np.ndarray
    output: Neurons
    inputs: Sequence[Neurons]
    by_channel: tuple[Node, Neurons, Sequence[Neurons]] | None = None
    each: bool = False
    data: Any = None
    slopes: np.ndarray | None = None


def data_of(operation: Operation) -> Any:
    """Return what a rule needs to know about an operation, in addition to its node's table.

    Raises:
        UnsupportedLayerError: if its kind has no rule.
    """
    kind = operation.kind
    if kind == "scale" and isinstance(operation.params, Affine):
        return operation.params.read()[0].astype(np.float32)
    if kind == "scale" and isinstance(operation.params, Statistics):
        # Without Keras; γ is converted here.
        gamma = np.asarray(operation.params.gamma(), np.float32)
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


def _weighted_sum(at: Expansion) -> Found:
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
    samples, groups, outputs, width = synapses.shape
    columns = synapses.reshape(samples, groups * outputs, width).transpose(0, 2, 1)
    by_tap = columns.reshape(samples, table.taps.shape[1], -1, groups * outputs)
    return [received.reshape(x.captured.shape)], {table.kernel.name: table.kernel.to_kernel(by_tap)}


def _weighted_sum_by_channel(
    at: Expansion, node: Node, output: Neurons, inputs: Sequence[Neurons]
) -> Found:
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


def _average(at: Expansion) -> Found:
    x, *mask = at.inputs
    counts = (mask[0].captured > 0).sum(axis=1, keepdims=True) if mask else None
    received = sums.average(
        flat(at.given),
        flat(at.output.reference),
        flat(x.delta),
        at.node.table,
        0.0 if at.by_channel else at.theta,
        counts,
        by_sum=at.output.is_relative_to_sum and x.mask is not None,
        changes=flat(x.change),
    )
    return [received.reshape(x.captured.shape), *(None for _ in mask)], {}


def _maximum(at: Expansion) -> Found:
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


def _one_to_one(at: Expansion) -> Found:
    return [at.given * at.slopes, *(None for _ in at.inputs[1:])], {}


def _scale(at: Expansion) -> Found:
    if at.data is None:
        return _one_to_one(at)
    if isinstance(at.data, np.ndarray):
        return [at.given * at.data], {}
    statistics, gamma = at.data
    (x,) = at.inputs
    return [rescale.normalised(np, statistics, gamma, x.captured, x.usual, at.given)], {}


def _merge(factors: Callable[[Sequence[Any], Sequence[Any]], list[Any]]) -> Callable:
    """Return the rule of a merge.

    Args:
        factors: Maps the inputs' values and reference values to what the multipliers of the inputs
            are multiplied by.
    """

    def rule(at: Expansion) -> Found:
        _, output, inputs = at.by_channel or (at.node, at.output, at.inputs)
        if at.node.kind.multiplies:
            by = [x.factor for x in inputs]
            local = [
                x.delta.astype(np.float64) * math.prod(f for j, f in enumerate(by) if j != k)
                for k, x in enumerate(inputs)
            ]
        else:
            weights = factors(inputs, inputs)
            local = [x.delta * weight for x, weight in zip(inputs, weights, strict=True)]
        stacked = np.stack([np.broadcast_to(v, output.value.shape) for v in local])
        values = stacked.astype(np.float64).reshape(len(stacked), -1)
        relative = output.relative_to == "output"
        total = output.value.ravel() if relative else values.sum(axis=0)
        kept = pointwise.merge(np.ones(values.shape[1], np.int8), total, values, at.theta) != 0
        kept = kept.reshape(stacked.shape)
        if at.by_channel is not None:
            middle = (1,) * (at.given.ndim - 2)
            kept = kept.reshape(len(kept), len(at.given), *middle, -1)
        ends = [x.captured for x in at.inputs], [x.usual for x in at.inputs]
        parts = zip(kept, factors(*ends), strict=True)
        return [at.given * (keep * factor).astype(np.float32) for keep, factor in parts], {}

    return rule


def _signs(inputs: Sequence[Any], _: Any) -> list[Any]:
    return [1.0, *(-1.0 for _ in inputs[1:])]


def _extreme(sign: float) -> Callable[[Expansion], Found]:
    """Return the rule of a maximum (sign 1) or minimum (−1) of tensors; the first one wins."""

    def rule(at: Expansion) -> Found:
        xs = [np.broadcast_to(x.captured, at.given.shape) for x in at.inputs]
        usual = [np.broadcast_to(x.usual, at.given.shape) for x in at.inputs]
        first, first0 = (np.argmax(sign * np.stack(end), axis=0) for end in (xs, usual))
        y, y0 = (
            np.take_along_axis(np.stack(end), which[None], axis=0)[0]
            for end, which in ((xs, first), (usual, first0))
        )
        most = sign * np.maximum(sign * y, sign * y0)
        parts = []
        for k, (x, x0) in enumerate(zip(xs, usual, strict=True)):
            change = x - x0
            gained = (first == k) * (most - y0) + (first0 == k) * (y - most)
            factor = np.where(change == 0, 0, gained / np.where(change == 0, 1, change))
            parts.append((at.given * factor).astype(np.float32))
        return parts, {}

    return rule


def _product_sum(at: Expansion) -> Found:
    table = at.node.table
    groups, m, n, s = table.extents
    batch = len(at.given)
    of_y = at.given.shape[: len(table.y)]

    def arranged(x: np.ndarray, order: tuple[int, ...], rows: int, columns: int) -> np.ndarray:
        return np.ascontiguousarray(x.transpose(order)).reshape(batch * groups, rows, columns)

    sides = list(zip(at.inputs, ((table.a, m, s), (table.b, n, s)), strict=True))
    middles = [arranged((x.captured + x.usual) / 2, *order) for x, order in sides]
    factors_of = [(arranged(x.factor, *order), arranged(x.delta, *order)) for x, order in sides]
    received = products.product_sum(
        arranged(at.given.reshape(of_y), table.y, m, n),
        arranged(at.output.value.reshape(of_y), table.y, m, n),
        factors_of[0],
        factors_of[1],
        at.theta,
        at.output.is_relative_to_sum,
        (middles[0], middles[1]),
    )
    parts: list[np.ndarray | None] = []
    for part, (x, (order, *_)) in zip(received, sides, strict=True):
        back = part.reshape([x.captured.shape[axis] for axis in order])
        parts.append(back.transpose(np.argsort(order)))
    return parts, {}


def _softmax(at: Expansion) -> Found:
    table = at.node.table
    x, *masks = at.inputs

    def rows(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.transpose(table.order)).reshape(-1, table.entries)

    usual = np.broadcast_to(at.output.usual, at.output.captured.shape)
    received = products.softmax(
        rows(at.given),
        rows(at.output.value),
        rows(x.delta),
        at.theta,
        at.output.is_relative_to_sum,
        rescale.logarithmic_means(np, rows(at.output.captured), rows(usual)),
    )
    back = received.reshape([at.given.shape[axis] for axis in table.order])
    return [back.transpose(np.argsort(table.order)), *(None for _ in masks)], {}


def _lookup(at: Expansion) -> Found:
    """Turn multipliers into amounts, for the table and the tokens."""
    table, (tokens,) = at.node.table, at.inputs
    amounts = at.given * at.output.change
    index = tokens.captured.astype(np.int64)
    samples = len(index)
    found = np.zeros((samples if at.each else 1, *table.kernel.shape), np.float32)
    rows = np.arange(samples) if at.each else np.zeros(samples, np.int64)
    np.add.at(found, (rows.reshape(-1, *(1,) * (index.ndim - 1)), index), amounts)
    return [amounts.sum(axis=-1)], {table.kernel.name: found}


RULES: dict[str, Callable[[Expansion], Found]] = {
    "weighted_sum": _weighted_sum,
    "average": _average,
    "maximum": _maximum,
    "rectify": _one_to_one,
    "elementwise": _one_to_one,
    "scale": _scale,
    "add": _merge(lambda inputs, _: [1.0] * len(inputs)),
    "subtract": _merge(_signs),
    "multiply": _merge(rescale.product_factors),
    "maximum_merge": _extreme(1.0),
    "minimum_merge": _extreme(-1.0),
    "product_sum": _product_sum,
    "softmax": _softmax,
    "lookup": _lookup,
}
"""Kind → its rule: it returns the multipliers of the inputs (for a lookup, amounts), None for an
input that gets nothing, and the synapses' amounts, kernel name → `(batch or 1, *kernel shape)`."""
