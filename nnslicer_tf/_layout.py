"""Kernels of weighted sums as matrices; free of Keras, so that workers start fast."""

from dataclasses import dataclass

import numpy as np

__all__ = ["KernelLayout"]


@dataclass(frozen=True)
class KernelLayout:
    """How a kernel's weights are laid out: `(taps, inputs per group, outputs)` and back.

    Attributes:
        name: Name of the kernel: its layer's name, with `/depthwise` or `/pointwise`
            for the two kernels of a separable convolution.
        shape: Shape of the kernel in Keras.
        groups: Number of channel groups (a depthwise convolution has one per channel).
        swapped: Whether the last two axes of the kernel are (outputs, inputs), as in
            a transposed convolution.
    """

    name: str
    shape: tuple[int, ...]
    groups: int
    swapped: bool

    @property
    def size(self) -> int:
        """Number of synapses."""
        return int(np.prod(self.shape))

    def from_kernel(self, kernel: np.ndarray) -> np.ndarray:
        """Reshape an array of the kernel's shape to `(taps, inputs per group, outputs)`."""
        taps = int(np.prod(self.shape[:-2]))
        if self.swapped:
            return kernel.reshape(taps, *self.shape[-2:]).transpose(0, 2, 1)
        # A depthwise kernel's axes (channel, multiplier) are together its outputs.
        return kernel.reshape(taps, -1, self._outputs)

    def to_kernel(self, matrix: np.ndarray) -> np.ndarray:
        """Reshape `(…, taps, inputs per group, outputs)` to the kernel's shape."""
        lead = matrix.shape[:-3]
        if self.swapped:
            matrix = np.swapaxes(matrix, -1, -2)
        return np.ascontiguousarray(matrix).reshape(*lead, *self.shape)

    @property
    def _outputs(self) -> int:
        inputs, outputs = self.shape[-2:]
        depthwise = self.groups > 1 and inputs == self.groups
        return inputs * outputs if depthwise else outputs
