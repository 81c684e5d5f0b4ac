"""Contributions as amounts: the walk of a slice at θ = 0 with numbers in place of signs.

Each neuron passes its contribution back in proportion to its inputs' local values, so that
large local values count for more than small ones. These are the contributions of DeepLIFT's
rescale rule (Shrikumar et al., ICML 2017, sections 3.2 and 3.5.1) with a profile's means as the
reference. A product is halved between its factors at the midpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.kinds.kind import aligned_mask
from nnslicer_tf.kinds.rescale import midpoint
from nnslicer_tf.kinds.weighted_sum import sample_gradients
from nnslicer_tf.slicing import Profile

Names = Sequence[str]


class Amounts:
    """Computes contributions of neurons and synapses to a logit, in the logit's own unit.

    They are of the neurons of operations `wanted` and the synapses of `kernels`, in a classifier
    without recurrent layers.
    """

    def __init__(
        self, im: InstrumentedModel, profile: Profile, wanted: Names = (), kernels: Names = ()
    ) -> None:
        self._im = im
        self._wanted = tuple(wanted)
        sums = (o for o in im.operations if o.kind == "weighted_sum")
        self._sums = [o for o in sums if o.params.name in kernels]
        ancestors = im.graph.ancestors([im.logit_operation])
        self._order = [o for o in reversed(ancestors) if o.name not in im.input_operations]
        self._shapes = {o.name: o.shape for o in im.operations}
        self._means = {name: m.astype(np.float32) for name, m in profile.means.items()}
        self._run = compiled_function(self._walk)

    def __call__(
        self, x: np.ndarray, classes: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return contributions: neurons `(samples, *shape)`, synapses `(samples, *kernel)`."""
        classes = ops.convert_to_tensor(np.asarray(classes, np.int32))
        found, by_tap = self._run(ops.convert_to_tensor(x.astype(np.float32)), classes)
        kernels = {name: self._im.kernels[name] for name in by_tap}
        slopes = {n: k.to_kernel(ops.convert_to_numpy(by_tap[n])) for n, k in kernels.items()}
        neurons = {name: ops.convert_to_numpy(value) for name, value in found.items()}
        return neurons, {name: slopes[name] * kernel.kernel() for name, kernel in kernels.items()}

    def _walk(self, x: Any, classes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        values = self._im.compute(x, [o.name for o in self._im.operations])
        logits = self._im.logit_operation
        seed = {logits: ops.one_hot(classes, self._im[logits].size)}

        def rule(operation: Operation, multipliers: Any) -> Sequence[Any]:
            inputs = [values[name] for name in operation.inputs]
            usual = [self._usual(name, values) for name in operation.inputs]
            return (kind_of(operation).rescale or midpoint)(operation, inputs, usual, multipliers)

        found = propagate(self._order, seed, rule, self._shapes)

        def change(name: str) -> Any:
            return values[name] - self._usual(name, values)

        neurons = {n: found.get(n, ops.zeros_like(values[n])) * change(n) for n in self._wanted}
        sums = [o for o in self._sums if o.name in found]
        slopes = [sample_gradients(o, change(o.inputs[0]), found[o.name]) for o in sums]
        return neurons, {o.params.name: one for o, one in zip(sums, slopes, strict=True)}

    def _usual(self, name: str, values: Mapping[str, Any]) -> Any:
        """Return the means of an operation; at padding, which has no neurons, its own values."""
        value = values[name]
        operation = self._im[name]
        if operation.kind == "mask":
            return value
        mean = ops.broadcast_to(ops.convert_to_tensor(self._means[name]), ops.shape(value))
        if operation.mask is None:
            return mean
        here = aligned_mask(values[operation.mask], len(operation.shape) + 1)
        return ops.where(here > 0.5, mean, value)
