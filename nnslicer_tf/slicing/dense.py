"""The walk at θ = 0 as dense tensor operations on the backend, on a GPU where there is one.

Where nothing is excluded, sign(CONTRIB · Δy · w · Δx) factors. With
g = sign(CONTRIB) ⊙ sign(Δy), the inputs of a weighted sum receive
sign(Δx) ⊙ (transposed sum of g with sign(W)), and its synapses
sign(W) ⊙ (weight gradient of the sum at sign(Δx) with g): two vector-Jacobian products.
The other operations are elementwise or move values. All counts are whole numbers, which
float32 holds exactly up to 2²⁴; `counts_are_exact` says whether a program stays below.

Cost: about two more forward passes; memory a few times that of a forward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops
from keras.config import backend

from nnslicer_tf.instrument import InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.gradients import compiled_function, vector_jacobian_product
from nnslicer_tf.slicing.jobs import Rows, RowsJob, Totals
from nnslicer_tf.slicing.program import Program
from nnslicer_tf.slicing.walker import Contributions

__all__ = ["DenseRows", "DenseSum", "counts_are_exact", "is_dense"]

_EXACT = 1 << 24
_ELEMENTWISE = (
    *("rectify", "elementwise", "scale", "add", "subtract", "multiply"),
    *("maximum_merge", "minimum_merge"),
)


def is_dense(im: InstrumentedModel, program: Program, batch: int) -> bool:
    """Return whether this executor can run a program: θ = 0, known kinds, exact counts."""
    known = all(
        program.nodes[name].kind in (*_RULES, "weighted_sum", "routing")
        for name in program.expanded
    )
    at_zero = program.theta == 0 and program.granularity == "activation"
    return at_zero and known and counts_are_exact(im, program, batch)


def counts_are_exact(im: InstrumentedModel, program: Program, batch: int) -> bool:
    """Return whether no contribution, summed over a batch, can reach 2²⁴.

    An operation with signs gives an input neuron at most one for each of its outputs;
    routing hands on whole counts, to one-to-many maps as often. Synapses collect at most
    one for each output position.
    """
    largest = dict.fromkeys((program.logits, *program.start.neurons), 1)
    for name in program.expanded:
        operation = im[name]
        for source, shape in zip(operation.inputs, operation.input_shapes, strict=True):
            given = operation.size
            if operation.kind == "routing":
                given = largest.get(name, 0) * -(-operation.size // int(np.prod(shape)))
            elif operation.kind in _ELEMENTWISE:
                given = -(-operation.size // int(np.prod(shape)))
            largest[source] = largest.get(source, 0) + given
    return max(largest.values()) * batch < _EXACT


class _Dense:
    """The compiled walk; subclasses say what of it is handed out."""

    def __init__(self, im: InstrumentedModel, program: Program) -> None:
        self._im = im
        self._program = program
        self._means = {name: _SplitMean(program.nodes[name].mean) for name in program.captured}
        self._walk = compiled_function(self._outputs)

    def _outputs(self, x: Any) -> Any:
        raise NotImplementedError

    def _neuron_contributions(self, x: Any, on_sum: Callable[..., None]) -> tuple[dict, Any]:
        """Walk a batch; return CONTRIB of the neurons (float32) and the logits.

        `on_sum` is called with each weighted sum, sign(Δx), and g.
        """
        values = self._im.compute(x, self._program.captured)
        contributions = self._start(values)
        for name in self._program.expanded:
            if name not in contributions:
                continue
            operation = self._im[name]
            if operation.kind == "routing":
                zeros = [ops.zeros((ops.shape(x)[0], *s)) for s in operation.input_shapes]
                received = vector_jacobian_product(operation.compute, zeros, contributions[name])
            else:
                g = ops.sign(contributions[name]) * self._delta_sign(values, name)
                signs = [self._delta_sign(values, source) for source in operation.inputs]
                if operation.kind == "weighted_sum":
                    received = [signs[0] * _transposed_sum(operation, signs[0], g)]
                    on_sum(operation, signs[0], g)
                else:
                    rule = _RULES[operation.kind]
                    received = rule(operation, g, signs, values)
            for source, contribution in zip(operation.inputs, received, strict=True):
                contribution = _sum_to(contribution, self._im[source].shape)
                previous = contributions.get(source)
                contributions[source] = (
                    contribution if previous is None else previous + contribution
                )
        return contributions, values[self._program.logits]

    def _start(self, values: Mapping[str, Any]) -> dict[str, Any]:
        logits = values[self._program.logits]
        if self._program.start.predicted:
            return {
                self._program.logits: ops.one_hot(ops.argmax(logits, axis=-1), logits.shape[-1])
            }
        starts = {}
        for name, indices in self._program.start.neurons.items():
            shape = self._im[name].shape
            start = np.zeros(int(np.prod(shape)), np.float32)
            start[indices] = 1
            batch = ops.shape(logits)[0]
            starts[name] = ops.broadcast_to(start.reshape(shape), (batch, *shape))
        return starts

    def _delta_sign(self, values: Mapping[str, Any], name: str) -> Any:
        return self._means[name].sign_of_delta(values[name])


class DenseSum(_Dense):
    """Sums the contributions of a batch of samples; called like `SumJob`, on raw data."""

    def __call__(self, batch: np.ndarray) -> Totals:
        """Return the `Totals` of a batch of samples."""
        neurons, synapses = self._walk(ops.convert_to_tensor(batch))
        return Totals(_to_int(neurons), _to_int(synapses), len(batch))

    def _outputs(self, x: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        synapses: dict[str, Any] = {}

        def add_synapses(operation: Operation, signs: Any, g: Any) -> None:
            kernel: Synapses = operation.params
            weight_signs = ops.sign(ops.cast(kernel.variable(), "float32"))
            (gradient,) = vector_jacobian_product(
                lambda w: kernel.apply(signs, w), [weight_signs], g
            )
            _accumulate(synapses, kernel.name, weight_signs * gradient)

        contributions, _ = self._neuron_contributions(x, add_synapses)
        return {name: ops.sum(c, axis=0) for name, c in contributions.items()}, synapses


class DenseRows(_Dense):
    """Keeps the contributions of every sample; called like `RowsJob`, on raw data.

    Args:
        im: The model.
        program: The program.
        job: Says which kernels and operations to keep.
    """

    def __init__(self, im: InstrumentedModel, program: Program, job: RowsJob) -> None:
        super().__init__(im, program)
        self._job = job
        self._weight_signs = {name: np.sign(im.kernels[name].matrix()) for name in job.kernels}

    def __call__(self, batch: np.ndarray) -> Rows:
        """Return the `Rows` of a batch of samples."""
        neurons, synapses, logits = self._walk(ops.convert_to_tensor(batch))
        kernels = self._program.kernels
        result = Contributions(
            {name: _host(value) for name, value in neurons.items()},
            {name: kernels[name].to_kernel(_host(value)) for name, value in synapses.items()},
        )
        predicted = _host(logits).reshape(len(batch), -1).argmax(axis=1)
        return self._job.rows(result, len(batch), predicted)

    def _outputs(self, x: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        synapses: dict[str, Any] = {}

        def add_synapses(operation: Operation, signs: Any, g: Any) -> None:
            kernel: Synapses = operation.params
            if kernel.name in self._job.kernels:
                gradients = _sample_gradients(operation, signs, g)
                _accumulate(synapses, kernel.name, gradients * self._weight_signs[kernel.name])

        contributions, logits = self._neuron_contributions(x, add_synapses)
        kept = {name: c for name, c in contributions.items() if name in self._job.operations}
        return kept, synapses, logits


class _SplitMean:
    """A float64 mean as two float32 bounds: Δ > 0 above the one, Δ < 0 below the other.

    So the sign of Δ = value − mean is found exactly without float64, which accelerators
    lack: no float32 value lies strictly between the mean and its nearest float32.
    """

    def __init__(self, mean: np.ndarray) -> None:
        nearest = mean.astype(np.float32)
        exact = nearest.astype(np.float64)
        below = np.nextafter(nearest, np.float32(-np.inf))
        above = np.nextafter(nearest, np.float32(np.inf))
        self._positive_above = np.where(exact > mean, below, nearest)
        self._negative_below = np.where(exact < mean, above, nearest)

    def sign_of_delta(self, value: Any) -> Any:
        positive = ops.cast(value > self._positive_above, "float32")
        return positive - ops.cast(value < self._negative_below, "float32")


def _transposed_sum(operation: Operation, like: Any, g: Any) -> Any:
    kernel: Synapses = operation.params
    weight_signs = ops.sign(ops.cast(kernel.variable(), "float32"))
    return vector_jacobian_product(lambda x: kernel.apply(x, weight_signs), [like], g)[0]


def _sample_gradients(operation: Operation, signs: Any, g: Any) -> Any:
    """Return each sample's weight gradient of a sum, `(batch, taps, inputs, outputs)`."""
    kernel: Synapses = operation.params
    groups = kernel.groups
    windows = _windows(operation, signs, kernel.taps)
    batch = ops.shape(windows)[0]
    positions, taps = kernel.taps.shape
    inputs = windows.shape[-1] // groups
    outputs = g.shape[-1] // groups
    windows = ops.reshape(windows, (batch, positions, taps, groups, inputs))
    g = ops.reshape(g, (batch, positions, groups, outputs))
    gradient = ops.einsum("bptgi,bpgo->btigo", windows, g)
    return ops.reshape(gradient, (batch, taps, inputs, groups * outputs))


