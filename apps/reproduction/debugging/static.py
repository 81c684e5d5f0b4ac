"""Static slices: what can reach an output, for any input or for the inputs of a box."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.windows import windows
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.kinds.weighted_sum import sample_gradients
from nnslicer_tf.slicing import Slice

Box = tuple[np.ndarray | float, np.ndarray | float]

_MONOTONE = ("rectify", "average", "maximum", "add", "maximum_merge", "minimum_merge", "routing")
_HUGE = 1e30
_RISING = ("sigmoid", "tanh", "softplus", "softsign", "elu", "selu", "exponential", "hard_sigmoid")


def static_slice(
    im: InstrumentedModel, outputs: Sequence[int] | None = None, box: Box | None = None
) -> Slice:
    """Return what can change an output, for any input or for the inputs of a box.

    A neuron is a member if its value may vary, by interval arithmetic, and non-zero weights and
    non-constant operations connect it to an output; so is a synapse between two members. The rest
    can be removed without changing the outputs on these inputs. Members may still have no effect,
    as intervals overestimate.

    Args:
        im: The model.
        outputs: Indices of outputs; all by default.
        box: Smallest and largest input, numbers or arrays of the input's shape; by default the
            model's bounds, or any input.

    Returns:
        A slice whose members have the contribution 1, so that it can be combined with dynamic
        slices: `dynamic - static` is empty.

    Raises:
        InvalidArgumentError: if an output does not exist, or the box is empty.
    """
    logits = im[im.logit_operation]
    chosen = np.arange(logits.size) if outputs is None else np.asarray(list(outputs))
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= logits.size:
        raise InvalidArgumentError(
            f"outputs must be one or more indices in 0 … {logits.size - 1}. Received: {outputs!r}"
        )
    try:
        low, high = (
            np.broadcast_to(np.asarray(end, np.float64), im.input_shape)
            for end in box or im.bounds or (-np.inf, np.inf)
        )
    except ValueError as error:
        raise InvalidArgumentError(
            f"A box must be a lower and an upper bound: inputs of shape {im.input_shape}, or "
            "numbers."
        ) from error
    if not (low <= high).all():
        raise InvalidArgumentError("The box is empty: a lower bound exceeds the upper one.")
    # Forward: which neurons are not constant.
    bounds = {im.input_operation: (low, high)}
    for operation in im.operations:
        if operation.name not in bounds:
            inputs = [bounds[name] for name in operation.inputs]
            bounds[operation.name] = output_interval(operation, inputs)
    live = {name: _varies(low, high) for name, (low, high) in bounds.items()}
    # Backward: which of them reach the outputs.
    seed = np.isin(np.arange(logits.size), chosen)
    reached = {logits.name: seed.reshape(logits.shape)}
    synapses = {name: np.zeros(k.shape, np.int64) for name, k in im.kernels.items()}
    for operation in reversed(im.graph.ancestors([logits.name])):
        if operation.name not in reached:
            continue
        reached[operation.name] &= live[operation.name]
        for name, part in zip(operation.inputs, _back(operation, reached), strict=True):
            reached[name] = reached.get(name, False) | (part & live[name])
        if isinstance(operation.params, Synapses):
            # Weights that connect a live input to a reached output; of a table, any row can.
            kernel: Synapses = operation.params
            if isinstance(kernel, Lookup):
                columns = reached[operation.name].any(axis=tuple(range(len(operation.shape) - 1)))
                synapses[kernel.name] |= (columns & (kernel.kernel() != 0)).astype(np.int64)
                continue
            ends = live[operation.inputs[0]], reached[operation.name]
            tensors = (ops.convert_to_tensor(end[None].astype(np.float32)) for end in ends)
            counts = ops.convert_to_numpy(sample_gradients(operation, *tensors))
            joined = (kernel.to_kernel(counts)[0] > 0) & (kernel.kernel() != 0)
            synapses[kernel.name] |= joined.astype(np.int64)
    arrays = {o.name: reached.get(o.name, np.zeros(o.shape, bool)) for o in im.operations}
    neurons = {name: np.asarray(array, np.int64) for name, array in arrays.items()}
    info = {"static": True, "theta": "any", "samples": "any", "granularity": "activation"}
    info |= {"outputs": repr(chosen.tolist())}
    return Slice(neurons, synapses, info)


def output_interval(
    operation: Operation, inputs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest value of an operation, by interval arithmetic."""
    lows, highs = zip(*inputs, strict=True)
    if isinstance(operation.params, Synapses):
        # The sum at the middle of the box, and how far it can be from there.
        kernel, weights = operation.params, operation.params.kernel().astype(np.float64)

        def applied(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
            value = kernel.apply(ops.convert_to_tensor(x[None]), ops.convert_to_tensor(weights))
            return ops.convert_to_numpy(value)[0]

        unbounded = ~np.isfinite(lows[0]) | ~np.isfinite(highs[0])
        low, high = (np.where(unbounded, 0.0, end) for end in (lows[0], highs[0]))
        middle = applied((low + high) / 2, weights)
        bias = kernel.read_bias()
        middle = middle if bias is None else middle + bias.astype(np.float64)
        radius = applied((high - low) / 2, np.abs(weights))
        radius[applied(unbounded.astype(float), (weights != 0).astype(float)) > 0] = np.inf
        return middle - radius, middle + radius
    if isinstance(operation.params, Affine):
        factor, offset = operation.params.read()
        with np.errstate(invalid="ignore"):
            sides = (lows[0], highs[0])
            ends = [np.where(factor == 0, 0.0, factor * side) + offset for side in sides]
        return np.minimum(*ends), np.maximum(*ends)
    if operation.kind == "subtract":
        low = lows[0] - sum(highs[1:])
        high = highs[0] - sum(lows[1:])
        return np.broadcast_to(low, operation.shape), np.broadcast_to(high, operation.shape)
    function = getattr(operation.params, "function", "")
    if function == "softsign":  # x / (1 + |x|) is NaN where x is infinite
        lows, highs = (tuple(np.clip(x, -_HUGE, _HUGE) for x in ends) for ends in (lows, highs))

    def computed(values: Sequence[np.ndarray]) -> np.ndarray:
        value = operation.compute(*(ops.convert_to_tensor(x[None]) for x in values))
        return ops.convert_to_numpy(value)[0].astype(np.float64)

    if operation.kind in _MONOTONE or function in _RISING:
        low, high = computed(lows), computed(highs)
        return np.minimum(low, high), np.maximum(low, high)
    if not any(_varies(low, high).any() for low, high in inputs):
        value = computed(lows)
        return value, value
    return np.full(operation.shape, -np.inf), np.full(operation.shape, np.inf)


def _varies(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Whether a value may vary; an unknown one, NaN, may."""
    return ~(low >= high)


def _back(operation: Operation, reached: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return, for each input, the neurons on which the operation's reached neurons depend."""
    mask, kind, shapes = reached[operation.name], kind_of(operation), operation.input_shapes
    function: Any = None  # a linear one with weights ≥ 0, which depends on the same inputs
    if isinstance(operation.params, Synapses):
        kernel: Synapses = operation.params
        weights = ops.convert_to_tensor((kernel.kernel() != 0).astype(np.float64))

        def function(x: Any) -> Any:
            return kernel.apply(x, weights)

    elif kind.reach == "channel":
        taps = operation.params.taps

        def function(x: Any) -> Any:
            read = ops.sum(windows(shapes[0], x, taps), axis=2)
            return ops.reshape(read, (1, *operation.shape))

    elif kind.reach == "element":
        masks = []
        for shape in shapes:  # any of the outputs to which it was broadcast
            lead = mask.ndim - len(shape)
            axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1))
            masks.append(np.any(mask, axis=axes, keepdims=True).reshape(shape))
        return masks
    elif kind.moves:
        function = operation.compute
    else:
        return [np.full(shape, mask.any()) for shape in shapes]
    zeros = [ops.zeros((1, *shape), "float64") for shape in shapes]
    g = ops.convert_to_tensor(mask[None].astype(np.float64))
    return [ops.convert_to_numpy(p)[0] > 0 for p in vector_jacobian_product(function, zeros, g)]
