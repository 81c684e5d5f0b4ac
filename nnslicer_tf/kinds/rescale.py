"""DeepLIFT's rules: multipliers of an operation's inputs, given those of its output.

A multiplier is the change of a target per change of a neuron, between a reference and a sample
(Shrikumar et al., ICML 2017, sections 3.2 and 3.5.1). By every rule, the inputs' multipliers times
their changes add up to the output's: a sum is linear, a function of single values has the quotient
of its changes, a product the midpoint of the other factor; softmax and normalisation combine these.
Rules take an operation, its inputs for sample and reference, and its output's multipliers.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops
from nnslicer_tf.instrument.backend import value_and_product, vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation, Pooling, Softmax, Statistics
from nnslicer_tf.kinds.kind import MULTIPLIERS, kind_of

# If an input changes by less, rounding dominates the quotient, so the gradient is used.
SMALL = 1e-5
TINY = 1e-30


def multipliers_of(
    operation: Operation, inputs: list, reference: list, multipliers: Any
) -> Sequence[Any]:
    """Return the multipliers of an operation's inputs, by the rule of its kind or the midpoint.

    All walks with multipliers take them from here.
    """
    is_softmax = isinstance(operation.params, Softmax)  # a final one has another kind
    rule = softmax if is_softmax else MULTIPLIERS.get(operation.kind, midpoint)
    return rule(operation, inputs, reference, multipliers)


def midpoint(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers from the gradient halfway between reference and sample.

    They are exact if the operation is linear or multiplies two inputs, otherwise to second order.
    """
    middle = [(x + x0) / 2 for x, x0 in zip(inputs, reference, strict=True)]
    return list(vector_jacobian_product(operation.compute, middle, multipliers))


