"""Effective paths: the synapses that matter for a prediction (Qiu et al., CVPR 2019).

NNSlicer is compared with them: `effective_paths`, and a ranker that counts them.

The path goes backwards from the predicted class. For each neuron on it, the smallest set of
positive contributions w·x that reaches the share θ of its value puts its synapses on the path.
Additions (residual connections) and averages select among their inputs in the same way; a maximum
takes every input equal to it; other operations propagate the path unchanged.

Points that the paper leaves open: ties follow the order of the inputs; a bias is part of the value
but not a contributor; if all contributions do not suffice, all are taken; a non-positive value
selects none. A scale after a weighted sum (batch normalisation) is folded in. Cost: a forward pass
and a sort of the contributions of each neuron on the path, slow for wide layers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._checks import check_name, check_number
from nnslicer_tf._environment import track
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map
from nnslicer_tf.instrument.outputs import check_synapses
from nnslicer_tf.pruning import ClassRanker
from nnslicer_tf.pruning.rankers import Scores
from reproduction.nnslicer import path_kernels

_BATCH = 128

PathRule = Callable[[np.ndarray, np.ndarray, list[np.ndarray], float], Sequence[np.ndarray]]
"""`rule(path, output, inputs, theta)` for one sample: maps a bool array of the outputs that are on
the path, the operation's value and its inputs' values to bool arrays of the inputs on the path."""

PATHS: dict[str, Callable[[Operation], PathRule]] = {}
"""Kind → the function that returns an operation's rule; weighted sums need none."""


