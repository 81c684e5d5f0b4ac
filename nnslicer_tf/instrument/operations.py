"""Operations: the computations of Keras layers, in the terms that the analyses use.

A layer has one or more `Step`s (a computation and its kind). Wrapping a model turns each step of
each call into an `Operation`, a node of the data-flow graph. No Keras layer class is needed here.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._environment import keras
from nnslicer_tf.instrument.layout import KernelLayout

KINDS = (
    *("input", "weighted_sum", "average", "maximum", "rectify", "elementwise", "scale"),
    *("add", "subtract", "multiply", "maximum_merge", "minimum_merge", "routing", "product_sum"),
    *("softmax", "lookup", "mask", "recurrence", "zeroed"),
)


@dataclass(frozen=True, eq=False)
class Synapses(KernelLayout):
    """The kernel of a weighted sum, and the input that each weight multiplies.

    Every dense layer and convolution is described by a table of *taps*: at output position p, tap t
    multiplies the input position `taps[p, t]`, or nothing if that is -1 (padding).

    Attributes:
        variable: Returns the layer's kernel, a Keras variable.
        bias: Returns the layer's bias `(outputs,)`, a Keras variable, or None.
        apply: Maps an input tensor and a kernel to the weighted sum without bias, linear in
            both, in the dtype of the input.
        build_taps: Returns the taps `(output positions, taps)` int32.
        is_constant: Whether the weights are constants, which are no synapses of the model.
        by_rows: The same as `apply` with a kernel for each sample, `(samples, *shape)`; None if
            there is no faster way than one after another.
    """

    variable: Callable[[], Any]
    bias: Callable[[], Any]
    apply: Callable[[Any, Any], Any]
    build_taps: Callable[[], np.ndarray]
    is_constant: bool = field(default=False, kw_only=True)
    by_rows: Callable[[Any, Any], Any] | None = field(default=None, kw_only=True)

    @cached_property
    def taps(self) -> np.ndarray:
        """Input position of each tap, `(output positions, taps)` int32, -1 for padding."""
        return self.build_taps()

    @property
    def layout(self) -> KernelLayout:
        """Only the layout, which can be pickled, unlike this object."""
        own = (self.name, self.shape, self.groups, self.axes)
        return KernelLayout(*own, order=self.order, summed=self.summed)

    def kernel(self) -> np.ndarray:
        """Return the current kernel as a float32 array of `shape`."""
        return keras.ops.convert_to_numpy(self.variable()).astype(np.float32)

    def matrix(self) -> np.ndarray:
        """Return the current weights as `(taps, inputs per group, outputs)` float32."""
        return self.from_kernel(self.kernel())

    def read_bias(self) -> np.ndarray | None:
        """Return the current bias `(outputs,)`, None if there is none."""
        bias = self.bias()
        return None if bias is None else keras.ops.convert_to_numpy(bias)


@dataclass(frozen=True, eq=False)
class Lookup(Synapses):
    """An embedding table `(tokens, channels)`: a kernel whose rows are looked up."""


@dataclass(frozen=True, eq=False)
class Pooling:
    """The windows of a pooling operation; `taps` as in `Synapses`, the same for all channels."""

    build_taps: Callable[[], np.ndarray]

    @cached_property
    def taps(self) -> np.ndarray:
        """Input position of each tap, `(output positions, taps)` int32, -1 for padding."""
        return self.build_taps()


@dataclass(frozen=True, eq=False)
class Elementwise:
    """An activation function.

    Attributes:
        function: Its name in Keras, such as "relu" or "softmax".
        knots: Where a continuous piecewise-linear function changes its slope; None for others.
        mixes: Whether an output depends on other inputs, as in a softmax; None if not known: the
            function is then probed when a model is wrapped.
    """

    function: str
    knots: tuple[float, ...] | None = None
    mixes: bool | None = None


@dataclass(frozen=True, eq=False)
class Softmax(Elementwise):
    """A softmax over `axes`, counted as in Keras: with the batch axis, or from the end."""

    mixes: bool | None = True
    axes: tuple[int, ...] = (-1,)


@dataclass(frozen=True, eq=False)
class ProductSum:
    """A sum of products of two activations; each axis is in both, or in one and the output."""

    equation: str  # that of `keras.ops.einsum`, batch axis first, such as "bqhe,bkhe->bhqk"


@dataclass(frozen=True, eq=False)
class Affine:
    """A scale x · factor + offset; `read` returns both, float64, broadcastable to the shape."""

    read: Callable[[], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Statistics:
    """A scale by the sample's own statistics: y = u · (S + ε)^(−1/2) · γ + β.

    u is x, or x minus its mean; S is the mean, or the sum, of u².
    """

    shape: tuple[int, ...]  # to which x is reshaped first, without the batch axis
    axes: tuple[int, ...]  # of the means and sums, with the batch axis not counted
    centred: bool  # whether the mean is subtracted
    averaged: bool  # whether S is a mean
    epsilon: float
    gamma: Callable[[], Any]  # returns γ, which broadcasts to `shape`


@dataclass(frozen=True)
class MaskOf:
    """The mask that a layer receives with the input of this index, as a source of a step."""

    input: int


@dataclass(frozen=True)
class PaddingOf:
    """The padding mask of the input of this index, as a source or mask of a step."""

    input: int


NO_MASK = PaddingOf(-1)
"""Mask of a step all of whose elements are neurons, whatever its shape."""

Source = int | str | MaskOf | PaddingOf


@dataclass(frozen=True, eq=False)
class Step:
    """One operation of a layer.

    Attributes:
        kind: One of `KINDS`, or a kind that was registered with its own rule.
        compute: Maps the step's input tensors to its output tensor, written with `keras.ops`; it
            keeps the dtype of its inputs, so that an analysis can run it in float64.
        params: `Synapses`, `Pooling`, `Elementwise` or `Affine`, or None.
        suffix: Appended to the layer's name; empty for the layer's last step.
        sources: Inputs of the step: an int is the index of an input of the layer, a str the
            suffix of an earlier step, `MaskOf(i)` the mask that the layer receives with input i,
            `PaddingOf(i)` that input's padding mask. By default, the first step takes all inputs
            of the layer, and every other step the result of the previous one.
        shape: Shape of the output without the batch axis, if not that of the layer's.
        mask: Source of the mask of the step's own neurons, as in `sources`. By default, the mask
            of the layer's output if it fits the leading axes of the step's shape.
        ends: Whether it gives the output of a layer inside this one, which coverage counts.
    """

    kind: str
    compute: Callable[..., Any]
    params: Any = None
    suffix: str = ""
    sources: Sequence[Source] | None = None
    shape: tuple[int, ...] | None = None
    mask: Source | None = None
    ends: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """A node of the data-flow graph of a model.

    Attributes:
        name: Unique name: the layer's name for a layer's final output, `:pre` appended
            for the value before a fused activation, `outer/` prepended inside a nested
            model, `#k` appended for the k-th reuse of a shared layer.
        kind: One of `KINDS`, or a registered kind.
        layer: Name of the layer, without `:pre` and `#k`.
        inputs: Names of the operations whose outputs it takes.
        input_shapes: Their shapes without the batch axis.
        shape: Shape of its output without the batch axis.
        params: `Synapses`, `Pooling`, `Elementwise` or `Affine`, or None; for a mask that hides
            positions from each other in every sample, as a causal one does, the pairs of
            positions that it leaves, a bool array.
        compute: Maps input tensors (batch, …) to the output tensor (batch, …), of their dtype.
        keras_layer: The Keras layer or operation to which it belongs.
        mask: Name of the operation of kind "mask" whose value says which elements are neurons:
            1, or 0 for padding. Its shape is that of the leading axes, and may have axes of
            size 1. None if all elements are neurons.
        heads: How its elements belong to heads of attention (`instrument.heads.Heads`), or None.
        ends: Whether it gives the output of a layer, also of one inside a distributed model.
    """

    name: str
    kind: str
    layer: str
    inputs: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    params: Any
    compute: Callable[..., Any]
    keras_layer: Any
    mask: str | None = None
    heads: Any = None
    ends: bool = False

    @property
    def part(self) -> str:
        """What follows the layer's name and the number of its reuse: "" for its final output."""
        return re.sub(r"^#\d+", "", self.name.removeprefix(self.layer))

    @property
    def is_reuse(self) -> bool:
        """Whether it belongs to a further call of a layer that is called several times."""
        return self.name.removeprefix(self.layer) != self.part

    @property
    def size(self) -> int:
        """Number of neurons at `"activation"` granularity."""
        return int(np.prod(self.shape))

    @property
    def kernels(self) -> tuple[Synapses, ...]:
        """The kernels of `params`, empty if there are none."""
        if isinstance(self.params, Synapses):
            return () if self.params.is_constant else (self.params,)
        return tuple(getattr(self.params, "kernels", ()))

    @property
    def synapses(self) -> int:
        """Number of synapses (weights of its kernels), 0 without a kernel."""
        return sum(kernel.size for kernel in self.kernels)

    def __repr__(self) -> str:
        return f"Operation({self.name!r}, {self.kind}, shape={self.shape}, inputs={self.inputs})"