def _windows(operation: Operation, x: Any, taps: np.ndarray) -> Any:
    """Return what each tap reads, `(batch, positions, taps, channels)`, padding as 0."""
    channels = operation.input_shapes[0][-1]
    by_position = ops.reshape(x, (ops.shape(x)[0], -1, channels))
    padded = ops.pad(by_position, [[0, 0], [0, 1], [0, 0]])
    last = int(np.prod(operation.input_shapes[0][:-1]))
    index = np.where(taps < 0, last, taps).ravel()
    read = ops.take(padded, index, axis=1)
    return ops.reshape(read, (ops.shape(x)[0], *taps.shape, channels))


def _one_to_one(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    return [g * signs[0]]


def _rectify(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    return [g * signs[0] * ops.cast(values[operation.name] > 0, "float32")]


def _average(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    received = _spread(operation, lambda windows: ops.ones_like(windows), g, signs[0])
    return [signs[0] * received]


def _maximum(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    """Every input equal to the output."""
    x = values[operation.inputs[0]]
    y = ops.reshape(values[operation.name], (ops.shape(x)[0], -1, 1, x.shape[-1]))

    def equal(windows: Any) -> Any:
        return ops.cast(windows == y, "float32")

    return [signs[0] * _spread(operation, equal, g, x)]


def _spread(operation: Operation, chosen: Callable, g: Any, x: Any) -> Any:
    """Give g of each window to the inputs that `chosen` marks with 1."""
    taps = operation.params.taps
    marks = chosen(_windows(operation, x, taps))
    g = ops.reshape(g, (ops.shape(x)[0], -1, 1, x.shape[-1]))
    (received,) = vector_jacobian_product(
        lambda inputs: _windows(operation, inputs, taps), [ops.zeros_like(x)], marks * g
    )
    return received


def _add(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    return [g * sign for sign in signs]


def _subtract(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    return [g * signs[0], *(-g * sign for sign in signs[1:])]


def _multiply(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    received = []
    for i, sign in enumerate(signs):
        product = g * sign
        for k, name in enumerate(operation.inputs):
            if k != i:
                product = product * ops.sign(values[name])
        received.append(product)
    return received


def _extreme(operation: Operation, g: Any, signs: Sequence[Any], values: Mapping) -> list:
    y = values[operation.name]
    return [
        g * sign * ops.cast(values[name] == y, "float32")
        for sign, name in zip(signs, operation.inputs, strict=True)
    ]


_RULES: dict[str, Callable[..., list]] = {
    "average": _average,
    "maximum": _maximum,
    "rectify": _rectify,
    "elementwise": _one_to_one,
    "scale": _one_to_one,
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "maximum_merge": _extreme,
    "minimum_merge": _extreme,
}


def _sum_to(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Sum what was broadcast, so that `tensor` has the shape `(batch, *shape)`."""
    if tuple(tensor.shape[1:]) == tuple(shape):
        return tensor
    lead = len(tensor.shape) - 1 - len(shape)
    tensor = ops.sum(tensor, axis=tuple(range(1, 1 + lead))) if lead else tensor
    stretched = tuple(
        axis + 1
        for axis, (have, want) in enumerate(zip(tensor.shape[1:], shape, strict=True))
        if want == 1 and have != 1
    )
    return ops.sum(tensor, axis=stretched, keepdims=True) if stretched else tensor


def _accumulate(totals: dict[str, Any], name: str, value: Any) -> None:
    totals[name] = totals[name] + value if name in totals else value


def _to_int(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: _host(value).astype(np.int64) for name, value in tensors.items()}


def _host(tensor: Any) -> np.ndarray:
    """Return a tensor as an array, without a copy where the backend allows it."""
    return ops.convert_to_numpy(tensor) if backend() == "torch" else np.asarray(tensor)