def quotient(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers from Δoutput / Δinput, for a function of single values."""
    if len(inputs) > 1:
        return midpoint(operation, inputs, reference, multipliers)
    return [multipliers * slopes(operation, inputs[0], reference[0])]


def slopes(operation: Operation, x: Any, x0: Any) -> Any:
    """Return Δoutput / Δinput of a function of single values; its derivative where Δ is tiny."""
    value, (gradient,) = value_and_product(operation.compute, [x], ops.ones_like)
    change = x - x0
    small = ops.abs(change) < SMALL
    outputs = value - operation.compute(x0)
    return ops.where(small, gradient, outputs / ops.where(small, 1.0, change))


def largest(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Assign the change of a maximum, or of a minimum, to elements that attain it."""
    y, y0 = operation.compute(*inputs), operation.compute(*reference)
    most = ops.minimum(y, y0) if kind_of(operation).extreme < 0 else ops.maximum(y, y0)
    if not isinstance(operation.params, Pooling) or len(operation.params.taps) > 1:
        gained = vector_jacobian_product(operation.compute, inputs, multipliers * (most - y0))
        lost = vector_jacobian_product(operation.compute, reference, multipliers * (y - most))
    else:
        gained = [_to_first(inputs[0], multipliers * (most - y0))]
        lost = [_to_first(reference[0], multipliers * (y - most))]
    parts = []
    for x, x0, up, down in zip(inputs, reference, gained, lost, strict=True):
        change = x - x0
        still = ops.equal(change, 0.0)
        parts.append(ops.where(still, 0.0, (up + down) / ops.where(still, 1.0, change)))
    return parts


def _to_first(x: Any, values: Any) -> Any:
    """Return values at each channel's first largest element only; a gradient would divide them."""
    which = ops.argmax(ops.reshape(x, (ops.shape(x)[0], -1, x.shape[-1])), axis=1)
    marks = ops.one_hot(which, int(np.prod(x.shape[1:-1])), axis=1, dtype=x.dtype)
    return ops.reshape(marks * ops.reshape(values, (-1, 1, x.shape[-1])), ops.shape(x))


def product(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers of a product of any number of factors, two at a time."""
    return [multipliers * factor for factor in product_factors(inputs, reference)]


def product_factors(inputs: Sequence[Any], reference: Sequence[Any]) -> list[Any]:
    """Return the factors that turn a product's multiplier into its inputs', from left to right."""
    products, products0 = (list(accumulate(values, mul)) for values in (inputs, reference))
    factors: list[Any] = []
    outer: Any = 1.0
    for k in reversed(range(1, len(inputs))):
        factors.append(outer * (products[k - 1] + products0[k - 1]) / 2)
        outer = outer * (inputs[k] + reference[k]) / 2
    return [outer, *reversed(factors)]


def softmax(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers of a softmax's rows; its masks get none.

    With the log-sum-exp L of a row, y_i = exp(x_i − L), so that Δy_i = q_i · (Δx_i − Σ q·Δx / Σ q)
    for the logarithmic means q_i = Δy_i / Δ(log y_i), which are 0 where both are 0 (masks).
    """
    axes = operation.params.axes
    y, y0 = (operation.compute(*values) for values in (inputs, reference))
    logs = []
    for x, *masks in (inputs, reference):
        x = ops.reshape(x, ops.shape(y))  # a final softmax may have axes of size 1
        for entries in masks:
            x = ops.where(entries > 0.5, x, ops.full_like(x, -1e9))
        logs.append(x - ops.logsumexp(x, axis=axes, keepdims=True))
    ratio = logs[0] - logs[1]  # also where a probability is too small for its logarithm
    near = ops.abs(ratio) < SMALL
    q = ops.where(near, (y + y0) / 2, (y - y0) / ops.where(near, 1.0, ratio))
    total = ops.maximum(ops.sum(q, axis=axes, keepdims=True), TINY)
    found = q * (multipliers - ops.sum(multipliers * q, axis=axes, keepdims=True) / total)
    for entries in inputs[1:]:  # of a row that is masked as a whole, all are equal and do nothing
        found = ops.where(entries > 0.5, found, ops.zeros_like(found))
    return [ops.reshape(found, ops.shape(inputs[0])), *(None for _ in inputs[1:])]


def scale(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers of a scale: affine, by the sample's own statistics, or one to one."""
    if isinstance(operation.params, Statistics):
        return [normalised(operation.params, inputs[0], reference[0], multipliers)]
    if operation.params is None:
        return quotient(operation, inputs, reference, multipliers)
    return midpoint(operation, inputs, reference, multipliers)


def normalised(statistics: Statistics, x: Any, x0: Any, multipliers: Any) -> Any:
    """Return multipliers of a normalisation by its own statistics, which are not held constant.

    It is the product of u and r = (S + ε)^(−1/2): midpoints for the product and for the squares
    in S, and the quotient for r.
    """
    axes = tuple(a + 1 for a in statistics.axes)
    count = float(np.prod([statistics.shape[a] for a in statistics.axes]))
    ends = []
    for values in (x, x0):
        u = ops.reshape(values, (-1, *statistics.shape))
        if statistics.centred:
            u = u - ops.mean(u, axis=axes, keepdims=True)
        squares = ops.sum(u * u, axis=axes, keepdims=True)
        spread = squares / count if statistics.averaged else squares
        ends.append((u, 1 / ops.sqrt(ops.maximum(spread + statistics.epsilon, 1e-24))))
    (u, r), (u0, r0) = ends
    given = ops.reshape(multipliers, (-1, *statistics.shape)) * statistics.gamma()
    middle = (u + u0) / 2
    by_spread = -((r * r0) ** 2) / (r + r0) * ops.sum(given * middle, axis=axes, keepdims=True)
    found = given * (r + r0) / 2 + by_spread * 2 / (count if statistics.averaged else 1) * middle
    if statistics.centred:
        found = found - ops.mean(found, axis=axes, keepdims=True)
    return ops.reshape(found, ops.shape(multipliers))
