"""Derivatives of users' functions: they must be those of the function.

Rules for signs and amounts take a function's change, or its derivative where a change is tiny. A
gradient that the user defines, such as that of `tf.custom_gradient` or of a straight-through
estimator, is another function's: slices would have wrong signs. It is replaced by the function's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.index_maps import INSERTED, sources_of
from nnslicer_tf.instrument.operations import Affine, Step
from nnslicer_tf.instrument.registry import Shape

_STEP = {"float64": 1e-5, "float32": 1e-2}  # of a finite difference
_MAX_SIZE = 1 << 18
# Share of elements that may differ, because a finite difference crosses a kink or a jump.
_MAX_DIFFERENT = 0.05


def with_own_derivative(step: Step, shapes: Sequence[Shape], name: str) -> Step:
    """Return a step of a user's function whose derivative is that of the function.

    Raises UnsupportedLayerError if it is not, and the step's kind gives no other way to find it.
    """
    size = sum(int(np.prod(shape)) for shape in shapes)
    if step.kind == "mask" or size > _MAX_SIZE or _agrees(step, shapes):
        return step
    compute = step.compute
    if step.kind == "routing":
        source = sources_of(compute, shapes)
        if source is not None:
            return replace(step, compute=_moving(source))
    elif isinstance(step.params, Affine):

        def affine(x: Any) -> Any:
            offset, at_one = compute(ops.zeros_like(x)), compute(ops.ones_like(x))
            return x * (at_one - offset) + offset

        return replace(step, compute=affine)
    elif step.kind in ("elementwise", "rectify", "scale"):

        def with_slope(x: Any, *masks: Any) -> Any:
            h = _STEP[keras.backend.standardize_dtype(x.dtype)]
            slope = (compute(x + h, *masks) - compute(x - h, *masks)) / (2 * h)
            y, slope, still = map(ops.stop_gradient, (compute(x, *masks), slope, x))
            return y + slope * (x - still)

        return replace(step, compute=with_slope)
    raise UnsupportedLayerError(
        f"Operation '{name}' of kind '{step.kind}' has a gradient that is not the derivative of "
        "its function, such as one of tf.custom_gradient. Signs and amounts would be wrong: "
        "register a function without it."
    )


def _moving(source: np.ndarray) -> Callable[..., Any]:
    indices = np.where(source == INSERTED, 0, source).ravel()
    present = (source != INSERTED).ravel()

    def compute(*tensors: Any) -> Any:
        values = ops.concatenate([ops.reshape(x, (ops.shape(x)[0], -1)) for x in tensors], axis=1)
        moved = ops.take(values, indices, axis=1)
        if not present.all():
            moved = ops.where(present, moved, ops.zeros_like(moved))
        return ops.reshape(moved, (-1, *source.shape))

    return compute


def _agrees(step: Step, shapes: Sequence[Shape]) -> bool:
    """Whether the gradient of a step agrees with finite differences, where both are finite."""
    rng = np.random.default_rng(3)
    one_to_one = step.kind in ("elementwise", "rectify", "scale")
    own, masks = (shapes[:1], shapes[1:]) if one_to_one else (shapes, ())
    xs = [rng.normal(scale=2, size=(2, *shape)) for shape in own]
    ones = [np.ones((2, *shape)) for shape in masks]
    for dtype, h in _STEP.items():

        def run(*tensors: Any, dtype: str = dtype) -> Any:
            return step.compute(*tensors, *(ops.convert_to_tensor(m, dtype) for m in ones))

        directions = [np.ones_like(x) if one_to_one else rng.normal(size=x.shape) for x in xs]
        try:
            ends = []
            for sign in (1.0, -1.0):
                moved = [x + sign * h * d for x, d in zip(xs, directions, strict=True)]
                tensors = [ops.convert_to_tensor(x, dtype) for x in moved]
                ends.append(ops.convert_to_numpy(run(*tensors)).astype(np.float64))
            slope = (ends[0] - ends[1]) / (2 * h)
            given = np.ones(slope.shape) if one_to_one else rng.normal(size=slope.shape)
            found = vector_jacobian_product(
                run,
                [ops.convert_to_tensor(x, dtype) for x in xs],
                ops.convert_to_tensor(given, dtype),
            )
        except Exception:  # whatever a user's function raises for float64
            continue
        gradients = [ops.convert_to_numpy(part).astype(np.float64) for part in found]
        tolerance = 1e-3 if dtype == "float64" else 0.1
        if one_to_one:
            (gradient,) = gradients
            scale = 1e-3 + np.abs(slope) + np.abs(gradient)
            return bool((np.abs(slope - gradient) > tolerance * scale).mean() <= _MAX_DIFFERENT)
        expected = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
        scale = np.abs(slope * given).sum() + 1e-6
        # One jump of a large tensor may be crossed.
        return not abs((slope * given).sum() - expected) > 10 * tolerance * scale
    return True


def is_own_function(layer: Any) -> bool:
    """Whether a layer or operation runs a function that is not Keras's own."""
    if not type(layer).__module__.startswith("keras.") or isinstance(layer, keras.layers.Lambda):
        return not type(layer).__module__.startswith("nnslicer_tf.")
    function = getattr(layer, "activation", None)
    module = getattr(function, "__module__", None) or type(function).__module__
    return function is not None and not module.startswith(("keras.", "builtins"))
