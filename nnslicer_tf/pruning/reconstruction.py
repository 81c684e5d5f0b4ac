"""Reconstruction: fits the remaining part of each layer to the outputs of the whole layer.

Layer by layer, the weights of a smaller copy become the least-squares solution that maps the copy's
own inputs of the layer to the original's outputs (He, Zhang and Sun, "Channel pruning for
accelerating very deep neural networks", ICCV 2017, section 3.1). This uses no labels, gradients or
training steps. Cost: one forward pass of the original and, for each layer, one of the copy up to
the layer and a linear system.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from nnslicer_tf._checks import as_generator
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.operations import Lookup

_ROWS = 20_000  # least number of rows in a system
_ROWS_PER_COLUMN = 15
_RIDGE = 1e-2  # relative to the mean square; shrinks the change, not the weights
_BATCH = 128
_SMALL = 1e-3  # smaller factors are not divided by


def reconstruct(
    im: InstrumentedModel,
    small: keras.Model,
    kept: Mapping[str, np.ndarray],
    x: np.ndarray,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> None:
    """Change the weights of a smaller copy in place, so that it approximates the original.

    Depthwise and grouped convolutions, embeddings, projections whose bias has several axes (such
    as the queries, keys and values of attention), and layers that are called twice are unchanged.

    Args:
        im: The original.
        small: The copy, whose operations have the same names.
        kept: Operation name → whether the copy has each of the original's channels, bool
            `(channels,)`.
        x: Samples `(samples, *input_shape)`, at least a few hundred.
        rng: Draws the positions of convolutions to use.
        progress: Show a progress bar.
    """
    generator = as_generator(rng)
    copy = im.like(small)
    calls = [o.params.name for o in copy.operations if isinstance(o.params, Synapses)]
    fitted = [
        operation
        for operation in copy.operations
        if isinstance(operation.params, Synapses)
        and _is_linear_map(operation.params)
        and calls.count(operation.params.name) == 1
    ]
    plans = [_plan(copy, operation, len(x), generator) for operation in fitted]
    targets = _targets(im, plans, kept, x)
    for plan, target in track(
        zip(plans, targets, strict=True), "Fitting layers", len(plans), progress
    ):
        _refit(copy, plan, target, x)


def _is_linear_map(kernel: Synapses) -> bool:
    """Whether a kernel reads all inputs together, and has one bias per output."""
    bias = kernel.bias()
    one_each = bias is None or isinstance(bias, keras.Variable)
    return kernel.groups == 1 and one_each and not isinstance(kernel, Lookup)


@dataclass(frozen=True, eq=False)
class _Goal:
    """The target values of a layer: ((the original's values of `of`) - `others` - offset) / factor.

    Attributes:
        of: An operation of the original.
        others: Operations of the copy that are added to the layer's branch.
        factor: Factor of the normalisation in between.
        offset: Offset of the normalisation in between.
    """

    of: str
    others: tuple[str, ...] = ()
    factor: np.ndarray | float = 1.0
    offset: np.ndarray | float = 0.0


@dataclass(frozen=True, eq=False)
class _Plan:
    """The system that a layer's weights solve.

    Attributes:
        operation: The layer's weighted sum in the copy.
        goal: Its target values.
        places: For each batch, the positions of a convolution to use.
    """

    operation: Operation
    goal: _Goal
    places: list[np.ndarray]


def _plan(
    copy: InstrumentedModel, operation: Operation, samples: int, rng: np.random.Generator
) -> _Plan:
    """Draw the positions whose inputs and outputs form a layer's system."""
    kernel: Synapses = operation.params
    taps, inputs, _ = kernel.layout.from_kernel(np.empty(kernel.shape, np.int8)).shape
    rows = max(_ROWS, _ROWS_PER_COLUMN * (taps * inputs + 1))
    count = min(len(kernel.taps), max(1, -(-rows // samples)))
    batches = range(0, samples, _BATCH)
    places = [rng.choice(len(kernel.taps), count, replace=False) for _ in batches]
    return _Plan(operation, _goal(copy, operation), places)


def _targets(
    im: InstrumentedModel, plans: list[_Plan], kept: Mapping[str, np.ndarray], x: np.ndarray
) -> list[list[np.ndarray]]:
    """Return, for each plan and batch, the original's values at the plan's positions.

    The original is run once for all layers; the drawn positions are few enough to be kept.
    """
    found: list[list[np.ndarray]] = [[] for _ in plans]
    asked = sorted({plan.goal.of for plan in plans})
    for number, start in enumerate(range(0, len(x), _BATCH)):
        values = im.capture(x[start : start + _BATCH], of=asked)
        for plan, own in zip(plans, found, strict=True):
            outputs = values[plan.goal.of][..., kept[plan.operation.name]]
            own.append(_at(outputs, plan.places[number]))
    return found


def _at(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return values `(samples, …, channels)` at some positions, (samples, places, channels)."""
    return values.reshape(len(values), -1, values.shape[-1])[:, places]


def _refit(copy: InstrumentedModel, plan: _Plan, targets: list[np.ndarray], x: np.ndarray) -> None:
    """Set one layer's weights to the least-squares solution."""
    kernel: Synapses = plan.operation.params
    weights = kernel.matrix().astype(np.float64)
    columns = weights.shape[0] * weights.shape[1] + 1
    square, product = np.zeros((columns, columns)), np.zeros((columns, weights.shape[2]))
    for inputs, wanted in _windows(copy, plan, targets, x):
        square += inputs.T @ inputs
        product += inputs.T @ wanted
    bias = kernel.bias()
    now = np.zeros((columns, weights.shape[2]))
    now[:-1] = weights.reshape(columns - 1, -1)
    if bias is not None:
        now[-1] = keras.ops.convert_to_numpy(bias)
    ridge = _RIDGE * np.trace(square) / columns
    change = np.linalg.solve(square + ridge * np.eye(columns), product - square @ now)
    found = now + change
    kernel.variable().assign(kernel.to_kernel(found[:-1].reshape(weights.shape)))
    if bias is not None:
        bias.assign(found[-1])


def _windows(
    copy: InstrumentedModel, plan: _Plan, targets: list[np.ndarray], x: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the copy's inputs of a layer, with a column of ones, and the target values."""
    taps, source, goal = plan.operation.params.taps, plan.operation.inputs[0], plan.goal
    for places, target, start in zip(plan.places, targets, range(0, len(x), _BATCH), strict=True):
        found = copy.capture(x[start : start + _BATCH], of=[source, *goal.others])
        values = found[source].reshape(len(target), -1, found[source].shape[-1])
        padded = np.concatenate([values, np.zeros_like(values[:, :1])], axis=1)
        wanted = target.astype(np.float64)
        for name in goal.others:
            wanted -= _at(found[name], places)
        wanted = (wanted - goal.offset) / goal.factor
        gathered = padded[:, taps[places]].reshape(target.shape[0] * target.shape[1], -1)
        ones = np.ones((len(gathered), 1))
        yield (
            np.concatenate([gathered.astype(np.float64), ones], axis=1),
            wanted.reshape(len(gathered), -1),
        )


def _goal(copy: InstrumentedModel, operation: Operation) -> _Goal:
    """Return the goal of a layer; if branches are added, the last compensates for the others."""
    order = {o.name: i for i, o in enumerate(copy.operations)}
    factor: np.ndarray | float = 1.0
    offset: np.ndarray | float = 0.0
    branch = operation
    following = _only_reader(copy, branch)
    if following is not None and isinstance(following.params, Affine):
        factor, offset = following.params.read()
        branch, following = following, _only_reader(copy, following)
    if following is None or following.kind != "add" or np.any(np.abs(factor) < _SMALL):
        return _Goal(operation.name)
    others = tuple(name for name in following.inputs if name != branch.name)
    if any(order[name] > order[branch.name] for name in others):
        return _Goal(operation.name)
    return _Goal(following.name, others, factor, offset)


def _only_reader(im: InstrumentedModel, operation: Operation) -> Operation | None:
    readers = [o for o in im.operations if operation.name in o.inputs]
    return readers[0] if len(readers) == 1 else None