def effective_paths(
    im: InstrumentedModel,
    x: np.ndarray,
    theta: float = 0.5,
    *,
    kernels: Iterable[str] | None = None,
    progress: bool = True,
) -> sp.csr_array:
    """Return the synapses on each sample's effective path.

    Args:
        im: The model.
        x: `(samples, *input_shape)`.
        theta: Share θ of a neuron's value that its contributors must reach, above 0 and at most 1.
        kernels: Names of the kernels whose synapses are returned; all by default.
        progress: Show a progress bar.

    Returns:
        `(samples, synapses)` int32 of 0 and 1, with columns as in `SliceSet.matrix`: kernels in
        topological order, each in C order.

    Raises:
        InvalidArgumentError: if θ is out of range or a kernel does not exist.
        UnsupportedLayerError: for an operation whose kind has no rule for effective paths.
        InputShapeError, NonFiniteActivationError: for bad data.
    """
    theta = check_number("theta", theta, "(0, 1]")
    check_synapses(im)
    wanted = dict.fromkeys(im.kernels if kernels is None else kernels)
    for name in wanted:
        check_name("kernel", name, im.kernels)

    ancestors = im.graph.ancestors([im.logit_operation])
    order = [o for o in reversed(ancestors) if o.name not in im.input_operations]
    on_walk = {operation.name for operation in order}
    shapes = {o.name: o.shape for o in im.operations}
    matrices = {name: kernel.matrix() for name, kernel in im.kernels.items()}
    rules = {}
    for operation in order:
        if operation.kind == "weighted_sum":
            continue
        if operation.kind not in PATHS:
            raise UnsupportedLayerError(
                f"Effective paths have no rule for operation '{operation.name}' of kind "
                f"'{operation.kind}'. Register one with PATHS.register in "
                "reproduction.nnslicer.effective_path."
            )
        rules[operation.name] = PATHS[operation.kind](operation)

    # Weighted sums whose only consumer is a scale → its name, and its factors.
    folded = {}
    for operation in order:
        takers = [o for o in im.graph.consumers[operation.name] if o.name in on_walk]
        is_scaled = len(takers) == 1 and isinstance(takers[0].params, Affine)
        if operation.kind == "weighted_sum" and is_scaled:
            factor = np.asarray(takers[0].params.read()[0])
            channels = operation.shape[-1]
            if factor.size in (1, channels):
                folded[operation.name] = takers[0].name, np.resize(factor, channels)

    def walk(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        used = {name: np.zeros(matrix.shape, bool) for name, matrix in matrices.items()}

        def expand(operation: Operation, path: np.ndarray) -> Sequence[np.ndarray]:
            inputs = [values[name] for name in operation.inputs]
            output = values[operation.name]
            if operation.kind != "weighted_sum":
                parts = rules[operation.name](path[0], output, inputs, theta)
                return [part[None] for part in parts]
            kernel = operation.params.name
            matrix = matrices[kernel]
            if operation.name in folded:
                scale, factor = folded[operation.name]
                matrix, output = matrix * factor, values[scale]
            # The contributors of the outputs on the path must reach θ times their values.
            matrix, params = np.ascontiguousarray(matrix, np.float32), operation.params
            reached = np.zeros(inputs[0].shape, bool)
            flat = [_flat(part) for part in (path[0], output * theta, inputs[0])]
            more = params.taps, params.groups, _flat(reached), used[kernel]
            path_kernels.weighted_sum(*flat, matrix, *more)
            return [reached[None]]

        start = np.zeros((1, *shapes[im.logit_operation]), bool)
        start.flat[values[im.logit_operation].argmax()] = True
        propagate(order, {im.logit_operation: start}, expand, shapes)
        return {name: im.kernels[name].to_kernel(mask) for name, mask in used.items()}

    rows = []
    steps = -(-len(x) // _BATCH)
    for batch in track(im.capture_batches(x, _BATCH), "Effective paths", steps, progress):
        for i in range(len(batch[im.input_operation])):
            used = walk({name: values[i] for name, values in batch.items()})
            row = np.concatenate([mask.ravel() for name, mask in used.items() if name in wanted])
            rows.append(sp.csr_array(row[None].astype(np.int32)))
    return sp.vstack(rows, format="csr")


@dataclass(frozen=True)
class EffectivePathRanker(ClassRanker):
    """Number of effective paths that contain a synapse (Qiu et al., CVPR 2019), with their θ."""

    theta: float = 0.5
    progress: bool = True

    def class_scores(self, im: InstrumentedModel, x: np.ndarray, target: int) -> Scores:
        """Return the number of samples whose path contains each synapse."""
        paths = effective_paths(im, x, self.theta, progress=self.progress)
        row = paths.sum(axis=0, dtype=np.int64)  # the synapses of all kernels
        ends = np.cumsum([kernel.size for kernel in im.kernels.values()])
        parts = zip(im.kernels.items(), np.split(row, ends[:-1]), strict=True)
        return {name: part.reshape(kernel.shape) for (name, kernel), part in parts}


def _unchanged(operation: Operation) -> PathRule:
    return lambda path, y, inputs, theta: [path] * len(inputs)


def _extreme(operation: Operation) -> PathRule:
    return lambda path, y, inputs, theta: [path & (x == y) for x in inputs]


def _addition(operation: Operation) -> PathRule:
    sign = -1 if operation.kind == "subtract" else 1

    def rule(
        path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
    ) -> Sequence[np.ndarray]:
        """For each neuron, choose the smallest set of positive summands that reaches θ · value."""
        terms = np.stack(np.broadcast_arrays(inputs[0], *(sign * x for x in inputs[1:])))
        order = np.argsort(-terms, axis=0, kind="stable")
        ordered = np.maximum(np.take_along_axis(terms, order, axis=0), 0).astype(np.float64)
        before = np.cumsum(ordered, axis=0) - ordered
        chosen = np.zeros(terms.shape, bool)
        np.put_along_axis(chosen, order, (ordered > 0) & (before < theta * y), axis=0)
        return list(path & chosen)

    return rule


def _routing(operation: Operation) -> PathRule:
    sources = routing_map(operation).ravel()
    sizes = [int(np.prod(shape)) for shape in operation.input_shapes]

    def rule(
        path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
    ) -> Sequence[np.ndarray]:
        """Continue the path at the sources of the values on it."""
        reached = np.zeros(sum(sizes), bool)
        used = sources[path.ravel()]
        reached[used[used != INSERTED]] = True
        parts = np.split(reached, np.cumsum(sizes)[:-1])
        return [p.reshape(s) for p, s in zip(parts, operation.input_shapes, strict=True)]

    return rule


def _pooling(operation: Operation) -> PathRule:
    taps = operation.params.taps

    def rule(
        path: np.ndarray, y: np.ndarray, inputs: list[np.ndarray], theta: float
    ) -> Sequence[np.ndarray]:
        (x,) = inputs
        reached = np.zeros(x.shape, bool)
        flat = [_flat(values) for values in (path, y, x, reached)]
        if operation.kind == "maximum":
            path_kernels.maximum(flat[0], flat[1], flat[2], taps, flat[3])
            return [reached]
        # The mean of k inputs reaches θ·y if their sum reaches k·θ·y.
        goal = flat[1] * (taps >= 0).sum(axis=1, keepdims=True) * theta
        channels = x.shape[-1]
        ones = np.ones((taps.shape[1], 1, channels), np.float32)
        unused = np.zeros(ones.shape, bool)
        path_kernels.weighted_sum(flat[0], goal, flat[2], ones, taps, channels, flat[3], unused)
        return [reached]

    return rule


for _build, _kinds in (
    (_unchanged, ("rectify", "elementwise", "scale", "multiply")),
    (_extreme, ("maximum_merge", "minimum_merge")),
    (_addition, ("add", "subtract")),
    (_routing, ("routing",)),
    (_pooling, ("average", "maximum")),
):
    for _kind in _kinds:
        PATHS[_kind] = _build


def _flat(values: np.ndarray) -> np.ndarray:
    """Return a view `(positions, channels)` of one sample's values."""
    return np.ascontiguousarray(values).reshape(-1, values.shape[-1])
