"""The part of a deviation from the mean that can be rounding alone.

A neuron that has the same value in every sample, such as the probability of the first row of a
causal attention, or everything computed from a token that never changes, still deviates from its
mean by rounding, with a sign that depends on the processor and on the batch. Deviations within the
bounds of this module are 0.

Rounding errors are propagated through the network at its mean values, as independent errors: the
variance of a result is that of its inputs by the squares of the derivatives, and that of its own
roundings (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019, for sums). A sum's own error is in
units of the sum of its terms' magnitudes, not of its value, which can be 0. The cost is that of a
few forward passes of one sample.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.expansion import one_run
from nnslicer_tf.instrument.operations import Affine, Statistics

UNIT = 2.0**-24
"""Largest relative error of one rounding to float32."""

DEVIATIONS = 8
"""A bound is this many standard deviations of the rounding error."""


def rounding_bounds(
    im: InstrumentedModel, means: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return for each operation the largest |Δ| that is rounding, `(*shape)` float64.

    Inputs and rows of an embedding, which are not computed, have the bound 0. Operations of
    recurrent layers and of registered kinds have a few roundings of their own value.
    """
    values = {
        name: ops.convert_to_tensor(np.asarray(mean, np.float32)[None])
        for name, mean in means.items()
    }
    variances: dict[str, Any] = {}  # in units of UNIT²
    bounds = {}
    with one_run():
        for operation in im.operations:
            mean = values[operation.name]
            variance = ops.zeros_like(mean)
            if operation.kind not in ("input", "lookup", "mask"):
                inputs = [values[name] for name in operation.inputs]
                errors = [variances[name] for name in operation.inputs]
                masks = [im[name].kind == "mask" for name in operation.inputs]
                variance = _variance(operation, mean, inputs, errors, masks)
            variances[operation.name] = variance
            spread = np.sqrt(np.asarray(ops.convert_to_numpy(variance)[0], np.float64))
            bounds[operation.name] = DEVIATIONS * UNIT * spread
    return bounds


def _variance(
    operation: Operation, mean: Any, inputs: list[Any], errors: list[Any], masks: list[bool]
) -> Any:
    """Return the variance of an operation's rounding error, in units of `UNIT`²."""
    kind, params = operation.kind, operation.params
    compute: Callable[..., Any] = operation.compute
    size = [ops.abs(x) for x in inputs]
    if kind == "weighted_sum":
        weights = ops.cast(params.variable(), "float32")
        own = params.apply(size[0], ops.abs(weights))
        if (bias := params.bias()) is not None:
            own = own + ops.abs(ops.cast(bias, "float32"))
        found = params.apply(errors[0], ops.square(weights)) + ops.square(own)
    elif kind == "average":
        counted = [ops.ones_like(x) for x in inputs[1:]]
        found = compute(errors[0], *counted) + ops.square(compute(size[0], *counted))
    elif kind in ("multiply", "product_sum"):
        found = ops.square(compute(*size))
        for k, error in enumerate(errors):
            squares = [ops.square(x) for x in inputs]
            squares[k] = error
            found = found + compute(*squares)
    elif kind in ("add", "subtract"):
        sign = -1.0 if kind == "subtract" else 1.0
        of_errors, own = (compute(a, *(sign * b for b in rest)) for a, *rest in (errors, size))
        found = of_errors + ops.square(own)
    elif kind in ("maximum", "maximum_merge", "routing"):
        found = compute(*errors)
    elif kind == "minimum_merge":
        found = -compute(*(-error for error in errors))
    elif kind == "softmax":
        squares = ops.square(mean)
        row = ops.sum(squares * errors[0], axis=params.axes, keepdims=True)
        found = squares * (errors[0] + row + 16)
    elif isinstance(params, Statistics):
        found = _of_statistics(params, mean, inputs[0], errors[0])
    elif isinstance(params, Affine):
        factor, offset = (np.abs(part).astype(np.float32) for part in params.read())
        found = errors[0] * factor**2 + ops.square(size[0] * factor + offset)
    elif kind == "rectify":  # also of samples for which it is active, unlike for the mean
        found = errors[0]
    elif kind in ("elementwise", "scale"):
        # By how much the function changes within its inputs' bounds.
        steps = [
            ops.zeros_like(x) if is_mask else DEVIATIONS * UNIT * ops.sqrt(error)
            for x, error, is_mask in zip(inputs, errors, masks, strict=True)
        ]
        middle = compute(*inputs)
        ends = [
            compute(*(x + sign * step for x, step in zip(inputs, steps, strict=True)))
            for sign in (1.0, -1.0)
        ]
        changes = [ops.abs(end - middle) / (DEVIATIONS * UNIT) for end in ends]
        found = ops.square(ops.maximum(*changes)) + 4 * ops.square(middle)
    else:
        found = 16 * ops.square(mean)
    found = ops.reshape(ops.cast(found, "float32"), ops.shape(mean))
    return ops.where(ops.isfinite(found) & (found > 0), found, ops.zeros_like(found))


def _of_statistics(params: Statistics, mean: Any, x: Any, error: Any) -> Any:
    """Return the variance of a normalisation whose factor is that of the mean values."""
    axes = tuple(axis + 1 for axis in params.axes)

    def average(values: Any) -> Any:
        return ops.mean(values, axis=axes, keepdims=True)

    x, error = (ops.reshape(values, (1, *params.shape)) for values in (x, error))
    size, u = ops.abs(x), x
    if params.centred:
        size, u, error = size + average(size), x - average(x), error + average(error)
    squares = ops.square(u)
    spread = average(squares) if params.averaged else ops.sum(squares, axis=axes, keepdims=True)
    factor = ops.square(params.gamma()) / ops.maximum(spread + params.epsilon, 1e-24)
    return ops.reshape(factor * (error + ops.square(size)), ops.shape(mean)) + 16 * ops.square(mean)
