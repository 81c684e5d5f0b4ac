"""A model some of whose synapses or neurons are ablated, as a function of masks with a gradient."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backend import compiled_function, value_and_product
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.recurrence import Member

LEVELS = ("synapse", "neuron", "channel", "input")


class MaskedModel:
    """A model with a mask on each of its units: 1 keeps a unit, 0 ablates it.

    An ablated unit has its *base* value instead of its own. A synapse with weight w contributes
    w · (base of its input); a neuron, channel or input has its base.

    Args:
        im: The model.
        logits: Name of the operation with the logits.
        level: The kind of units, from `LEVELS`. Synapses are those of weighted sums. Neurons
            and channels are those of weighted sums other than the logits, and the units of
            recurrent layers as others read them. Inputs are positions, with all their channels;
            for tokens, those of what is looked up.
        by_odds: Whether the target is the log-odds of its class, its logit minus the logarithm of
            the sum of the others' exponentials, instead of a logit.

    Raises:
        UnsupportedLayerError: if the level is "synapse" and a layer is recurrent, or nothing can
            be masked.

    Attributes:
        shapes: Name of a kernel or operation → shape of its mask, in topological order.
        bases: Names of the operations whose base values are needed.
    """

    def __init__(self, im: InstrumentedModel, logits: str, level: str, by_odds: bool) -> None:
        self._im = im
        self._target = logits
        self._level = level
        self._by_odds = by_odds
        self._order = im.graph.ancestors([logits])
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._masked: dict[str, str] = {}  # operation → name of its mask
        for operation in self._order:
            self._add(operation)
        if not self.shapes:
            raise UnsupportedLayerError(
                f"'{im.model.name}' has nothing to mask at level {level!r}. "
                f"The levels are {', '.join(LEVELS)}."
            )
        self.bases = tuple(
            dict.fromkeys(
                im[name].inputs[0] if level == "synapse" else name for name in self._masked
            )
        )
        self._gradients = compiled_function(self._effects)
        self._forward = compiled_function(self._logits)

    @property
    def sizes(self) -> list[int]:
        """Number of units in each mask."""
        return [int(np.prod(shape)) for shape in self.shapes.values()]

    def logits(self, x: Sequence[Any], masks: Sequence[Any], base: Mapping[str, Any]) -> np.ndarray:
        """Return the logits `(batch, …)` with masks of the shapes in `shapes`.

        Args:
            x: The inputs, tensors `(batch, …)`.
            masks: The masks, float32 tensors.
            base: Operation → base values `(1, …)`.
        """
        return ops.convert_to_numpy(self._forward(list(x), list(masks), dict(base)))

    def effects(
        self, x: Sequence[Any], masks: Sequence[Any], base: Mapping[str, Any], label: Any, sign: Any
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the logits, and the derivative of the target with respect to each mask."""
        logits, found = self._gradients(list(x), list(masks), dict(base), label, sign)
        return ops.convert_to_numpy(logits), [ops.convert_to_numpy(v) for v in found]

    def _effects(self, x: Any, masks: Any, base: Any, label: Any, sign: Any) -> tuple[Any, Any]:
        def cotangent(logits: Any) -> Any:
            flat = ops.reshape(logits, (ops.shape(logits)[0], -1))
            one = ops.one_hot(label, flat.shape[-1], dtype=logits.dtype)[None]
            if self._by_odds:
                found = one - ops.softmax(flat - 1e9 * one, axis=-1)
            else:
                found = ops.broadcast_to(one * sign, ops.shape(flat))
            return ops.reshape(found, ops.shape(logits))

        return value_and_product(lambda *m: self._logits(x, m, base), masks, cotangent)

    def _logits(self, x: Any, masks: Sequence[Any], base: Mapping[str, Any]) -> Any:
        mask = dict(zip(self.shapes, masks, strict=True))
        values: dict[str, Any] = dict(zip(self._im.input_operations, x, strict=True))
        through_time: dict[Any, dict[str, Any]] = {}
        for operation in self._order:
            name = operation.name
            inputs = [values[source] for source in operation.inputs]
            if name in values:
                value = values[name]
            elif isinstance(operation.params, Member):
                unrolled = operation.params.unrolled
                if unrolled not in through_time:
                    through_time[unrolled] = unrolled.run(*inputs)
                value = through_time[unrolled][operation.params.operation.name]
            elif name in self._masked and self._level == "synapse":
                usual = base[operation.inputs[0]]
                params = operation.params
                kernel = ops.cast(params.variable(), "float32") * mask[params.name]
                constant = operation.compute(usual)
                values[name] = params.apply(inputs[0] - usual, kernel) + constant
                continue
            else:
                value = operation.compute(*inputs)
            if name in self._masked and self._level != "synapse":
                here = ops.reshape(mask[name], self._spread(operation))
                value = base[name] + here * (value - base[name])
            values[name] = value
        return values[self._target]

    def _add(self, operation: Operation) -> None:
        """Add the mask of an operation, if it has one."""
        name, shape = operation.name, operation.shape
        if self._level == "input":
            tokens = any(o.kind == "lookup" for o in self._order)
            if operation.kind == "lookup" or not (operation.inputs or tokens):
                self._masked[name] = name
                self.shapes[name] = shape[:-1] if len(shape) > 1 else shape
            return
        if self._level == "synapse":
            if isinstance(operation.params, Member):
                raise UnsupportedLayerError(
                    f"Layer '{operation.layer}' is recurrent: its synapses are used at every time "
                    "step. Take level='neuron', 'channel' or 'input'."
                )
            if operation.kind == "weighted_sum" and not isinstance(operation.params, Lookup):
                self._masked[name] = operation.params.name
                self.shapes[operation.params.name] = operation.params.shape
            return
        is_unit = operation.kind == "weighted_sum" or isinstance(operation.params, Member)
        if is_unit and name != self._target:
            self._masked[name] = name
            self.shapes[name] = shape if self._level == "neuron" else shape[-1:]

    def _spread(self, operation: Operation) -> tuple[int, ...]:
        """Return the shape in which a mask broadcasts to an operation's values."""
        shape = operation.shape
        if self._level == "input" and len(shape) > 1:
            return (1, *shape[:-1], 1)
        if self._level == "channel":
            return (1,) * len(shape) + shape[-1:]
        return (1, *shape)
