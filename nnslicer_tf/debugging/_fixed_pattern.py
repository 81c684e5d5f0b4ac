"""The network after one kernel with a fixed activation pattern, affine in the kernel's weights."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import (
    Affine,
    Elementwise,
    InstrumentedModel,
    Operation,
    Synapses,
)
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.kinds.weighted_sum import sample_gradients
from nnslicer_tf.kinds.windows import windows

_AFFINE = ("weighted_sum", "average", "add", "subtract", "routing")
_ROWS = 512  # conditions that are differentiated at a time

Values = Mapping[str, np.ndarray]


class FixedPattern:
    """The network after a kernel, in float64.

    Its conditions at an input state that the pattern is kept and that a class wins. Each is a
    number that is at most 0 if it holds: for each ReLU minus its input if it is active, else its
    input; for each window of a max pooling every other value minus the chosen one; for each other
    class its logit minus the right one.

    Args:
        im: The model.
        kernel: Name of the kernel.

    Attributes:
        conditions: Number of conditions.
        others: Number of other classes, whose conditions come last.

    Raises:
        UnsupportedLayerError: if the kernel is used more than once, or an operation after it is
            not piecewise linear.
    """

    def __init__(self, im: InstrumentedModel, kernel: str) -> None:
        owners = [
            o for o in im.operations if isinstance(o.params, Synapses) and o.params.name == kernel
        ]
        if len(owners) != 1:
            raise UnsupportedLayerError(
                f"The kernel '{kernel}' is used {len(owners)} times; a repair needs one use."
            )
        self._graph = im.graph.in_dtype_of_input()
        self._input = im.input_operation
        self._owner = owners[0]
        self._logits = im.logit_operation
        self._behind = im.graph.between([self._owner.name], [self._logits])
        self._bends = [
            _checked(o)
            for o in self._behind
            if o.kind not in _AFFINE and not isinstance(o.params, Affine)
        ]
        self.others = im.classes.count - 1
        self._classes = im.classes
        counts = [o.params.taps.shape[1] if o.kind == "maximum" else 1 for o in self._bends]
        sizes = [o.size * count for o, count in zip(self._bends, counts, strict=True)]
        self.conditions = sum(sizes) + self.others

    def conditions_of(
        self, x: np.ndarray, pattern_at: np.ndarray, label: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the conditions at an input, and their gradients by the kernel's weights.

        Args:
            x: The input `(*input shape)`.
            pattern_at: The input whose pattern is fixed.
            label: The class that should win.

        Returns:
            `(conditions,)` and `(conditions, *kernel shape)`, float64.
        """
        pattern, own = self._values(pattern_at), self._values(x)
        run = self._runner(pattern, own, label)
        at = own[self._owner.name]
        values = ops.convert_to_numpy(run(ops.convert_to_tensor(at)))[0]
        kernel: Synapses = self._owner.params
        slopes = []
        for first in range(0, len(values), _ROWS):
            rows = np.eye(len(values))[first : first + _ROWS]
            many = ops.convert_to_tensor(np.repeat(at, len(rows), axis=0))
            (by_output,) = vector_jacobian_product(run, [many], ops.convert_to_tensor(rows))
            read = np.repeat(own[self._owner.inputs[0]], len(rows), axis=0)
            by_tap = sample_gradients(self._owner, ops.convert_to_tensor(read), by_output)
            slopes.append(kernel.to_kernel(ops.convert_to_numpy(by_tap)))
        return values, np.concatenate(slopes)

    def _values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values of all operations at one input, `(1, *shape)` float64."""
        wanted = {self._logits, self._owner.name, *self._owner.inputs}
        wanted.update(name for o in self._behind for name in (o.name, *o.inputs))
        values = self._graph.run(ops.convert_to_tensor(x[None].astype(np.float64)), wanted)
        return {name: ops.convert_to_numpy(value) for name, value in values.items()}

    def _runner(self, pattern: Values, own: Values, label: int) -> Callable[[Any], Any]:
        """Return the function that maps the owner's output `(batch, …)` to conditions."""

        def run(z: Any) -> Any:
            values = {self._owner.name: z}
            found = []
            for operation in self._behind:
                inputs = [
                    values[name]
                    if name in values  # else it does not depend on z
                    else ops.repeat(ops.convert_to_tensor(own[name]), ops.shape(z)[0], axis=0)
                    for name in operation.inputs
                ]
                if operation in self._bends:
                    bend = _rectify if operation.kind == "rectify" else _maximum
                    value, conditions = bend(operation, inputs[0], pattern)
                    found.append(conditions)
                else:
                    value = operation.compute(*inputs)
                values[operation.name] = value
            scores = values[self._logits]
            if self._classes.is_binary:
                scores = ops.concatenate([-scores, scores], axis=1)
            others = np.flatnonzero(np.arange(self.others + 1) != label)
            found.append(ops.take(scores, others, axis=1) - scores[:, label : label + 1])
            return ops.concatenate(found, axis=1)

        return run


def _rectify(operation: Operation, x: Any, pattern: Values) -> tuple[Any, Any]:
    """Apply a ReLU with fixed gates; return its output and conditions."""
    active = pattern[operation.inputs[0]] > 0
    conditions = ops.reshape(x * np.where(active, -1.0, 1.0), (-1, operation.size))
    return x * active.astype(np.float64), conditions


def _maximum(operation: Operation, x: Any, pattern: Values) -> tuple[Any, Any]:
    """Apply a max pooling with fixed choices; return its output and conditions."""
    taps = operation.params.taps
    before = windows(
        operation.input_shapes[0], ops.convert_to_tensor(pattern[operation.inputs[0]]), taps
    )
    outside = (taps < 0)[None, :, :, None]
    chosen = np.where(outside, -np.inf, ops.convert_to_numpy(before)).argmax(axis=2)
    marks = (np.arange(taps.shape[1])[:, None] == chosen[:, :, None]).astype(np.float64)
    read = windows(operation.input_shapes[0], x, taps)
    value = ops.sum(read * marks, axis=2)
    conditions = (read - value[:, :, None]) * (~outside).astype(np.float64)
    shape = (ops.shape(x)[0], *operation.shape)
    return ops.reshape(value, shape), ops.reshape(conditions, (shape[0], -1))


def _checked(operation: Operation) -> Operation:
    """Reject anything but a ReLU or a max pooling."""
    relu = isinstance(operation.params, Elementwise) and operation.params.function == "relu"
    plain = operation.kind == "rectify" and (operation.params is None or relu)
    if not plain and operation.kind != "maximum":
        raise UnsupportedLayerError(
            f"Operation '{operation.name}' ({operation.kind}) is neither affine, a ReLU nor a max "
            "pooling: a repair needs these behind the layer. Choose a later layer."
        )
    return operation
