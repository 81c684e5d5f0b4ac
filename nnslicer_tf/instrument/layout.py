"""Kernels of weighted sums as matrices, and units; without Keras, so that workers start fast."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf._environment import ops

# The meaning of the last two axes of a kernel.
INPUTS_OUTPUTS = "inputs, outputs"
OUTPUTS_INPUTS = "outputs, inputs"
DEPTHWISE = "channels, multiplier"

LEVELS = ("synapse", "neuron", "channel", "head", "input")
"""Units of slices."""
WEIGHT = "weight"
"""Units of differences between versions: every entry of every variable, biases included."""


@dataclass(frozen=True)
class KernelLayout:
    """A kernel's layout, and its conversion to matrices `(taps, inputs per group, outputs)`."""

    name: str  # its layer's, with `/depthwise` or `/pointwise` in a separable convolution
    shape: tuple[int, ...]  # in Keras
    groups: int  # of channels; a depthwise convolution has one per channel
    axes: str  # the meaning of the last two axes, one of the above
    # The axes in the order (inputs, groups, outputs) in which they form one matrix; empty if the
    # last two axes form a matrix. The first `summed` of them are inputs.
    order: tuple[int, ...] = field(default=(), kw_only=True)
    summed: int = field(default=0, kw_only=True)

    @property
    def size(self) -> int:
        """Number of synapses."""
        return int(np.prod(self.shape))

    def from_kernel(self, kernel: Any) -> Any:
        """Reshape an array or tensor from the kernel's shape to `(taps, inputs, outputs)`."""
        xp: Any = np if isinstance(kernel, np.ndarray) else ops
        if self.order:
            inputs = int(np.prod([self.shape[axis] for axis in self.order[: self.summed]]))
            return xp.reshape(xp.transpose(kernel, self.order), (1, inputs, -1))
        matrices = xp.reshape(kernel, (-1, *self.shape[-2:]))
        if self.axes == OUTPUTS_INPUTS:
            return xp.swapaxes(matrices, -1, -2)
        if self.axes == DEPTHWISE:
            return xp.reshape(matrices, (matrices.shape[0], 1, -1))
        return matrices

    def to_kernel(self, matrix: Any) -> Any:
        """Reshape an array or tensor `([batch,] taps, inputs, outputs)` to the kernel's shape."""
        xp: Any = np if isinstance(matrix, np.ndarray) else ops
        lead = (-1,) if len(matrix.shape) == 4 else ()
        if self.axes == OUTPUTS_INPUTS:
            matrix = xp.swapaxes(matrix, -1, -2)
        order = self.order or range(len(self.shape))
        kernel = xp.reshape(matrix, (*lead, *(self.shape[axis] for axis in order)))
        if self.order:
            back = (int(axis) + len(lead) for axis in np.argsort(self.order))
            kernel = xp.transpose(kernel, (*range(len(lead)), *back))
        return np.ascontiguousarray(kernel) if xp is np else kernel
