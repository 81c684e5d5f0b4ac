"""Reconstruction: fits the remaining part of each layer to the outputs of the whole layer.

Layer by layer, the weights of a smaller copy become the least-squares solution that maps the copy's
own inputs of the layer to the original's outputs (He, Zhang and Sun, ICCV 2017, section 3.1),
without labels, gradients or training. Cost: a forward pass of both models, and a linear system for
each layer. Memory: the copy's values that later layers read, for all samples.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import as_generator
from nnslicer_tf._environment import progress_bar
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.recurrence import Member

_MIN_ROWS = 20_000  # of a system
_ROWS_PER_COLUMN = 15
_RIDGE = 1e-2  # relative to the mean square; shrinks the change, not the weights
_BATCH = 128
_MAX_BYTES = 2 << 30  # of the copy's values that are kept; fewer samples are used above it
_MIN_FACTOR = 1e-3  # smaller factors are not divided by


@dataclass(frozen=True, eq=False)
class _Goal:
    """A layer's target values: ((the original's values of `of`) - `others` - offset) / factor."""

    of: str
    others: tuple[str, ...] = ()  # operations of the copy that are added to the layer's branch
    factor: np.ndarray | float = 1.0  # of the normalisation in between, as is the offset
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

    Operations have the same names; `kept` maps them to bools: which of the original's channels the
    copy has. Use at least a few hundred samples `x`; the copy's values are limited to 2 GiB.
    Depthwise and grouped convolutions, embeddings, projections whose bias has several axes
    (queries, keys and values), and layers that are called twice are unchanged.
    """
    generator = as_generator(rng)
    copy = im.like(small)
    # As many samples as have values that fit into memory, at least one batch.
    readers = Counter(name for operation in copy.operations for name in operation.inputs)
    live = largest = 0
    for operation in copy.operations:
        live += operation.size
        largest = max(largest, live)
        readers.subtract(operation.inputs)
        dead = {name for name in {*operation.inputs, operation.name} if readers[name] == 0}
        live -= sum(copy[name].size for name in dead)
    x = x[: max(_BATCH, _MAX_BYTES // (4 * largest))]
    starts = range(0, len(x), _BATCH)

    # The layers to fit, their goals, and the positions of each batch that form their systems.
    calls = [o.params.name for o in copy.operations if isinstance(o.params, Synapses)]
    plans: dict[str, tuple[_Goal, list[np.ndarray]]] = {}
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
        plans[operation.name] = _goal(copy, operation), places

    # One run of the original for all layers; the drawn positions are few enough to be kept.
    targets: dict[str, list[np.ndarray]] = {name: [] for name in plans}
    names = sorted({goal.of for goal, _ in plans.values()})
    for number, start in enumerate(starts):
        captured = im.capture(x[start : start + _BATCH], of=names)
        for name, (goal, places) in plans.items():
            of_goal = captured[goal.of][..., kept[name]]
            targets[name].append(_at(of_goal, places[number]).astype(np.float64))

    # One run of the copy, operation by operation for all batches; a layer is fitted before it runs.
    batches = [keras.ops.convert_to_tensor(x[start : start + _BATCH]) for start in starts]
    values: dict[str, list[Any]] = {copy.input_operation: batches}
    through_time: dict[Any, list[Any]] = {}
    readers = Counter(name for operation in copy.operations for name in operation.inputs)

    def value(name: str, number: int) -> Any:
        """Return an operation's values for a batch; recompute them if they are not stored."""
        if name in values:
            return values[name][number]
        operation = copy[name]
        return operation.compute(*(value(source, number) for source in operation.inputs))

    with progress_bar("Fitting layers", len(plans), progress) as bar:
        for operation in copy.operations:
            if operation.name in plans:
                goal, places = plans[operation.name]
                of_layer = targets.pop(operation.name)
                for number, name in product(range(len(starts)), goal.others):
                    other = keras.ops.convert_to_numpy(value(name, number))
                    of_layer[number] = of_layer[number] - _at(other, places[number])
                _refit(operation, goal, places, values[operation.inputs[0]], of_layer)
                bar.update()
            if not targets:
                break
            if operation.inputs:
                inputs = list(zip(*(values[name] for name in operation.inputs), strict=True))
                if isinstance(operation.params, Member):  # all of a layer's together
                    unrolled = operation.params.unrolled
                    if unrolled not in through_time:
                        run = partial(unrolled.run, wanted=[o.name for o in unrolled.cell])
                        through_time[unrolled] = [run(*given) for given in inputs]
                    name = operation.params.operation.name
                    values[operation.name] = [one[name] for one in through_time[unrolled]]
                else:
                    values[operation.name] = [operation.compute(*given) for given in inputs]
            readers.subtract(operation.inputs)
            for name in {*operation.inputs, operation.name}:
                if readers[name] == 0:
                    del values[name]


def _refit(
    operation: Operation,
    goal: _Goal,
    places: list[np.ndarray],
    inputs: list[Any],
    targets: list[np.ndarray],
) -> None:
    kernel = operation.params
    weights = kernel.matrix().astype(np.float64)
    columns, outputs = weights.shape[0] * weights.shape[1] + 1, weights.shape[2]
    squares, products = np.zeros((columns, columns)), np.zeros((columns, outputs))
    # The system: the copy's inputs of the layer, with a column of ones, and the targets.
    for number, batch in enumerate(inputs):
        entries = keras.ops.convert_to_numpy(batch)
        entries = entries.reshape(len(entries), -1, entries.shape[-1])
        padded = np.concatenate([entries, np.zeros_like(entries[:, :1])], axis=1)
        target = ((targets[number] - goal.offset) / goal.factor).reshape(-1, outputs)
        read = padded[:, kernel.taps[places[number]]].reshape(len(target), -1)
        read = np.pad(read.astype(np.float64), ((0, 0), (0, 1)), constant_values=1.0)
        squares += read.T @ read
        products += read.T @ target
    # Ridge regression for the change of the weights.
    bias = kernel.bias()
    before = np.zeros((columns, outputs))
    before[:-1] = weights.reshape(columns - 1, -1)
    if bias is not None:
        before[-1] = keras.ops.convert_to_numpy(bias)
    ridge = _RIDGE * np.trace(squares) / columns
    change = np.linalg.solve(squares + ridge * np.eye(columns), products - squares @ before)
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
