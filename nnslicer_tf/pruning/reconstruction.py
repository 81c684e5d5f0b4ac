"""Reconstruction: fits the remaining part of each layer to the outputs of the whole layer.

Layer by layer, the weights of a smaller copy become the least-squares solution that maps the copy's
own inputs of the layer to the original's outputs (He, Zhang and Sun, "Channel pruning for
accelerating very deep neural networks", ICCV 2017, section 3.1). This uses no labels, gradients or
training steps. Cost: one forward pass of the original and, for each layer, one of the copy up to
the layer and a linear system.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import keras
import numpy as np

from nnslicer_tf._checks import as_generator
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.operations import Lookup

_MIN_ROWS = 20_000  # of a system
_ROWS_PER_COLUMN = 15
_RIDGE = 1e-2  # relative to the mean square; shrinks the change, not the weights
_BATCH = 128
_MIN_FACTOR = 1e-3  # smaller factors are not divided by


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
    starts = range(0, len(x), _BATCH)

    # The layers to fit, their goals, and the positions of each batch that form their systems.
    calls = [o.params.name for o in copy.operations if isinstance(o.params, Synapses)]
    plans: list[tuple[Operation, _Goal, list[np.ndarray]]] = []
    for operation in copy.operations:
        kernel = operation.params
        if not isinstance(kernel, Synapses) or isinstance(kernel, Lookup) or kernel.groups > 1:
            continue
        bias = kernel.bias()
        if calls.count(kernel.name) > 1 or not (bias is None or isinstance(bias, keras.Variable)):
            continue
        taps, inputs, _ = kernel.layout.from_kernel(np.empty(kernel.shape, np.int8)).shape
        rows = max(_MIN_ROWS, _ROWS_PER_COLUMN * (taps * inputs + 1))
        count = min(len(kernel.taps), max(1, -(-rows // len(x))))
        places = [generator.choice(len(kernel.taps), count, replace=False) for _ in starts]
        plans.append((operation, _goal(copy, operation), places))

    # One run of the original for all layers; the drawn positions are few enough to be kept.
    targets: list[list[np.ndarray]] = [[] for _ in plans]
    for number, start in enumerate(starts):
        names = sorted({goal.of for _, goal, _ in plans})
        values = im.capture(x[start : start + _BATCH], of=names)
        for (operation, goal, places), of_layer in zip(plans, targets, strict=True):
            outputs = values[goal.of][..., kept[operation.name]]
            of_layer.append(_at(outputs, places[number]).astype(np.float64))

    what = "Fitting layers"
    steps = zip(plans, targets, strict=True)
    for (operation, goal, places), of_layer in track(steps, what, len(plans), progress):
        kernel, source = operation.params, operation.inputs[0]
        weights = kernel.matrix().astype(np.float64)
        columns, outputs = weights.shape[0] * weights.shape[1] + 1, weights.shape[2]
        square, product = np.zeros((columns, columns)), np.zeros((columns, outputs))
        # The system: the copy's inputs of the layer, with a column of ones, and the targets.
        for number, start in enumerate(starts):
            values = copy.capture(x[start : start + _BATCH], of=[source, *goal.others])
            entries = values[source].reshape(len(values[source]), -1, values[source].shape[-1])
            padded = np.concatenate([entries, np.zeros_like(entries[:, :1])], axis=1)
            target = of_layer[number]
            for name in goal.others:
                target = target - _at(values[name], places[number])
            target = ((target - goal.offset) / goal.factor).reshape(-1, outputs)
            read = padded[:, kernel.taps[places[number]]].reshape(len(target), -1)
            read = np.pad(read.astype(np.float64), ((0, 0), (0, 1)), constant_values=1.0)
            square += read.T @ read
            product += read.T @ target
        # Ridge regression for the change of the weights.
        bias = kernel.bias()
        before = np.zeros((columns, outputs))
        before[:-1] = weights.reshape(columns - 1, -1)
        if bias is not None:
            before[-1] = keras.ops.convert_to_numpy(bias)
        ridge = _RIDGE * np.trace(square) / columns
        change = np.linalg.solve(square + ridge * np.eye(columns), product - square @ before)
        kernel.variable().assign(kernel.to_kernel((before + change)[:-1].reshape(weights.shape)))
        if bias is not None:
            bias.assign((before + change)[-1])


def _at(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return values `(samples, …, channels)` at some positions, (samples, places, channels)."""
    return values.reshape(len(values), -1, values.shape[-1])[:, places]


def _goal(copy: InstrumentedModel, operation: Operation) -> _Goal:
    """Return the goal of a layer; if branches are added, the last compensates for the others."""

    def only_reader(name: str) -> Operation | None:
        readers = [o for o in copy.operations if name in o.inputs]
        return readers[0] if len(readers) == 1 else None

    order = {o.name: i for i, o in enumerate(copy.operations)}
    factor: np.ndarray | float = 1.0
    offset: np.ndarray | float = 0.0
    branch, following = operation, only_reader(operation.name)
    if following is not None and isinstance(following.params, Affine):
        factor, offset = following.params.read()
        branch, following = following, only_reader(following.name)
    if following is None or following.kind != "add" or np.any(np.abs(factor) < _MIN_FACTOR):
        return _Goal(operation.name)
    others = tuple(name for name in following.inputs if name != branch.name)
    if any(order[name] > order[branch.name] for name in others):
        return _Goal(operation.name)
    return _Goal(following.name, others, factor, offset)
