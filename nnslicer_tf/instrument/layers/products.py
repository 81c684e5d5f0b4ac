"""Sums of products of two activations: `Dot`, `matmul` and `einsum`."""

import string
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.operations import ProductSum, Source, Step


def product_step(
    equation: str,
    suffix: str = "",
    sources: Sequence[Source] | None = None,
    shape: tuple[int, ...] | None = None,
    mask: Source | None = None,
) -> Step:
    """Return the step of a product-sum of two tensors.

    Args:
        equation: As in `ProductSum`.
        suffix: The step's suffix.
        sources: The step's two sources.
        shape: The step's shape.
        mask: The step's mask.
    """

    def compute(a: Any, b: Any) -> Any:
        return ops.einsum(equation, a, b)

    return Step("product_sum", compute, ProductSum(equation), suffix, sources, shape, mask)


def _dot(layer: layers.Dot, call: LayerCall) -> tuple[Step, ...]:
    ranks = [len(shape) + 1 for shape in call.input_shapes]
    given = (layer.axes, layer.axes) if isinstance(layer.axes, int) else layer.axes
    first, second = (axis % rank for axis, rank in zip(given, ranks, strict=True))
    a = "b" + string.ascii_uppercase[: ranks[0] - 1]
    b = "b" + string.ascii_uppercase[ranks[0] : ranks[0] + ranks[1] - 1]
    summed = a[first]
    b = b[:second] + summed + b[second + 1 :]
    outputs = a.replace(summed, "") + b[1:].replace(summed, "")
    step = product_step(f"{a},{b}->{outputs}")
    if len(outputs) == 1:  # Keras adds an axis
        inner = step.compute
        step = Step(step.kind, lambda x, y: inner(x, y)[:, None], step.params)
    if not layer.normalize:
        return (step,)
    normalised = tuple(
        Step(
            "scale",
            lambda x, axis=axis: ops.normalize(x, axis=axis),
            suffix=suffix,
            sources=(place,),
            shape=call.input_shapes[place],
        )
        for place, (axis, suffix) in enumerate(((first, ":first"), (second, ":second")))
    )
    return (*normalised, Step(step.kind, step.compute, step.params, "", (":first", ":second")))


def _matmul(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    if call.constants:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' multiplies by a constant matrix, which has no kernel. Use a "
            "Dense layer, or write it as a layer and register that with "
            "nnslicer_tf.register_layer."
        )
    first, second = call.input_shapes
    if len(first) != len(second) or first[:-2] != second[:-2] or len(first) < 2:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' multiplies tensors of shapes {first} and {second}; only "
            "tensors with equal axes before the last two have a rule. Broadcast them first."
        )
    lead = string.ascii_uppercase[: len(first) - 2]
    return (product_step(f"b{lead}xy,b{lead}yz->b{lead}xz"),)


def _einsum(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    equation = _spread(operation.subscripts, [len(shape) + 1 for shape in call.input_shapes])
    if equation is None:
        raise UnsupportedLayerError(
            f"Operation '{call.path}' computes '{operation.subscripts}', which has no rule: it "
            "must take two activations, the batch axis first, and every axis must be common to "
            "both, or be one of the output's."
        )
    return (product_step(equation),)


def _spread(subscripts: str, ranks: Sequence[int]) -> str | None:
    """Expand the ellipses in an equation of two tensors; None if the equation has no rule."""
    left, _, outputs = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != 2 or len(ranks) != 2 or not outputs:
        return None
    unused = [a for a in string.ascii_uppercase if a not in subscripts]
    widths = [r - len(p.replace("...", "")) for p, r in zip(parts, ranks, strict=True)]
    if len({w for w, p in zip(widths, parts, strict=True) if "..." in p}) > 1:
        return None
    width = max((w for w, p in zip(widths, parts, strict=True) if "..." in p), default=0)
    a, b, outputs = (p.replace("...", "".join(unused[:width])) for p in (*parts, outputs))
    once = all(len({*p}) == len(p) for p in (a, b, outputs))
    lone = ({*a} ^ {*b}) - {*outputs}
    same_batch = a[:1] == b[:1] == outputs[:1]
    return f"{a},{b}->{outputs}" if once and not lone and same_batch else None


def _mixing(operation: keras.Operation, call: LayerCall) -> tuple[Step, ...]:
    raise UnsupportedLayerError(
        f"Operation '{call.path}' ({type(operation).__name__}) pairs every sample with every "
        "other; the analyses require samples to be independent. Use keras.ops.matmul, "
        "keras.ops.einsum or keras.layers.Dot."
    )


LAYERS: dict[type | str, Callable[[keras.Operation, LayerCall], tuple[Step, ...]]] = {
    layers.Dot: _dot,
    "Matmul": _matmul,
    "Einsum": _einsum,
    "Dot": _mixing,
    "Tensordot": _mixing,
}
