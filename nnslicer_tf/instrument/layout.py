"""Kernels of weighted sums as matrices, independent of Keras, so that workers start fast."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule

ops: Any = LazyModule("keras.ops")

# The meaning of the last two axes of a kernel.
INPUTS_OUTPUTS = "inputs, outputs"
OUTPUTS_INPUTS = "outputs, inputs"
DEPTHWISE = "channels, multiplier"


@dataclass(frozen=True)
class KernelLayout:
    """A kernel's layout, and its conversion to matrices `(taps, inputs per group, outputs)`.

    Attributes:
        name: Name of the kernel: its layer's name, with `/depthwise` or `/pointwise`
            for the two kernels of a separable convolution.
        shape: Shape of the kernel in Keras.
        groups: Number of channel groups (a depthwise convolution has one per channel).
        axes: Meaning of the last two axes: "inputs, outputs"; "outputs, inputs" for a
            transposed convolution; "channels, multiplier" for a depthwise one.
        order: The axes in the order (inputs, groups, outputs) in which they form one matrix;
            empty if the last two axes form a matrix.
        summed: How many of the axes in `order` are inputs.
    """

    name: str
    shape: tuple[int, ...]
    groups: int
    axes: str
    order: tuple[int, ...] = field(default=(), kw_only=True)
    summed: int = field(default=0, kw_only=True)

    @property
    def size(self) -> int:
        """Number of synapses."""
        return int(np.prod(self.shape))

    def from_kernel(self, kernel: np.ndarray) -> np.ndarray:
        """Reshape an array of the kernel's shape to `(taps, inputs per group, outputs)`."""
        if self.order:
            inputs = int(np.prod([self.shape[axis] for axis in self.order[: self.summed]]))
            return np.ascontiguousarray(kernel.transpose(self.order)).reshape(1, inputs, -1)
        matrices = kernel.reshape(-1, *self.shape[-2:])
        if self.axes == OUTPUTS_INPUTS:
            return matrices.transpose(0, 2, 1)
        if self.axes == DEPTHWISE:
            return matrices.reshape(len(matrices), 1, -1)
        return matrices

    def tensor_from_kernel(self, kernel: Any) -> Any:
        """Reshape a tensor of the kernel's shape to `(taps, inputs per group, outputs)`."""
        if self.order:
            inputs = int(np.prod([self.shape[axis] for axis in self.order[: self.summed]]))
            return ops.reshape(ops.transpose(kernel, self.order), (1, inputs, -1))
        matrices = ops.reshape(kernel, (-1, *self.shape[-2:]))
        if self.axes == OUTPUTS_INPUTS:
            return ops.swapaxes(matrices, -1, -2)
        if self.axes == DEPTHWISE:
            return ops.reshape(matrices, (matrices.shape[0], 1, -1))
        return matrices

    def to_kernel(self, matrix: np.ndarray) -> np.ndarray:
        """Reshape `(…, taps, inputs per group, outputs)` to the kernel's shape."""
        lead = matrix.shape[:-3]
        if self.axes == OUTPUTS_INPUTS:
            matrix = np.swapaxes(matrix, -1, -2)
        if self.order:
            matrix = matrix.reshape(*lead, *(self.shape[axis] for axis in self.order))
            last = range(-len(self.order), 0)
            return np.ascontiguousarray(np.moveaxis(matrix, last, self._axes_of_order))
        return np.ascontiguousarray(matrix).reshape(*lead, *self.shape)

    def tensor_to_kernel(self, matrices: Any) -> Any:
        """Reshape a tensor `(batch, taps, inputs per group, outputs)` to the kernel's shape."""
        if self.axes == OUTPUTS_INPUTS:
            matrices = ops.swapaxes(matrices, -1, -2)
        if self.order:
            matrices = ops.reshape(matrices, (-1, *(self.shape[axis] for axis in self.order)))
            back = np.argsort(self.order)
            return ops.transpose(matrices, (0, *(int(axis) + 1 for axis in back)))
        return ops.reshape(matrices, (-1, *self.shape))

    @property
    def _axes_of_order(self) -> list[int]:
        """The kernel's axes in the order of its matrix, counted from the end."""
        return [axis - len(self.order) for axis in self.order]
