"""Recognise functions by what they compute, not by their names.

`tf.nn.relu`, `lambda x: keras.ops.maximum(x, 0)` and a hand-written function are the same ReLU.
Functions that are not Keras's own run on a few inputs when a model is wrapped.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import keras
import numpy as np
from keras import activations, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument.index_maps import moves_values
from nnslicer_tf.instrument.layers.activations import activation_step, softmax_step
from nnslicer_tf.instrument.layers.normalisation import affine_of, affine_step
from nnslicer_tf.instrument.operations import Elementwise, Step
from nnslicer_tf.instrument.registry import LayerCall, LayerTable, Shape

Function = Callable[[np.ndarray], np.ndarray]

CHANGES = (0.1, -0.2, 1.0, -2.0, 30.0, -60.0)  # with a sum, or means of a batch would stay
MAX_CHANGED_ALONE = 64
MAX_PROBED_VALUES = 1 << 22
MAX_VALUES_AT_ONCE = 1 << 20
MAX_KNOTS = 16
FAR = 1e4


@np.errstate(all="ignore")
def recognised(step: Step, shapes: Sequence[Shape], name: str) -> tuple[Step, ...]:
    """Return the steps that a step's function amounts to, usually one.

    Only steps of kind "elementwise" or "rectify" whose function may mix its inputs are probed.
    `shapes` has no batch axes; after the first shape come those of masks. `name` is for messages.
    Raises UnsupportedLayerError if outputs depend on several inputs without a rule, or are random.
    """
    params = step.params
    unknown = isinstance(params, Elementwise) and params.mixes is None
    if step.kind not in ("elementwise", "rectify") or not unknown:
        return (step,)
    function = partial(_on_array, step.compute, shapes[1:], name, params.function)
    if not _is_elementwise(function, shapes[0], name):
        mixing = _mixing_steps(function, step.compute, shapes[0])
        if not mixing:
            raise UnsupportedLayerError(
                f"Operation '{name}' applies {params.function}, whose outputs depend on "
                "several inputs each. Of such functions only softmax, a division by the norm, "
                "moves of values, and log-softmax and sparsemax at the end of a model have a rule. "
                "Write it with Keras's layers, or as a layer whose operations you register with "
                "nnslicer_tf.register_layer."
            )
        parts = [replace(step, kind=m.kind, compute=m.compute, params=m.params) for m in mixing]
        return (*(replace(part, suffix=f"{step.suffix}:scaled") for part in parts[:-1]), parts[-1])
    if params.knots is not None or step.kind == "rectify":  # registered by the user
        return (replace(step, params=replace(params, mixes=False)),)
    elementwise = _elementwise_step(function, step.compute, shapes[0], params.function)
    return (replace(step, kind=elementwise.kind, params=elementwise.params),)


def function_steps(function: Callable, shape: Shape, name: str, what: str) -> tuple[Step, ...]:
    """Return the step of a function, `what`, of one tensor: elementwise, a scale, or a move."""
    if moves_values(function, [shape]):
        return (Step("routing", function),)
    return recognised(Step("elementwise", function, Elementwise(what)), [shape], name)


def own_function(layer: keras.layers.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a layer without weights: of what its function does with one tensor."""
    kind = type(layer).__name__
    if len(call.input_shapes) > 1:
        raise UnsupportedLayerError(
            f"Layer '{call.path}' ({kind}) is a function of several tensors. Write it with Keras's "
            "layers and operators, or as a layer whose operations you register with "
            "nnslicer_tf.register_layer."
        )
    return function_steps(layer.call, call.input_shapes[0], call.path, f"the function of a {kind}")


def _on_array(
    compute: Callable, masks: Sequence[Shape], name: str, what: str, x: np.ndarray
) -> np.ndarray:
    """Return a step's values for an array, with masks that are all ones."""
    others = [ops.ones((len(x), *shape)) for shape in masks]
    try:
        result = compute(ops.convert_to_tensor(x.astype(np.float32)), *others)
    except Exception as error:  # whatever a user's function raises
        raise UnsupportedLayerError(
            f"Operation '{name}' fails on a batch of shape {x.shape}: {error}"
        ) from error
    shape = getattr(result, "shape", type(result).__name__)
    if not isinstance(shape, str) and len(shape) == x.ndim and shape[1:] == x.shape[1:]:
        return ops.convert_to_numpy(result).astype(np.float64)
    raise UnsupportedLayerError(
        f"Operation '{name}' ({what}) maps samples of shape {x.shape[1:]} to "
        f"{f'a {shape}' if isinstance(shape, str) else tuple(shape[1:])}: it is neither a "
        "function of single values nor a move of values. Write it with Keras's layers, or as "
        "a layer whose operations you register with nnslicer_tf.register_layer."
    )


