"""Effective paths: the synapses that matter for a prediction (Qiu et al., CVPR 2019).

The path goes backwards from the predicted class. For each neuron on it, the smallest set of
positive contributions w·x that reaches the share θ of its value puts its synapses on the path.

Points that the paper leaves open: ties follow the order of the inputs; a bias is part of the value
but not a contributor; if all contributions do not suffice, all are taken; a non-positive value
selects none. A scale after a weighted sum (batch normalisation) is folded in. Cost: a forward pass
and a sort of the contributions of each neuron on the path, slow for wide layers.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import track
from nnslicer_tf.baselines.path_rules import path_rule, path_through
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation
from nnslicer_tf.instrument.backward import propagate

_BATCH = 128


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
        theta: Share θ of a neuron's value that its contributors must reach, above 0
            and at most 1.
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
    theta = check_share(theta)
    wanted = dict.fromkeys(im.kernels if kernels is None else kernels)
    for name in wanted:
        check_name("kernel", name, im.kernels)

    ancestors = im.graph.ancestors([im.logit_operation])
    order = [o for o in reversed(ancestors) if o.name not in im.input_operations]
    on_walk = {operation.name for operation in order}
    shapes = {o.name: o.shape for o in im.operations}
    matrices = {name: kernel.matrix() for name, kernel in im.kernels.items()}
    rules = {o.name: path_rule(o) for o in order if o.kind != "weighted_sum"}

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
        """Return which synapses of each kernel are on the path of one sample."""
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
            matrix = np.ascontiguousarray(matrix, np.float32)
            goal = output * theta
            return [path_through(operation, path[0], goal, inputs[0], matrix, used[kernel])[None]]

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


def check_share(theta: float) -> float:
    """Return θ, a share of a neuron's value, if it is in (0, 1]; else raise."""
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta <= 1:
        raise InvalidArgumentError(
            f"theta is the share of a neuron's value to reach, above 0 and at most 1. "
            f"Received: {theta!r}"
        )
    return float(theta)
