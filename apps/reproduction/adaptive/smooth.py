"""`SmoothSlices`: slices at θ = 0 as tensors with a gradient, for attacks and for optimisation.

At θ = 0, a contribution is a product of signs, whose gradient is zero. Here each sign keeps its
value but has the gradient of tanh(k · v), where v is the number divided by its tensor's mean
magnitude: the straight-through estimator (Bengio et al., "Estimating or propagating gradients
through stochastic neurons", 2013). Slices are exact up to the rounding of Δ in float32; the
gradient is a direction for an attack, not a derivative. The cost is a few passes of the model.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.slicing._results import EachPart
from nnslicer_tf.slicing._zero_walk import CountWalk, applies
from nnslicer_tf.slicing.criterion import PREDICTED, Criterion, Outputs
from nnslicer_tf.slicing.slicer import Slicer

_SMALLEST = 1e-12


class SmoothSlices(CountWalk):
    """The contributions of synapses as a differentiable function of tensors.

    Args:
        slicer: Provides the model, the profile and the other settings; its θ is ignored.
        outputs: The neurons at which the slices start, as for `Slicer.slice`.
        kernels: Names of the kernels whose synapses are returned.
        steepness: Steepness k of the tanh, a number or a scalar tensor.

    Raises:
        InvalidArgumentError: if the model has operations without a rule at θ = 0, or the slicer's
            granularity is "channel".
    """

    def __init__(
        self,
        slicer: Slicer,
        outputs: Outputs | Criterion = PREDICTED,
        kernels: Sequence[str] = (),
        steepness: Any = 1.0,
    ) -> None:
        with tf.init_scope():  # the plan reads weights, also while an attack is traced
            plan = slicer.at_theta(0.0).plan(outputs)
        if any("float" not in tensor.dtype for tensor in slicer.im.functional.inputs):
            raise InvalidArgumentError(
                f"Smooth slices are functions of real inputs, but '{slicer.im.model.name}' takes "
                "integers. Pass the model of the layers after the conversion."
            )
        if not applies(slicer.im, plan, 1):
            raise InvalidArgumentError(
                "Smooth slices need rules at θ = 0 for all operations, and the granularity "
                f"'activation'. The slicer's is '{slicer.granularity}'."
            )
        for name in kernels:
            check_name("kernel", name, slicer.im.kernels)
        shapes = {name: slicer.im.kernels[name].shape for name in kernels}
        super().__init__(slicer.im, plan, EachPart(np.int32, shapes))
        self._steepness = steepness

    def __call__(self, x: Any) -> dict[str, Any]:
        """Return kernel name → contributions of its synapses, `(batch, *kernel shape)` float32.

        Args:
            x: Tensor `(batch, *input_shape)` float32.
        """
        return self.walk(x)[1]

    def _sign_of_delta(self, name: str, value: Any) -> Any:
        exact = super()._sign_of_delta(name, value)
        return self._straight_through(value - self._means[name].nearest, exact)

    def _sign(self, contribution: Any) -> Any:
        return self._straight_through(contribution, super()._sign(contribution))

    def _straight_through(self, values: Any, signs: Any) -> Any:
        """Return `signs` with the gradient of tanh."""
        scale = ops.stop_gradient(ops.mean(ops.abs(values))) + _SMALLEST
        soft = ops.tanh(self._steepness * values / scale)
        return soft + ops.stop_gradient(signs - soft)