def _is_elementwise(function: Function, shape: Shape, name: str) -> bool:
    """Whether changing inputs, one by one or in random halves, changes no other output."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    few = size <= MAX_CHANGED_ALONE
    tries = size * -(-MAX_CHANGED_ALONE // size) if few else MAX_CHANGED_ALONE
    rows = len(CHANGES) * tries
    if not few:  # large tensors repeat a function at many positions, so that few tries suffice
        rows = min(rows, max(2 * len(CHANGES), MAX_PROBED_VALUES // size))
    block = max(2, MAX_VALUES_AT_ONCE // size)
    for first in range(0, rows, block):
        row = np.arange(first, min(first + block, rows))
        x = rng.normal(scale=2, size=(len(row), *shape))
        y = function(x)
        if first == 0 and not _equal(function(x), y):
            raise UnsupportedLayerError(
                f"Operation '{name}' gives different values for the same input. Analyses need a "
                "deterministic model: disable noise at inference."
            )
        if few:
            changed = np.arange(size) == (row // len(CHANGES) % size)[:, None]
            signs = np.ones(changed.shape)
        else:
            changed = rng.random((len(row), size)) < 0.5
            signs = rng.choice([-1.0, 1.0], changed.shape)
        changes = np.take(CHANGES, row % len(CHANGES))[:, None] * signs * changed
        moved = function(x + changes.reshape(x.shape))
        if not _equal(np.where(changed.reshape(x.shape), y, moved), y):
            return False
    return True


def _elementwise_step(function: Function, compute: Callable, shape: Shape, name: str) -> Step:
    """Return the step of an elementwise function, with its name and knots if they are known."""
    # Values of all magnitudes, since kinks may be far away or close together
    near, far = np.linspace(-64, 64, 1025), np.geomspace(64, 1e6, 60)
    grid = np.concatenate([near, near / 1000, far, -far])
    rows = max(8, -(-4 * len(grid) // max(1, int(np.prod(shape)))))
    x = np.random.default_rng(1).permutation(np.resize(grid, rows * int(np.prod(shape))))
    x = x.reshape(rows, *shape)
    y = function(x)
    at = {v: function(np.full((1, *shape), float(v)))[0] for v in (0, -FAR, FAR)}
    # An identity or an affine function
    if _equal(y, x * ((at[FAR] - at[-FAR]) / (2 * FAR)) + at[0]):
        same = np.array_equal(y, x.astype(np.float32))  # x + 1e-7 is not
        return Step("routing", compute) if same else affine_of(compute, shape)
    # A ReLU or another clip
    low = np.where(at[-FAR] > -FAR, at[-FAR], -np.inf)
    high = np.where(at[FAR] < FAR, at[FAR], np.inf)
    ends = float(low.flat[0]), float(high.flat[0])
    same = (low == ends[0]).all() and (high == ends[1]).all()
    if same and _equal(y, np.clip(x, low, np.maximum(low, high))):
        # As exact lines compute it: the float32 of 0.3 is not 0.3. A user's function may refuse.
        with suppress(Exception):
            places = ops.convert_to_tensor([np.full(shape, -FAR), np.full(shape, FAR)], "float64")
            exact = ops.convert_to_numpy(compute(places)).astype(np.float64)
            ends = float(exact[0].flat[0]), float(exact[1].flat[0])
        knots = tuple(end for end in ends if abs(end) < FAR)
        if ends[0] == 0:
            return Step("rectify", compute, Elementwise("relu", knots, mixes=False))
        return Step("elementwise", compute, Elementwise("clip", knots, mixes=False))
    return Step("elementwise", compute, Elementwise(name, _knots(compute, shape), mixes=False))


def _knots(compute: Callable, shape: Shape) -> tuple[float, ...] | None:
    """Return where a piecewise-linear function of single values changes its slope, else None."""
    rng, size = np.random.default_rng(2), max(1, int(np.prod(shape)))

    def values(x: np.ndarray) -> np.ndarray:
        rows = np.resize(x, (-(-len(x) // size), *shape))
        result = ops.convert_to_numpy(compute(ops.convert_to_tensor(rows, "float64")))
        return result.astype(np.float64).ravel()[: len(x)]

    far = np.geomspace(8, 1e6, 40)
    x = np.concatenate([-far[::-1], np.linspace(-8, 8, 1001)[1:-1] + 1e-4, far])
    checked = rng.permutation(np.outer(rng.normal(size=200), np.geomspace(1e-4, 1e5, 10)).ravel())
    try:
        y, expected = values(x), values(checked)
    except Exception:  # whatever a user's function raises for float64
        return None
    if not (np.isfinite(y).all() and np.isfinite(expected).all()):
        return None
    # Linear pieces, of at least two intervals of the same slope; their lines meet at the knots, and
    # are checked at other points of all magnitudes.
    slopes = np.diff(y) / np.diff(x)
    same = np.abs(np.diff(slopes)) <= 1e-7 * (1 + np.abs(slopes[1:]))
    starts = np.flatnonzero(same & ~np.append(False, same[:-1]))
    ends = np.flatnonzero(same & ~np.append(same[1:], False)) + 1
    if not 1 < len(starts) <= MAX_KNOTS or (starts[1:] - ends[:-1] > 2).any():
        return None
    slope, constant = slopes[starts], y[starts] - slopes[starts] * x[starts]
    knots = -np.diff(constant) / np.where(np.diff(slope) == 0, np.nan, np.diff(slope))
    knots = np.where(np.abs(knots - knots.round(6)) < 1e-8, knots.round(6), knots)
    if not ((x[ends[:-1]] - 1e-6 <= knots) & (knots <= x[starts[1:] + 1] + 1e-6)).all():
        return None
    piece = np.searchsorted(knots, checked)
    fits = np.allclose(slope[piece] * checked + constant[piece], expected, rtol=1e-9, atol=1e-9)
    return tuple(knots.tolist()) if fits else None


def _mixing_steps(function: Function, compute: Callable, shape: Shape) -> tuple[Step, ...]:
    """Return the steps of a function that mixes its inputs, none without a rule."""
    if moves_values(compute, [shape]):
        return (Step("routing", compute),)
    x = np.random.default_rng(1).normal(scale=2, size=(4, *shape))
    of_all_sizes = x * np.reshape([1, 1, 0.1, 20], (4, *(1 for _ in shape)))
    y = function(of_all_sizes)

    def equals(other: Callable) -> bool:
        return _equal(y, _on_array(other, (), "", "", of_all_sizes))

    axes = range(-1, -len(shape) - 1, -1)
    for axis in axes:
        if equals(partial(ops.softmax, axis=axis)):
            return (softmax_step(axis),)
    # A softmax of multiples, such as one with a temperature
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(function(x / 10))
    for axis in axes:
        dx, dy = (np.diff(v, axis=axis).ravel() for v in (x / 10, logs))
        factor = np.dot(dx, dy) / max(np.dot(dx, dx), 1e-12)
        if factor and np.isfinite(factor):
            # The factor or the temperature that was probably written
            short = [float(f"{v:.5g}") for v in (factor, 1 / factor)]
            factor = 1 / short[1] if len(str(short[1])) < len(str(short[0])) else short[0]
            softmax, scaled = softmax_step(axis), affine_step(factor)
            if equals(lambda x, softmax=softmax, scaled=scaled: softmax.compute(scaled.compute(x))):
                return (scaled, softmax)
    for known in ("log_softmax", "sparsemax"):
        of_keras = getattr(activations, known, None)
        if of_keras is not None and equals(of_keras):
            return (activation_step(of_keras, compute),)
    if any(equals(keras.layers.UnitNormalization(axis=axis)) for axis in axes):
        return (Step("scale", compute),)
    return ()


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True))


LAYERS: LayerTable = {keras.layers.Lambda: own_function}
