"""Projections: `EinsumDense`, any contraction of an input with a kernel.

A projection is a weighted sum over axes of the input, the same at every position. If its axes
are not in the order (positions, groups, channels), a separate routing operation reorders the input
or the output, so that the weighted sum has the form of a dense layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import windows
from nnslicer_tf.instrument.layers.activations import with_activation
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.layers.registry import LayerCall
from nnslicer_tf.instrument.layers.weighted_sums import sum_step
from nnslicer_tf.instrument.operations import Source, Step, Synapses


@dataclass(frozen=True)
class Axes:
    """The axes of a projection, as the letters of its equation, without the batch axis.

    Attributes:
        inputs: Axes of the input.
        kernel: Axes of the kernel.
        outputs: Axes of the output.
    """

    inputs: str
    kernel: str
    outputs: str

    @cached_property
    def positions(self) -> str:
        """Axes that the kernel does not have."""
        return "".join(a for a in self.outputs if a in self.inputs and a not in self.kernel)

    @cached_property
    def groups(self) -> str:
        """Axes that all three have: each index along them has its own weights."""
        return "".join(a for a in self.outputs if a in self.inputs and a in self.kernel)

    @cached_property
    def summed(self) -> str:
        """Axes that are summed over."""
        return "".join(a for a in self.inputs if a in self.kernel and a not in self.outputs)

    @cached_property
    def free(self) -> str:
        """Axes of the output that the input does not have."""
        return "".join(a for a in self.outputs if a in self.kernel and a not in self.inputs)


def parse(equation: str, rank: int) -> Axes | None:
    """Return the axes of an equation; None if it is not a projection of single samples.

    Args:
        equation: The equation, as in `EinsumDense`.
        rank: Number of axes of the input, including the batch axis.
    """
    left, outputs = equation.replace(" ", "").split("->")
    inputs, kernel = left.split(",")
    if "..." in inputs:
        unused = [a for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if a not in equation]
        spread = "".join(unused[: rank - len(inputs.replace("...", ""))])
        inputs, outputs = inputs.replace("...", spread), outputs.replace("...", spread)
    batch = inputs[:1]
    axes = Axes(inputs[1:], kernel, outputs[1:])
    known = len(axes.positions) + len(axes.groups)
    whole = (
        outputs.startswith(batch)
        and batch not in kernel
        and known + len(axes.summed) == len(axes.inputs)
        and known + len(axes.free) == len(axes.outputs)
        and len(axes.groups) + len(axes.summed) + len(axes.free) == len(kernel)
        and len({*inputs}) == len(inputs)
    )
    return axes if whole and axes.summed and axes.free else None


class Projection:
    """The steps of an `EinsumDense` layer.

    Args:
        layer: The layer.
        name: Name of its kernel.
        input_shape: Shape of the input, without the batch axis.
        output_shape: Shape of the output, without the batch axis.

    Raises:
        UnsupportedLayerError: if the equation is not a projection.
    """

    def __init__(
        self,
        layer: layers.EinsumDense,
        name: str,
        input_shape: Sequence[int],
        output_shape: Sequence[int],
    ) -> None:
        axes = parse(layer.equation, len(input_shape) + 1)
        if axes is None:
            raise UnsupportedLayerError(
                f"Layer '{name}' (EinsumDense) computes '{layer.equation}', which is no "
                "projection: every axis of the kernel must be summed over, or be an axis of the "
                "output, and the batch axis must come first."
            )
        self.axes = axes
        self._layer = layer
        self._name = name
        extents = dict(zip(axes.inputs, input_shape, strict=True))
        extents |= dict(zip(axes.outputs, output_shape, strict=True))
        self._extents = extents
        self._output_shape = tuple(output_shape)

    def steps(self, suffix: str = "", source: Source = 0) -> tuple[Step, ...]:
        """Return the steps; the last one has the suffix.

        Args:
            suffix: Suffix of the result.
            source: Source of the first step.
        """
        axes = self.axes
        steps = []
        if axes.inputs != axes.positions + axes.groups + axes.summed or self._inner(axes.summed):
            order = axes.positions + axes.groups + axes.summed
            moved = (*self._shape(axes.positions), self._size(axes.groups + axes.summed))
            compute = _moved([axes.inputs.index(a) for a in order], moved)
            steps.append(Step("routing", compute, None, f"{suffix}:in", (source,), moved))
            source = f"{suffix}:in"
        shape = (*self._shape(axes.positions), self._size(axes.groups + axes.free))
        step = sum_step(self.synapses())
        tail = [Step(step.kind, step.compute, step.params, ":sum", (source,), shape)]
        if shape != self._output_shape or self._result_order != axes.outputs:
            tail.append(self._unfolded())
        if self._bias_by_position:
            tail.append(self._add_bias())
        last = tail.pop()
        last = Step(last.kind, last.compute, last.params, "", last.sources, last.shape)
        tail.extend(with_activation(last, self._layer.activation))
        return (*steps, *self._named(tail, suffix))

    @property
    def _result_order(self) -> str:
        return self.axes.positions + self.axes.groups + self.axes.free

    def _inner(self, letters: str) -> bool:
        return len(self.axes.groups + letters) > 1

    def _named(self, steps: Sequence[Step], suffix: str) -> list[Step]:
        return [
            Step(s.kind, s.compute, s.params, suffix + s.suffix, s.sources, s.shape) for s in steps
        ]

    def _shape(self, letters: str) -> tuple[int, ...]:
        return tuple(self._extents[a] for a in letters)

    def _size(self, letters: str) -> int:
        return int(np.prod(self._shape(letters)))

    def _unfolded(self) -> Step:
        """Return the step that reshapes the sums to the output's axes, in their order."""
        parts = self._shape(self._result_order)
        order = [self._result_order.index(a) + 1 for a in self.axes.outputs]

        def compute(x: Any) -> Any:
            return ops.transpose(ops.reshape(x, (-1, *parts)), (0, *order))

        return Step("routing", compute, None, ":axes", shape=self._output_shape)

    def synapses(self) -> Synapses:
        """Return the kernel; both its inputs and its outputs are on the last axis."""
        axes, layer = self.axes, self._layer
        order = tuple(axes.kernel.index(a) for a in axes.summed + axes.groups + axes.free)
        groups, summed, free = map(self._size, (axes.groups, axes.summed, axes.free))
        positions = self._size(axes.positions)

        def apply(x: Any, kernel: Any) -> Any:
            if axes.groups:
                weights = ops.reshape(ops.transpose(kernel, order), (summed, groups, free))
                x = ops.reshape(x, (-1, *self._shape(axes.positions), groups, summed))
                outputs = ops.einsum("...gi,igo->...go", x, weights)
                return ops.reshape(outputs, (-1, *self._shape(axes.positions), groups * free))
            return ops.matmul(x, ops.reshape(ops.transpose(kernel, order), (summed, free)))

        return Synapses(
            name=self._name,
            shape=tuple(layer.kernel.shape),
            groups=groups,
            axes="einsum",
            variable=lambda: layer.kernel,
            bias=self._bias_vector,
            apply=apply,
            build_taps=lambda: windows.pointwise(positions),
            order=order,
            summed=len(axes.summed),
        )

    @property
    def _bias_axes(self) -> str:
        """The axes of the output that the bias spans: as many of the last ones as it has axes."""
        last = len(self._layer.bias.shape)
        return self.axes.outputs[len(self.axes.outputs) - last :]

    @property
    def _bias_by_position(self) -> bool:
        if self._layer.bias is None:
            return False
        extents = zip(self._bias_axes, self._layer.bias.shape, strict=True)
        return any(a in self.axes.positions and extent > 1 for a, extent in extents)

    def _bias_vector(self) -> Any:
        """Return the bias of each sum, `(outputs,)`; None if there is none or it has positions."""
        bias = self._layer.bias
        if bias is None or self._bias_by_position:
            return None
        letters = self.axes.groups + self.axes.free
        if self._bias_axes == letters and len(letters) == 1:
            return bias  # the variable itself
        kept = [a for a in self._bias_axes if a in letters]
        whole = ops.reshape(
            bias,
            [extent for a, extent in zip(self._bias_axes, bias.shape, strict=True) if a in letters],
        )
        spread = [kept.index(a) for a in letters if a in kept]
        whole = ops.transpose(whole, spread)
        shape = [whole.shape[spread.index(kept.index(a))] if a in kept else 1 for a in letters]
        return ops.reshape(ops.broadcast_to(ops.reshape(whole, shape), self._shape(letters)), (-1,))

    def _add_bias(self) -> Step:
        """Return the step that adds a bias that varies with position."""
        layer = self._layer

        def read() -> tuple[np.ndarray, np.ndarray]:
            return np.asarray(1.0), ops.convert_to_numpy(layer.bias).astype(np.float64)

        step = affine_step(read, lambda x: x + ops.cast(layer.bias, x.dtype))
        return Step(step.kind, step.compute, step.params, ":bias", shape=self._output_shape)


def _moved(order: Sequence[int], shape: Sequence[int]) -> Callable[[Any], Any]:
    axes = (0, *(axis + 1 for axis in order))
    return lambda x: ops.reshape(ops.transpose(x, axes), (-1, *shape))


def _einsum_dense(layer: layers.EinsumDense, call: LayerCall) -> tuple[Step, ...]:
    return Projection(layer, call.path, call.input_shapes[0], call.output_shape).steps()


LAYERS: dict[type | str, Callable[[keras.Operation, LayerCall], tuple[Step, ...]]] = {
    layers.EinsumDense: _einsum_dense,
}
