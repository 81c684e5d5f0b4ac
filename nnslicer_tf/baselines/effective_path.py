"""Effective paths: the synapses that matter for a prediction (Qiu et al., CVPR 2019).

From the predicted class backwards: of each neuron on the path, the smallest set of positive
contributions w·x that together reach θ of its value; the synapses of this set are on the
path, and so are the neurons that they come from.

What the paper leaves open is decided so: contributions are taken largest first, ties by
input position; a bias is part of the neuron's value but is no contributor; where all
positive contributions together do not reach θ of the value, all are taken; a neuron whose
value is not positive has an empty set. A scale behind a weighted sum (batch normalisation)
is folded into it. Sums (residual connections) and averages select among their inputs in the
same way; a maximum takes every input equal to it; other operations hand the path on.

Cost: a forward pass and, for each neuron on the path, a sort of its positive contributions:
slow for wide layers.
"""

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._names import check_name
from nnslicer_tf._progress import track
from nnslicer_tf.baselines import _path_kernels
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Pooling, Synapses
from nnslicer_tf.instrument.routing import INSERTED, routing_map

__all__ = ["check_share", "effective_paths"]

_BATCH = 128
_HAND_ON = ("rectify", "elementwise", "scale", "multiply")


def effective_paths(
    im: InstrumentedModel,
    x: np.ndarray,
    theta: float = 0.5,
    *,
    kernels: Iterable[str] | None = None,
    progress: bool = True,
) -> sp.csr_array:
    """Return which synapses are on each sample's effective path.

    Args:
        im: the model.
        x: (N, *input_shape) samples.
        theta: the share θ of a neuron's value that its contributors must reach, above 0
            and at most 1.
        kernels: names of the kernels whose synapses are returned; all by default.
        progress: show a progress bar.

    Returns:
        (N, synapses) int32 of 0 and 1; columns run over the kernels in topological order,
        each in C order, as of `SliceSet.matrix`.

    Raises:
        InvalidArgumentError: if θ is out of range or a kernel does not exist.
        UnsupportedLayerError: for an operation of a kind without a rule here.
        InputShapeError, NonFiniteActivationError: for bad data.
    """
    walk = _Walk(im, check_share(theta))
    chosen = list(im.kernels) if kernels is None else list(kernels)
    for name in chosen:
        check_name("kernel", name, im.kernels)
    chosen = [name for name in im.kernels if name in chosen]
    rows = []
    steps = -(-len(x) // _BATCH)
    for batch in track(im.capture_batches(x, _BATCH), "Effective paths", steps, progress):
        for i in range(len(batch[im.input_operation])):
            used = walk({name: values[i] for name, values in batch.items()})
            row = np.concatenate([used[name].ravel() for name in chosen])
            rows.append(sp.csr_array(row[None].astype(np.int32)))
    return sp.vstack(rows, format="csr")


class _Walk:
    """The backward walk of one sample through a model."""

    def __init__(self, im: InstrumentedModel, theta: float) -> None:
        self._im = im
        self._theta = theta
        self._kernels = im.kernels
        self._matrices = {name: kernel.matrix() for name, kernel in im.kernels.items()}
        self._order = self._before_logits()
        self._routes = {o.name: routing_map(o) for o in self._order if o.kind == "routing"}
        self._folded = self._folded_scales()

    def __call__(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return kernel → bool array of its shape, from the values of all operations."""
        paths = {o.name: np.zeros(o.shape, bool) for o in self._im.operations}
        used = {name: np.zeros(m.shape, bool) for name, m in self._matrices.items()}
        logits = self._im.logit_operation
        paths[logits].flat[values[logits].argmax()] = True
        for operation in self._order:
            path = paths[operation.name]
            if not path.any():
                continue
            if isinstance(operation.params, Synapses):
                reached = [self._weighted_sum(operation, path, values, used)]
            else:
                reached = self._expand(operation, path, values)
            for source, found in zip(operation.inputs, reached, strict=True):
                paths[source] |= found
        return {name: self._kernels[name].to_kernel(mask) for name, mask in used.items()}

    def _weighted_sum(
        self,
        operation: Operation,
        path: np.ndarray,
        values: dict[str, np.ndarray],
        used: dict[str, np.ndarray],
    ) -> np.ndarray:
        params = operation.params
        matrix, output = self._matrices[params.name], values[operation.name]
        if operation.name in self._folded:
            scale, factor = self._folded[operation.name]
            matrix, output = matrix * factor, values[scale]
        source = values[operation.inputs[0]]
        reached = np.zeros(source.shape, bool)
        _path_kernels.weighted_sum(
            _flat(path),
            _flat(output) * self._theta,
            _flat(source),
            np.ascontiguousarray(matrix, np.float32),
            params.taps,
            params.groups,
            _flat(reached),
            used[params.name],
        )
        return reached

    def _expand(
        self, operation: Operation, path: np.ndarray, values: dict[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return which neurons of each input an operation without synapses hands on to."""
        inputs = [values[name] for name in operation.inputs]
        output = values[operation.name]
        kind = operation.kind
        if kind in _HAND_ON:
            return [np.broadcast_to(path, v.shape) for v in inputs]
        if kind == "routing":
            return self._route(operation, path)
        if isinstance(operation.params, Pooling):
            return [self._pool(operation, path, inputs[0], output)]
        if kind in ("maximum_merge", "minimum_merge"):
            return [path & (v == output) for v in inputs]
        signs = [1] + [-1 if kind == "subtract" else 1] * (len(inputs) - 1)
        contributions = np.stack([s * v for s, v in zip(signs, inputs, strict=True)])
        return list(path & _smallest_sets(contributions, self._theta * output))

    def _pool(
        self, operation: Operation, path: np.ndarray, source: np.ndarray, output: np.ndarray
    ) -> np.ndarray:
        taps = operation.params.taps
        reached = np.zeros(source.shape, bool)
        if operation.kind == "maximum":
            _path_kernels.maximum(_flat(path), _flat(output), _flat(source), taps, _flat(reached))
            return reached
        # The mean of k inputs reaches θ·y where their sum reaches k·θ·y.
        count = (taps >= 0).sum(axis=1, keepdims=True)
        channels = source.shape[-1]
        ones = np.ones((taps.shape[1], 1, channels), np.float32)
        _path_kernels.weighted_sum(
            *(_flat(path), _flat(output) * count * self._theta, _flat(source)),
            *(ones, taps, channels, _flat(reached), np.zeros(ones.shape, bool)),
        )
        return reached

    def _route(self, operation: Operation, path: np.ndarray) -> list[np.ndarray]:
        sources = self._routes[operation.name].ravel()[path.ravel()]
        sizes = [int(np.prod(shape)) for shape in operation.input_shapes]
        reached = np.zeros(sum(sizes), bool)
        reached[sources[sources != INSERTED]] = True
        parts = np.split(reached, np.cumsum(sizes)[:-1])
        return [p.reshape(s) for p, s in zip(parts, operation.input_shapes, strict=True)]

    def _before_logits(self) -> list[Operation]:
        """Return the operations that the logits depend on, last first, but the input."""
        needed = {self._im.logit_operation}
        order = []
        for operation in reversed(self._im.operations[1:]):
            if operation.name in needed:
                needed.update(operation.inputs)
                order.append(operation)
                self._check(operation)
        return order

    @staticmethod
    def _check(operation: Operation) -> None:
        known = ("routing", "add", "subtract", "maximum_merge", "minimum_merge", *_HAND_ON)
        with_table = isinstance(operation.params, (Synapses, Pooling))
        if not with_table and operation.kind not in known:
            raise UnsupportedLayerError(
                f"Effective paths have no rule for operation '{operation.name}' of kind "
                f"'{operation.kind}'."
            )

    def _folded_scales(self) -> dict[str, tuple[str, np.ndarray]]:
        """Return weighted sum → the fixed scale that alone takes it, and its factors."""
        takers: dict[str, list[Operation]] = {}
        for operation in self._order:
            for source in operation.inputs:
                takers.setdefault(source, []).append(operation)
        folded = {}
        for name, operations in takers.items():
            is_sum = isinstance(self._im[name].params, Synapses)
            if is_sum and len(operations) == 1 and isinstance(operations[0].params, Affine):
                factor = np.asarray(operations[0].params.read()[0])
                channels = self._im[name].shape[-1]
                if factor.size in (1, channels):
                    folded[name] = operations[0].name, np.resize(factor, channels)
        return folded


def _smallest_sets(contributions: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Return which of (k, …) contributions are in the smallest set that reaches (…) goals."""
    order = np.argsort(-contributions, axis=0, kind="stable")
    ordered = np.maximum(np.take_along_axis(contributions, order, axis=0), 0).astype(np.float64)
    before = np.cumsum(ordered, axis=0) - ordered
    taken = (ordered > 0) & (before < goals)
    chosen = np.zeros(contributions.shape, bool)
    np.put_along_axis(chosen, order, taken, axis=0)
    return chosen


def _flat(values: np.ndarray) -> np.ndarray:
    """Return a view (positions, channels)."""
    return np.ascontiguousarray(values).reshape(-1, values.shape[-1])


def check_share(theta: float) -> float:
    """Return θ, the share of a neuron's value that its contributors must reach.

    Raises:
        InvalidArgumentError: if it is not above 0 and at most 1.
    """
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta <= 1:
        raise InvalidArgumentError(
            f"theta is the share of a neuron's value to reach, above 0 and at most 1. "
            f"Received: {theta!r}"
        )
    return float(theta)
