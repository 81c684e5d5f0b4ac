"""The reference of amounts: the network's values for the profile's mean input.

Amounts are changes from a reference to a sample. The reference is one run of the network on the
mean input (for tokens: the mean embedding), so contributions at every cut add up to the change of
the target. The profile's means of inner neurons would not: the mean of a ReLU is not the ReLU of
a mean. On ResNet10 they missed a change of 11 by 3,800; one run misses it only by rounding.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.activations import check_finite
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.kinds import rescale
from nnslicer_tf.kinds.kind import aligned_mask
from nnslicer_tf.slicing._plan import REFERENCE, SLOPES, Plan
from nnslicer_tf.slicing.profile import Profile


class Reference:
    """Computes the reference values of operations as tensors of the backend."""

    def __init__(self, im: InstrumentedModel, profile: Profile, wanted: Iterable[str]) -> None:
        self._im = im
        self._wanted = tuple(wanted)
        order = im.graph.ancestors(self._wanted)
        self._masks = {o.name for o in order if o.kind == "mask"}
        self._lookups = {o.name for o in order if o.kind == "lookup"}
        means = (*im.input_operations, *self._lookups)
        self._means = {name: profile.means[name].astype(np.float32)[None] for name in means}
        self.needs = self._masks | (self._lookups if self._masks else set())
        self.needs |= {m for name in self._lookups if (m := im[name].mask) is not None}
        """Names of the operations whose values for the samples are needed."""

    def __call__(self, values: Mapping[str, Any], batch: Any) -> dict[str, Any]:
        """Return the reference values by name, `(batch, …)`, or `(1, …)` without padding."""

        def mean_of(name: str) -> Any:
            mean = ops.convert_to_tensor(self._means[name])
            return ops.broadcast_to(mean, (batch, *mean.shape[1:])) if self._masks else mean

        def change(name: str, value: Any) -> Any:
            if name in self._masks:  # the padding is that of the samples
                return values[name]
            if name not in self._lookups:
                return value
            mean, mask = mean_of(name), self._im[name].mask
            if not self._masks or mask is None:
                return mean
            here = aligned_mask(values[mask], len(mean.shape))
            return ops.where(here > 0.5, mean, values[name])

        inputs = [mean_of(name) for name in self._im.input_operations]
        reference = self._im.graph.run(inputs, self._wanted, change)
        return {name: reference[name] for name in self._wanted}


class AmountCapture:
    """Captures what a walk with amounts and exclusion reads of a batch."""

    def __init__(self, im: InstrumentedModel, profile: Profile, plan: Plan) -> None:
        assert plan.amounts is not None
        self._im = im
        self._captured = plan.captured
        self._slopes = plan.amounts.slopes
        self._reference = Reference(im, profile, plan.captured)
        self._needed = tuple({*plan.captured, *self._reference.needs})
        self._run = compiled_function(self._tensors)

    def __call__(self, batch: Any, of: Any, first: int) -> dict[str, np.ndarray]:
        """Return values, reference values and slopes by the plan's names, `(batch, …)` float32."""
        tensors = self._run([ops.convert_to_tensor(x) for x in arrays_of(batch)])
        values, reference, slopes = keras.tree.map_structure(ops.convert_to_numpy, tensors)
        check_finite(values, first)
        for name, array in reference.items():
            values[REFERENCE + name] = np.broadcast_to(array, values[name].shape)
        return values | {SLOPES + name: array for name, array in slopes.items()}

    def _tensors(self, x: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        values = self._im.compute(x, self._needed)
        reference = self._reference(values, ops.shape(x[0])[0])
        slopes = {}
        for name in self._slopes:
            operation, source = self._im[name], self._im[name].inputs[0]
            if isinstance(operation.params, Member):
                prefix = name.removesuffix(operation.params.operation.name)
                operation = operation.params.operation
                source = prefix + operation.inputs[0]
            value = values[source]
            usual = ops.broadcast_to(reference[source], ops.shape(value))
            slopes[name] = rescale.slopes(operation, value, usual)
        return {name: values[name] for name in self._captured}, reference, slopes
