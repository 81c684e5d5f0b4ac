"""Kernels of weighted sums as matrices; independent of Keras, so that workers start fast."""

from dataclasses import dataclass

import numpy as np

# The meaning of the last two axes of a kernel.
INPUTS_OUTPUTS = "inputs, outputs"
OUTPUTS_INPUTS = "outputs, inputs"
DEPTHWISE = "channels, multiplier"


@dataclass(frozen=True)
class KernelLayout:
    """The layout of a kernel's weights, with conversion to and from matrices.

    The matrices are `(taps, inputs per group, outputs)`.

    Attributes:
        name: Name of the kernel: its layer's name, with `/depthwise` or `/pointwise`
            for the two kernels of a separable convolution.
        shape: Shape of the kernel in Keras.
        groups: Number of channel groups (a depthwise convolution has one per channel).
        axes: Meaning of the last two axes: "inputs, outputs"; "outputs, inputs" for a
            transposed convolution; "channels, multiplier" for a depthwise one.
    """

    name: str
    shape: tuple[int, ...]
    groups: int
    axes: str

    @property
    def size(self) -> int:
        """Number of synapses."""
        return int(np.prod(self.shape))

    def from_kernel(self, kernel: np.ndarray) -> np.ndarray:
        """Reshape an array of the kernel's shape to `(taps, inputs per group, outputs)`."""
        matrices = kernel.reshape(-1, *self.shape[-2:])
        if self.axes == OUTPUTS_INPUTS:
            return matrices.transpose(0, 2, 1)
        if self.axes == DEPTHWISE:
            return matrices.reshape(len(matrices), 1, -1)
        return matrices

    def to_kernel(self, matrix: np.ndarray) -> np.ndarray:
        """Reshape `(…, taps, inputs per group, outputs)` to the kernel's shape."""
        lead = matrix.shape[:-3]
        if self.axes == OUTPUTS_INPUTS:
            matrix = np.swapaxes(matrix, -1, -2)
        return np.ascontiguousarray(matrix).reshape(*lead, *self.shape)
