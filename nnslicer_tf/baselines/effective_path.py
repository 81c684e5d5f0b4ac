"""Effective paths: the synapses that matter for a prediction (Qiu et al., CVPR 2019).

The path starts at the predicted class and goes backwards. For each neuron on it, the smallest
set of positive contributions w·x that together reach the share θ of its value is selected; the
synapses of this set are on the path, and so are the neurons that they come from.

The paper leaves some points open. Here, contributions are taken largest first, with ties in the
order of the inputs; a bias is part of the neuron's value but is not a contributor; if all positive
contributions together do not reach the share θ of the value, all are taken; a neuron whose value
is not positive has an empty set. A scale after a weighted sum (batch normalisation) is folded into
it. Additions (residual connections) and averages select among their inputs in the same way; a
maximum takes every input equal to it; other operations propagate the path unchanged.

Cost: a forward pass and, for each neuron on the path, a sort of its positive contributions, which
is slow for wide layers.
"""

from collections.abc import Iterable, Sequence

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
        x: (N, *input_shape) samples.
        theta: Share θ of a neuron's value that its contributors must reach, above 0
            and at most 1.
        kernels: Names of the kernels whose synapses are returned; all by default.
        progress: Show a progress bar.

    Returns:
        (N, synapses) int32 of 0 and 1; columns run over the kernels in topological order,
        each in C order, as in `SliceSet.matrix`.

    Raises:
        InvalidArgumentError: if θ is out of range or a kernel does not exist.
        UnsupportedLayerError: for an operation whose kind has no rule for effective paths.
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
        order = im.graph.ancestors([im.logit_operation])
        self._order = [o for o in reversed(order) if o.name != im.input_operation]
        self._rules = {o.name: path_rule(o) for o in self._order if not _is_sum(o)}
        self._shapes = {o.name: o.shape for o in im.operations}
        self._folded = self._folded_scales()

    def __call__(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return kernel → whether each of its synapses is on the path (bool).

        Args:
            values: Operation name → its value for the sample.
        """
        used = {name: np.zeros(m.shape, bool) for name, m in self._matrices.items()}
        logits = self._im.logit_operation
        start = np.zeros((1, *self._shapes[logits]), bool)
        start.flat[values[logits].argmax()] = True

        def expand(operation: Operation, path: np.ndarray) -> list[np.ndarray]:
            return [found[None] for found in self._expand(operation, path[0], values, used)]

        propagate(self._order, {logits: start}, expand, self._shapes)
        return {name: self._kernels[name].to_kernel(mask) for name, mask in used.items()}

    def _expand(
        self,
        operation: Operation,
        path: np.ndarray,
        values: dict[str, np.ndarray],
        used: dict[str, np.ndarray],
    ) -> Sequence[np.ndarray]:
        """Mark the neurons of each input that are on the path, and the synapses in `used`."""
        inputs = [values[name] for name in operation.inputs]
        if not _is_sum(operation):
            rule = self._rules[operation.name]
            return rule(path, values[operation.name], inputs, self._theta)
        kernel = operation.params.name
        matrix, output = self._matrices[kernel], values[operation.name]
        if operation.name in self._folded:
            scale, factor = self._folded[operation.name]
            matrix, output = matrix * factor, values[scale]
        matrix = np.ascontiguousarray(matrix, np.float32)
        goal = output * self._theta
        return [path_through(operation, path, goal, inputs[0], matrix, used[kernel])]

    def _folded_scales(self) -> dict[str, tuple[str, np.ndarray]]:
        """Return weighted sum → the scale that is its only consumer, and the scale's factors."""
        reached = {operation.name for operation in self._order}
        folded = {}
        for operation in filter(_is_sum, self._order):
            takers = [o for o in self._im.graph.consumers[operation.name] if o.name in reached]
            if len(takers) == 1 and isinstance(takers[0].params, Affine):
                factor = np.asarray(takers[0].params.read()[0])
                channels = operation.shape[-1]
                if factor.size in (1, channels):
                    folded[operation.name] = takers[0].name, np.resize(factor, channels)
        return folded


def _is_sum(operation: Operation) -> bool:
    return operation.kind == "weighted_sum"


def check_share(theta: float) -> float:
    """Check θ, the share of a neuron's value that its contributors must reach.

    Raises:
        InvalidArgumentError: if it is not in (0, 1].
    """
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta <= 1:
        raise InvalidArgumentError(
            f"theta is the share of a neuron's value to reach, above 0 and at most 1. "
            f"Received: {theta!r}"
        )
    return float(theta)
