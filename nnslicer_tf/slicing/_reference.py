"""The reference of amounts: the network's values for the profile's mean input.

Amounts are changes from a reference to a sample. The reference is one run of the network on the
mean input (for tokens: the mean embedding), so contributions at every cut add up to the change of
the target. The profile's means of inner neurons would not: the mean of a ReLU is not the ReLU of
a mean. On ResNet10 they missed a change of 11 by 3,800; one run misses it only by rounding.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.kinds.kind import aligned_mask
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
