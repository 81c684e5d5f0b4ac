"""Planted faults: channels with changed weights, and the rank that methods give them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel, Operation, Synapses, copy_model
from reproduction.debugging.settings import KINDS

OTHER_KINDS = ("zero", "copy", "bias", "swap")
"""More kinds: all weights are zero, or those of the next channel, or the bias moves by the
strength, in standard deviations of the kernel's weights × √(weights), or weights and bias are
swapped with those of the next channel."""

STRENGTHS = (1.0, 2.0, 4.0)
"""For noise and large values: in standard deviations of the kernel's weights, times 2. For scaling:
the factor is 1 + strength."""

_SHARE = 0.1


@dataclass(frozen=True)
class Fault:
    """A fault in a channel of an operation: its kind, of `KINDS`, strength and random seed."""

    operation: str
    channel: int
    kind: str
    strength: float
    seed: int


class FaultyModel:
    """A copy of a model, wrapped in `im`, in which one fault at a time is planted."""

    def __init__(self, model: keras.Model) -> None:
        self.im = InstrumentedModel(copy_model(model))
        kernels = self.im.kernels.values()
        variables = [v for k in kernels for v in (k.variable(), k.bias()) if v is not None]
        self._whole = [(variable, keras.ops.copy(variable.value)) for variable in variables]

    @property
    def hidden(self) -> list[Operation]:
        """The operations with a kernel, except for the last one, the logits."""
        found = (o for o in self.im.operations if isinstance(o.params, Synapses))
        return [o for o in found if o.name != self.im.logit_operation]

    def draw(
        self,
        rng: np.random.Generator,
        strengths: Sequence[float] = STRENGTHS,
        kinds: Sequence[str] = KINDS,
    ) -> Iterator[Fault]:
        """Yield random faults: first a layer, then a channel, a kind and a strength."""
        while True:
            operation = self.hidden[rng.integers(len(self.hidden))]
            channel, kind = int(rng.integers(operation.shape[-1])), kinds[rng.integers(len(kinds))]
            strength = strengths[int(rng.integers(len(strengths)))]
            yield Fault(operation.name, channel, kind, strength, int(rng.integers(1 << 31)))

    def plant(self, fault: Fault) -> None:
        """Plant a fault in the model's weights, replacing any earlier one."""
        self.heal()
        kernel: Synapses = self.im[fault.operation].params
        weights = kernel.matrix().copy()
        own, spread = weights[..., fault.channel], 2 * fault.strength * weights.std()
        rng = np.random.default_rng(fault.seed)
        if fault.kind == "noise":
            changed = own + spread * rng.normal(size=own.shape)
        elif fault.kind == "scale":
            changed = own * (1 + fault.strength)
        elif fault.kind == "negate":
            changed = -fault.strength * own
        elif fault.kind in OTHER_KINDS:
            changed = 0 * own if fault.kind == "zero" else own
            if fault.kind == "copy":
                changed = weights[..., (fault.channel + 1) % weights.shape[-1]]
        else:
            large = spread * 3 * rng.choice([-1.0, 1.0], own.shape)
            changed = np.where(rng.random(own.shape) < _SHARE, large, own)
        weights[..., fault.channel] = changed
        bias = kernel.read_bias()
        if fault.kind == "swap":
            pair = self.culprits(fault)
            weights[..., pair] = kernel.matrix()[..., pair[::-1]]
            if bias is not None:
                bias[pair] = bias[pair[::-1]]
                kernel.bias().assign(bias)
        kernel.variable().assign(kernel.to_kernel(weights))
        if fault.kind == "bias" and bias is not None:
            size = fault.strength * kernel.matrix().std() * np.sqrt(own.size)
            bias[fault.channel] += size * rng.choice([-1.0, 1.0])
            kernel.bias().assign(bias)

    def culprits(self, fault: Fault) -> list[int]:
        """Return the channels that a fault changes."""
        other = (fault.channel + 1) % self.im[fault.operation].shape[-1]
        return [fault.channel, other] if fault.kind == "swap" else [fault.channel]

    def heal(self) -> None:
        """Restore the model's original weights."""
        for variable, value in self._whole:
            variable.assign(value)


def rank(scores: dict[str, np.ndarray], operation: str, channel: int) -> float:
    """Return the rank of a channel among all, from 1; equal scores share their mean rank."""
    every = np.concatenate([values.ravel() for values in scores.values()])
    own = scores[operation][channel]
    return float((every > own).sum() + ((every == own).sum() + 1) / 2)
