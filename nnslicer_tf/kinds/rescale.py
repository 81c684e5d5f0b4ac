"""DeepLIFT's rescale rule in its three forms (Shrikumar et al., ICML 2017, section 3.5.1)."""

from typing import Any

from nnslicer_tf._lazy import LazyModule
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Operation

ops: Any = LazyModule("keras.ops")

# If an input changes by less, rounding dominates the quotient, so the gradient is used.
_SMALL = 1e-5


def midpoint(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers from the gradient halfway between reference and sample.

    The contributions add up exactly if the operation is linear or multiplies two inputs, and to
    second order for others, such as a softmax or a normalisation by the sample's own statistics.
    """
    middle = [(x + x0) / 2 for x, x0 in zip(inputs, reference, strict=True)]
    return list(vector_jacobian_product(operation.compute, middle, multipliers))


def quotient(operation: Operation, inputs: list, reference: list, multipliers: Any) -> list[Any]:
    """Return multipliers from Δoutput / Δinput, for a function of single values."""
    if len(inputs) > 1:
        return midpoint(operation, inputs, reference, multipliers)
    x, x0 = inputs[0], reference[0]
    (gradient,) = vector_jacobian_product(operation.compute, [x], multipliers)
    change = x - x0
    small = ops.abs(change) < _SMALL
    outputs = operation.compute(x) - operation.compute(x0)
    return [ops.where(small, gradient, multipliers * outputs / ops.where(small, 1.0, change))]


def largest(
    operation: Operation, inputs: list, reference: list, multipliers: Any, further: Any = None
) -> list[Any]:
    """Return multipliers of a maximum: its change is assigned to the elements that attain it.

    Args:
        operation: The maximum, or minimum.
        inputs: Its inputs for the sample.
        reference: Its inputs for the reference.
        multipliers: Multipliers of its output.
        further: `keras.ops.minimum` for a minimum; `keras.ops.maximum` by default.
    """
    y, y0 = operation.compute(*inputs), operation.compute(*reference)
    most = (further or ops.maximum)(y, y0)
    gained = vector_jacobian_product(operation.compute, inputs, multipliers * (most - y0))
    lost = vector_jacobian_product(operation.compute, reference, multipliers * (y - most))
    parts = []
    for x, x0, up, down in zip(inputs, reference, gained, lost, strict=True):
        change = x - x0
        still = ops.equal(change, 0.0)
        parts.append(ops.where(still, 0.0, (up + down) / ops.where(still, 1.0, change)))
    return parts
