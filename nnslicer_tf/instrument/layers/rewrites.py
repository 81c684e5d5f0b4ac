"""Functions of `keras.ops` that are written with others, which have rules.

A rewrite is a function of an operation and of the arguments of its call, on symbolic tensors. It
returns the same value, computed with other functions of `keras.ops`, or `NotImplemented` where the
operation has a rule for these arguments. The calls that it makes are visited in its place.

To add one, write a line into `REWRITES`; the result is compared with the model's at wrapping.
"""

import inspect
import math
import string
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate
from operator import mul
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError

COMPARISONS = ("NotEqual", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual")
MAX_SORTED = 64  # values along an axis that is sorted


def _is_tensor(x: Any) -> bool:
    return isinstance(x, keras.KerasTensor)


def axes_of(axis: Any, rank: int) -> list[int]:
    """Return the axes, from 0, that an argument `axis` of a reduction means."""
    return list(range(rank)) if axis is None else sorted(int(a) % rank for a in np.ravel(axis))


def _spread(x: Any, shape: Sequence[int]) -> Any:
    """Repeat a tensor to a shape; its own batch stays."""
    return x if tuple(x.shape) == tuple(shape) else ops.broadcast_to(x, shape)


def _where(op: Any, condition: Any, x1: Any = None, x2: Any = None) -> Any:
    """Select by values: c·a + (1 − c)·b; with a mask or a constant, it has a rule of its own."""
    if not getattr(condition, "is_value", False):
        return NotImplemented
    c = ops.cast(condition, "float32")
    # Constants are limited, because 0 · ∞ is not a number.
    a, b = (
        ops.cast(x, "float32") if _is_tensor(x) else ops.clip(ops.cast(x, "float32"), -1e9, 1e9)
        for x in (x1, x2)
    )
    return c * a + (1.0 - c) * b


def _comparison(op: Any, x1: Any, x2: Any) -> Any:
    """Compare the difference of two tensors of floats with 0."""
    both = _is_tensor(x1) and _is_tensor(x2) and "float" in x1.dtype and "float" in x2.dtype
    return op(x1 - x2, 0.0) if both else NotImplemented


def _logical(function: Callable[..., Any], op: Any, *values: Any) -> Any:
    """Compute a logical function of values by one of numbers; masks have a rule."""
    if not any(getattr(value, "is_value", False) for value in values):
        return NotImplemented
    numbers = [ops.cast(v, "float32") if hasattr(v, "dtype") else float(v) for v in values]
    return ops.greater(function(*numbers), 0.5)


def _every(op: Any, x: Any) -> Any:
    reduction = ops.min if type(op).__name__ == "All" else ops.max
    return reduction(ops.cast(x, "float32"), axis=op.axis, keepdims=op.keepdims) > 0.5


def _divide(op: Any, x1: Any, x2: Any) -> Any:
    return x1 * ops.reciprocal(x2) if _is_tensor(x1) and _is_tensor(x2) else NotImplemented


def _variance(x: Any, axis: Any, keepdims: bool) -> Any:
    deviation = x - ops.mean(x, axis=axis, keepdims=True)
    return ops.mean(deviation * deviation, axis=axis, keepdims=keepdims)


def _of_inputs(op: Any, x: Any, scale: Any = None, offset: Any = None) -> Any:
    """Normalise first, then scale and shift by what other layers computed; weights have a rule."""
    if not (_is_tensor(scale) or _is_tensor(offset)):
        return NotImplemented
    y = op(x, *(None,) * (len(inspect.signature(op.call).parameters) - 1))
    y = y if scale is None else y * scale
    return y if offset is None else y + offset


def _norm(op: Any, x: Any) -> Any:
    if op.ord in (None, "fro", 2):
        return ops.sqrt(ops.sum(x * x, axis=op.axis, keepdims=op.keepdims))
    size = ops.abs(x)
    if op.ord in (1, np.inf):
        return (ops.sum if op.ord == 1 else ops.max)(size, axis=op.axis, keepdims=op.keepdims)
    total = ops.sum(ops.power(size, op.ord), axis=op.axis, keepdims=op.keepdims)
    return ops.power(total, 1 / op.ord)


def _normalize(op: Any, x: Any) -> Any:
    size = ops.norm(x, ord=op.order, axis=op.axis, keepdims=True)
    return x / ops.maximum(size, keras.config.epsilon() if op.epsilon is None else op.epsilon)


def _average(op: Any, x: Any, weights: Any = None) -> Any:
    if weights is None:
        return ops.mean(x, axis=op.axis)
    axes = axes_of(op.axis, len(x.shape))
    if len(weights.shape) < len(x.shape):
        weights = ops.reshape(weights, [n if a in axes else 1 for a, n in enumerate(x.shape)])
    total = ops.sum(_spread(weights, x.shape) if _is_tensor(weights) else weights, axis=axes)
    return ops.sum(x * weights, axis=op.axis) / total


def _product(op: Any, x: Any) -> Any:
    axes = axes_of(op.axis, len(x.shape))
    for axis in reversed(axes):
        x = reduce(mul, ops.unstack(x, axis=axis))
    for axis in axes if op.keepdims else ():
        x = ops.expand_dims(x, axis)
    return x


def _along(axis: int, x: Any, matrix: Any) -> Any:
    return ops.moveaxis(ops.matmul(ops.moveaxis(x, axis, -1), matrix), -1, axis)


def _sorted(x: Any, axis: int) -> Any:
    """Sort along an axis by odd-even transpositions, each a maximum and a minimum."""
    size = x.shape[axis]
    if size > MAX_SORTED:
        raise UnsupportedLayerError(
            f"A sort, top_k or median of {size} values along an axis has no rule; one of at most "
            f"{MAX_SORTED} has. Compute it outside the model, or use keras.ops.max."
        )
    parts = ops.unstack(x, axis=axis)
    for step in range(size):
        for i in range(step % 2, size - 1, 2):
            low, high = ops.minimum(*parts[i : i + 2]), ops.maximum(*parts[i : i + 2])
            parts[i : i + 2] = [low, high]
    return ops.stack(parts, axis=axis)


def _median(op: Any, x: Any) -> Any:
    (axis,) = axes_of(op.axis, len(x.shape))
    size = x.shape[axis]
    part = ops.take(_sorted(x, axis), np.unique([(size - 1) // 2, size // 2]), axis=axis)
    return ops.mean(part, axis=axis, keepdims=op.keepdims)


def _cross(op: Any, x1: Any, x2: Any) -> Any:
    # `axis` has replaced these three.
    (a, b, c), (d, e, f) = ops.unstack(x1, axis=op.axisa), ops.unstack(x2, axis=op.axisb)
    return ops.stack([b * f - c * e, c * d - a * f, a * e - b * d], axis=op.axisc)


def _selected(op: Any, x: Any, indices: Any) -> Any:
    """Select positions that each sample names: a product with a mask."""
    if not _is_tensor(indices) or not _is_tensor(x):
        return NotImplemented
    rank, axis = len(x.shape), op.axis % len(x.shape)
    if rank != 3 or axis != 1 or indices.shape[-1] != 1:
        raise UnsupportedLayerError(
            "keras.ops.take_along_axis by indices of each sample has a rule only along axis 1 of "
            "tensors (batch, positions, channels), with one index for all channels."
        )
    mask = ops.equal(indices, np.arange(x.shape[1])[None, None])
    return ops.einsum("bmt,btc->bmc", ops.cast(mask, "float32"), x)


def _matmul(op: Any, x1: Any, x2: Any) -> Any:
    """Give two factors equal leading axes, and put a constant one last."""
    if _is_tensor(x1) and _is_tensor(x2):
        first, second = tuple(x1.shape), tuple(x2.shape)
        if len(first) == len(second) > 2 and first[:-2] == second[:-2]:
            return NotImplemented
        if len(second) == 2:  # (batch, …, n) by (batch, n)
            return ops.squeeze(ops.matmul(x1, ops.expand_dims(x2, -1)), -1)
        if len(first) == 2:
            return ops.squeeze(ops.matmul(ops.expand_dims(x1, -2), x2), -2)
        lead = np.broadcast_shapes(first[:-2], second[:-2])
        return ops.matmul(_spread(x1, (*lead, *first[-2:])), _spread(x2, (*lead, *second[-2:])))
    constant = x2 if _is_tensor(x1) else x1
    if len(constant.shape) == 1:
        column = ops.expand_dims(ops.convert_to_tensor(constant), -1)
        rows = x1 if _is_tensor(x1) else ops.swapaxes(x2, -1, -2)
        return ops.squeeze(ops.matmul(rows, column), -1)
    if len(x2.shape) == 2:
        return NotImplemented
    if _is_tensor(x1):
        letters = string.ascii_lowercase[: len(x1.shape) - 2]
        return ops.einsum(f"{letters}xy,{letters[-len(x2.shape) + 2 :]}yz->{letters}xz", x1, x2)
    swapped = ops.swapaxes(ops.convert_to_tensor(x1), -1, -2)
    return ops.swapaxes(ops.matmul(ops.swapaxes(x2, -1, -2), swapped), -1, -2)


def _dot(op: Any, x1: Any, x2: Any) -> Any:
    """Multiply by a constant; two tensors would pair their samples."""
    is_product = _is_tensor(x1) and not _is_tensor(x2) and len(x2.shape) <= 2
    return ops.matmul(x1, x2) if is_product and getattr(op, "axes", 1) == 1 else NotImplemented


def _attention(
    op: Any, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, scale: Any = None
) -> Any:
    """Attend with heads on axis 2: (batch, positions, heads, features)."""
    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key, value = (ops.repeat(x, groups, axis=2) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = ops.einsum("bqhe,bkhe->bhqk", query, key) * factor
    scores = scores if bias is None else scores + bias
    if op.attn_logits_soft_cap is not None:
        scores = ops.tanh(scores / op.attn_logits_soft_cap) * op.attn_logits_soft_cap
    if op.is_causal:
        scores = ops.where(np.tri(query.shape[1], key.shape[1], dtype=bool), scores, -1e9)
    scores = scores if mask is None else ops.where(mask, scores, -1e9)
    return ops.einsum("bhqk,bkhe->bqhe", ops.softmax(scores, axis=-1), value)


def spelled(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the output, without ellipses."""
    left, arrow, outputs = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    unused = [a for a in string.ascii_uppercase + string.ascii_lowercase if a not in subscripts]
    widths = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
    extra = "".join(unused[: max(widths)])
    parts = [p.replace("...", extra[len(extra) - n :]) for p, n in zip(parts, widths, strict=True)]
    if not arrow:
        outputs = "".join(a for a in sorted({*"".join(parts)}) if "".join(parts).count(a) == 1)
    return parts, outputs.replace("...", extra)


def _einsum(op: Any, *operands: Any, **kwargs: Any) -> Any:
    """Sum axes of one operand first; then multiply two, or one by a constant matrix."""
    letters, outputs = spelled(op.subscripts, [len(x.shape) for x in operands])
    xs = list(operands)
    # Diagonals
    for i, part in enumerate(letters):
        for letter in [a for a in dict.fromkeys(part) if part.count(a) > 1]:
            while letters[i].count(letter) > 1:
                first = letters[i].index(letter)
                xs[i] = ops.diagonal(xs[i], axis1=first, axis2=letters[i].index(letter, first + 1))
                letters[i] = letters[i].replace(letter, "", 2) + letter
    if len(xs) == 1:
        (x,), (part,) = xs, letters
        dropped = [i for i, a in enumerate(part) if a not in outputs]
        x = ops.sum(x, axis=dropped) if dropped else x
        kept = [a for a in part if a in outputs]
        return ops.transpose(x, [kept.index(a) for a in outputs])
    if len(xs) > 2:
        # The first two, with what the others need
        later = {*"".join(letters[2:]), *outputs}
        both = "".join(a for a in dict.fromkeys(letters[0] + letters[1]) if a in later)
        product = ops.einsum(f"{letters[0]},{letters[1]}->{both}", *xs[:2])
        return ops.einsum(f"{','.join((both, *letters[2:]))}->{outputs}", product, *xs[2:])
    if not _is_tensor(xs[0]):
        xs, letters = xs[::-1], letters[::-1]
    (a, b), (x, y) = letters, xs
    if isinstance(y, keras.Variable):
        if any(p in outputs and p not in a for p in b):
            return NotImplemented
        y = ops.convert_to_tensor(y)  # no axis of units: its values are constants
    for i, (part, other) in enumerate(((a, b), (b, a))):
        dropped = [k for k, letter in enumerate(part) if letter not in other + outputs]
        if dropped:
            xs[i] = ops.sum(xs[i], axis=dropped)
            letters[i] = "".join(letter for k, letter in enumerate(part) if k not in dropped)
    if letters != [a, b]:
        return ops.einsum(f"{letters[0]},{letters[1]}->{outputs}", *xs)
    if _is_tensor(y):
        if a[0] == b[0] == outputs[0]:
            if xs[0] is operands[0] and f"{a},{b}->{outputs}" == op.subscripts:
                return NotImplemented
            return ops.einsum(f"{a},{b}->{outputs}", x, y)
        raise UnsupportedLayerError(f"'{op.subscripts}' mixes samples: the batch must be first.")
    # A constant
    extents = dict(zip(a, x.shape, strict=True)) | dict(zip(b, y.shape, strict=True))
    y = ops.convert_to_tensor(y, "float32")
    groups = [p for p in outputs if p in a and p in b]
    summed = [p for p in a if p in b and p not in outputs]
    free = [p for p in b if p not in a]
    lone = [p for p in a if p not in b]
    if groups or not summed:
        axes = [*lone, *groups, *summed, *free]
        left = ops.transpose(x, [a.index(p) for p in axes if p in a])
        left = ops.reshape(left, [extents[p] if p in a else 1 for p in axes])
        right = ops.transpose(y, [b.index(p) for p in axes if p in b])
        right = ops.reshape(right, [extents[p] if p in b else 1 for p in axes])
        total = _spread(left, [extents[p] for p in axes]) * right
        if summed:
            total = ops.sum(total, axis=[axes.index(p) for p in summed])
        kept = [p for p in axes if p not in summed]
        return ops.transpose(total, [kept.index(p) for p in outputs])
    left = ops.transpose(x, [a.index(p) for p in (*lone, *summed)])
    rows = math.prod(extents[p] for p in summed)
    left = ops.reshape(left, (*(extents[p] for p in lone), rows))
    right = ops.reshape(ops.transpose(y, [b.index(p) for p in (*summed, *free)]), (rows, -1))
    total = ops.reshape(ops.matmul(left, right), [extents[p] for p in (*lone, *free)])
    return ops.transpose(total, [(*lone, *free).index(p) for p in outputs])


REWRITES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("All", "Any"), _every),
    **dict.fromkeys(("Amin", "Min"), lambda op, x: -ops.max(-x, op.axis, op.keepdims)),
    "Average": _average,
    "Cross": _cross,
    "Cumprod": lambda op, x: ops.stack([*accumulate(ops.unstack(x, axis=op.axis), mul)], op.axis),
    "Cumsum": lambda op, x: _along(op.axis, x, np.tri(x.shape[op.axis], dtype="f").T),
    "Diff": lambda op, a: _along(
        op.axis, a, np.diff(np.eye(a.shape[op.axis], dtype="f"), op.n, axis=1)
    ),
    **dict.fromkeys(("Divide", "TrueDivide"), _divide),
    **dict.fromkeys(("Dot", "Tensordot"), _dot),
    "DotProductAttention": _attention,
    "Einsum": _einsum,
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _of_inputs),
    "Logaddexp": lambda op, x1, x2: ops.log(ops.exp(x1) + ops.exp(x2)),
    "LogicalAnd": partial(_logical, ops.minimum),
    "LogicalNot": partial(_logical, lambda x: 1.0 - x),
    "LogicalOr": partial(_logical, ops.maximum),
    "LogicalXor": partial(_logical, lambda a, b: ops.abs(a - b)),
    "LogSoftmax": lambda op, x: x - ops.logsumexp(x, axis=op.axis, keepdims=True),
    "Logsumexp": lambda op, x: ops.log(ops.sum(ops.exp(x), axis=op.axis, keepdims=op.keepdims)),
    "Matmul": _matmul,
    "Median": _median,
    "Moments": lambda op, x: (
        ops.mean(x, axis=op.axes, keepdims=op.keepdims),
        _variance(x, op.axes, op.keepdims),
    ),
    "Norm": _norm,
    "Normalize": _normalize,
    "Power": lambda op, x1, x2: ops.exp(x2 * ops.log(x1)) if _is_tensor(x2) else NotImplemented,
    "Prod": _product,
    "Sort": lambda op, x: _sorted(x, op.axis % len(x.shape)),
    "Std": lambda op, x: ops.sqrt(_variance(x, op.axis, op.keepdims)),
    "TakeAlongAxis": _selected,
    # Their indices have no rule.
    "TopK": lambda op, x: (ops.flip(_sorted(x, len(x.shape) - 1), -1)[..., : op.k], None),
    "Trace": lambda op, x: ops.sum(
        ops.diagonal(x, offset=op.offset, axis1=op.axis1, axis2=op.axis2), axis=-1
    ),
    "Var": lambda op, x: _variance(x, op.axis, op.keepdims),
    "Vdot": lambda op, x1, x2: ops.sum(x1 * x2),
    "Where": _where,
}
