"""Reconstruction: what is left of each layer learns to give what the whole layer gave.

Layer by layer, the weights of a smaller copy become the least-squares solution that maps the copy's
own inputs of the layer to the original's outputs (He, Zhang and Sun, "Channel pruning for
accelerating very deep neural networks", ICCV 2017, section 3.1). There are no labels, gradients or
steps of training. Cost: two forward passes and one linear system for each layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from nnslicer_tf._progress import track
from nnslicer_tf._random import as_generator
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.operations import Lookup

_ROWS = 20_000  # of a system, at least
_ROWS_PER_COLUMN = 15
_RIDGE = 1e-2  # of the mean of the squares; shrinks the change, not the weights
_BATCH = 128
_SMALL = 1e-3  # factors below are not divided by


def reconstruct(
    im: InstrumentedModel,
    small: keras.Model,
    kept: Mapping[str, np.ndarray],
    x: np.ndarray,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> None:
    """Change the weights of a smaller copy, in place, so that it follows the original.

    Depthwise and grouped convolutions, embeddings, projections whose bias has several axes, as
    the queries, keys and values of attention, and layers that are called twice stay as they are.

    Args:
        im: The original.
        small: The copy, whose operations have the same names.
        kept: Operation name → which of the original's channels the copy has, bool `(channels,)`.
        x: Samples `(samples, *input_shape)`, some hundred at least.
        rng: Draws the positions of convolutions that are used.
        progress: Show a progress bar.
    """
    generator = as_generator(rng)
    copy = InstrumentedModel(small)
    calls = [o.params.name for o in copy.operations if isinstance(o.params, Synapses)]
    for operation in track(copy.operations, "Fitting layers", len(copy.operations), progress):
        kernel = operation.params
        if not isinstance(kernel, Synapses) or not _is_linear_map(kernel):
            continue
        if calls.count(kernel.name) == 1:
            _refit(im, copy, operation, kept[operation.name], x, generator)


def _is_linear_map(kernel: Synapses) -> bool:
    """Whether a kernel is of all inputs together, with a bias of one number for each output."""
    bias = kernel.bias()
    one_each = bias is None or isinstance(bias, keras.Variable)
    return kernel.groups == 1 and one_each and not isinstance(kernel, Lookup)


def _refit(
    im: InstrumentedModel,
    copy: InstrumentedModel,
    operation: Operation,
    kept: np.ndarray,
    x: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Set one layer's weights to the least-squares solution."""
    kernel: Synapses = operation.params
    weights = kernel.matrix().astype(np.float64)
    columns = weights.shape[0] * weights.shape[1] + 1
    square, product = np.zeros((columns, columns)), np.zeros((columns, weights.shape[2]))
    rows = max(_ROWS, _ROWS_PER_COLUMN * columns)
    for inputs, targets in _windows(im, copy, operation, kept, x, rows, rng):
        square += inputs.T @ inputs
        product += inputs.T @ targets
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
    im: InstrumentedModel,
    copy: InstrumentedModel,
    operation: Operation,
    kept: np.ndarray,
    x: np.ndarray,
    rows: int,
    rng: np.random.Generator,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the copy's inputs of a layer, with a column of ones, and what it shall give."""
    taps, source = operation.params.taps, operation.inputs[0]
    places = min(len(taps), max(1, -(-rows // len(x))))
    goal = _goal(copy, operation)
    for start in range(0, len(x), _BATCH):
        batch = x[start : start + _BATCH]
        found = copy.capture(batch, of=[source, *goal.others])
        values = found[source].reshape(len(batch), -1, found[source].shape[-1])
        padded = np.concatenate([values, np.zeros_like(values[:, :1])], axis=1)
        wanted = im.capture(batch, of=[goal.of])[goal.of][..., kept].astype(np.float64)
        for name in goal.others:
            wanted -= found[name]
        wanted = ((wanted - goal.offset) / goal.factor).reshape(len(batch), -1, wanted.shape[-1])
        chosen = rng.choice(len(taps), places, replace=False)
        gathered = padded[:, taps[chosen]].reshape(len(batch) * places, -1).astype(np.float64)
        ones = np.ones((len(gathered), 1))
        yield (
            np.concatenate([gathered, ones], axis=1),
            wanted[:, chosen].reshape(len(gathered), -1),
        )


@dataclass(frozen=True, eq=False)
class _Goal:
    """A layer's goal: ((the original's values of `of`) - `others` - offset) / factor.

    Attributes:
        of: An operation of the original.
        others: Operations of the copy that are added to the layer's branch.
        factor: Of the normalisation in between.
        offset: Of the normalisation in between.
    """

    of: str
    others: tuple[str, ...] = ()
    factor: np.ndarray | float = 1.0
    offset: np.ndarray | float = 0.0


def _goal(copy: InstrumentedModel, operation: Operation) -> _Goal:
    """Return the goal of a layer; where branches are added, the last makes up for the others."""
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
