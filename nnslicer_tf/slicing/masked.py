"""A model with some synapses or neurons ablated, as a differentiable function of masks."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, value_and_product
from nnslicer_tf.instrument.operations import Lookup, Operation
from nnslicer_tf.instrument.recurrence import (
    SEQUENCE,
    Gate,
    Member,
    Unrolled,
    before,
    split_inputs,
)

LEVELS = ("synapse", "neuron", "channel", "input")

# The score of a class is its logit less this share of the other classes' mean logit, weighted by a
# softmax of logits in units of their spread. The log-odds (1, weights by the softmax of the logits)
# see only the nearest rival, and lose answers that the logit alone keeps; the logit alone gives any
# class that is asked for.
_RIVALS = 0.75


class MaskedUnits:
    """A model with a mask on each of its units: 1 keeps a unit, 0 replaces its value by its base.

    Synapses are those of weighted sums; with weight w, an ablated one contributes w · (base of its
    input), in recurrent layers at every step. Neurons and channels are those of weighted sums, but
    not the logits, and of recurrent layers. Inputs are positions, with all their channels; for
    tokens, positions of the embedding. UnsupportedLayerError is raised if there is nothing to mask.
    """

    def __init__(self, im: InstrumentedModel, logits: str, level: str, rivals: bool) -> None:
        self._im = im
        self._target = logits
        self._by_synapse = level == "synapse"
        # Whether the score of a class depends on its rivals, too; else it is the logit.
        self._by_rivals = rivals
        self._order = im.graph.ancestors([logits])
        # Kernel or operation → shape of its mask, in topological order.
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._masked: dict[str, str] = {}  # operation → name of its mask
        self._spread: dict[str, tuple[int, ...]] = {}  # operation → shape that fits its values
        read: dict[str, None] = {}  # the operations whose base values are needed
        has_tokens = any(o.kind == "lookup" for o in self._order)
        for operation in self._order:
            name, shape, params = operation.name, operation.shape, operation.params
            is_unit = operation.kind == "weighted_sum" or isinstance(params, Member)
            if level == "synapse" and isinstance(params, Member):
                cell = params.unrolled.cell
                self.shapes |= {kernel.name: kernel.shape for o in cell for kernel in o.kernels}
                sequence, initial, _ = split_inputs(operation.inputs, params.unrolled.masked)
                start = name.removesuffix(params.operation.name)
                read |= dict.fromkeys((sequence, *initial, *(start + o.name for o in cell)))
            elif level == "synapse" and is_unit and not isinstance(params, Lookup):
                self._masked[name] = params.name
                self.shapes[params.name] = params.shape
            elif level == "input" and (
                operation.kind == "lookup" or not (operation.inputs or has_tokens)
            ):
                self._masked[name] = name
                self.shapes[name] = shape[:-1] if len(shape) > 1 else shape
                self._spread[name] = (1, *shape[:-1], 1) if len(shape) > 1 else (1, *shape)
            elif level in ("neuron", "channel") and is_unit and name != logits:
                self._masked[name] = name
                self.shapes[name] = shape if level == "neuron" else shape[-1:]
                here = shape if level == "neuron" else (*(1,) * (len(shape) - 1), shape[-1])
                self._spread[name] = (1, *here)
        if not self.shapes:
            raise UnsupportedLayerError(
                f"'{im.model.name}' has nothing to mask at level {level!r}. "
                f"The levels are {', '.join(LEVELS)}."
            )
        self._sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        self.units = sum(self._sizes)
        read |= {im[name].inputs[0] if self._by_synapse else name: None for name in self._masked}
        self.bases = tuple(read)
        self._forward = compiled_function(self._logits)
        self._gradients = compiled_function(self._effects)
        self._constants = compiled_function(
            lambda base: {n: im[n].compute(base[im[n].inputs[0]]) for n in self._masked}
        )

    def base(self, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return base values for `logits` and `effects` from those of `bases`, `(1, *shape)`."""
        base = {name: ops.convert_to_tensor(values[name], "float32") for name in self.bases}
        # What the bases contribute to the sums does not depend on masks.
        return {"": base, **self._constants(base)} if self._by_synapse else base

    def logits(self, x: Sequence[Any], mask: np.ndarray, base: Mapping[str, Any]) -> np.ndarray:
        """Return the logits `(batch, …)`; `mask` is `(units,)`, over all `shapes` in C order."""
        tensors = [ops.convert_to_tensor(value) for value in x]
        mask = ops.convert_to_tensor(mask, "float32")
        return ops.convert_to_numpy(self._forward(mask, tensors, dict(base)))

    def effects(
        self, x: Sequence[Any], mask: np.ndarray, base: Mapping[str, Any], neuron: int, sign: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits, and the derivative of the target with respect to the mask.

        `neuron` is the index of the target's logit; `sign` is −1 if a smaller logit speaks for it.
        """
        tensors = [ops.convert_to_tensor(value) for value in x]
        target = ops.convert_to_tensor(neuron, "int32"), ops.convert_to_tensor(sign, "float32")
        mask = ops.convert_to_tensor(mask, "float32")
        logits, effects = self._gradients(mask, tensors, dict(base), *target)
        return ops.convert_to_numpy(logits), ops.convert_to_numpy(effects)

    def _effects(self, mask: Any, x: Any, base: Any, neuron: Any, sign: Any) -> tuple[Any, Any]:
        def cotangent(logits: Any) -> Any:
            size = self._im[self._target].size  # not of the tensor, which may have free axes
            flat = ops.reshape(logits, (-1, size))
            one = ops.one_hot(neuron, size, dtype=logits.dtype)[None]
            if self._by_rivals:
                spread = ops.std(flat, axis=-1, keepdims=True) + 1e-6
                vector = one - _RIVALS * ops.softmax(flat / spread - 1e9 * one, axis=-1)
            else:
                vector = ops.broadcast_to(one * sign, ops.shape(flat))
            return ops.reshape(vector, ops.shape(logits))

        logits, (effects,) = value_and_product(
            lambda m: self._logits(m, x, base), [mask], cotangent
        )
        return logits, effects

    def _logits(self, mask: Any, x: Sequence[Any], base: Mapping[str, Any]) -> Any:
        masks = {}
        for (name, shape), size, end in zip(
            self.shapes.items(), self._sizes, np.cumsum(self._sizes).tolist(), strict=True
        ):
            masks[name] = ops.reshape(mask[end - size : end], shape)
        values: dict[str, Any] = dict(zip(self._im.input_operations, x, strict=True))
        through_time: dict[Any, dict[str, Any]] = {}
        for operation in self._order:
            name, params = operation.name, operation.params
            inputs = [values[source] for source in operation.inputs]
            if name in self._masked and self._by_synapse:
                kernel = ops.cast(params.variable(), "float32") * masks[params.name]
                change = inputs[0] - base[""][operation.inputs[0]]
                values[name] = params.apply(change, kernel) + base[name]
                continue
            if name in values:
                value = values[name]
            elif isinstance(params, Member):
                if params.unrolled not in through_time:
                    run = params.unrolled.run
                    if self._by_synapse:
                        run = partial(self._run_masked, operation, masks, base[""])
                    else:
                        run = partial(run, **self._inside(params.unrolled, masks, base))
                    through_time[params.unrolled] = run(*inputs)
                value = through_time[params.unrolled][params.operation.name]
            else:
                value = operation.compute(*inputs)
            if name in self._masked and not isinstance(params, Member):
                here = ops.reshape(masks[name], self._spread[name])
                value = base[name] + here * (value - base[name])
            values[name] = value
        return values[self._target]

    def _inside(
        self, unrolled: Unrolled, masks: Mapping[str, Any], base: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return arguments of `run`: they mask a layer's units before its next step reads them."""
        factors, added = {}, {}
        for name in self._masked:
            params = self._im[name].params
            if isinstance(params, Member) and params.unrolled is unrolled:
                here = ops.reshape(masks[name], self._spread[name])
                here = ops.broadcast_to(here, (1, *self._im[name].shape))
                factors[params.operation.name] = here
                added[params.operation.name] = (1 - here) * base[name]
        return {"factors": factors, "added": added}

    def _run_masked(
        self, operation: Operation, masks: Mapping[str, Any], base: Mapping[str, Any], *inputs: Any
    ) -> dict[str, Any]:
        """Return the values of a recurrent layer, with some of its synapses masked."""
        unrolled = operation.params.unrolled
        sequence, initial, _ = split_inputs(operation.inputs, unrolled.masked)
        # What the gates read when nothing is active, (time, …).
        start = operation.name.removesuffix(operation.params.operation.name)
        usual = {o.name: base[start + o.name][0] for o in unrolled.cell}
        usual[SEQUENCE] = unrolled.in_order(base[sequence])[0]
        for place, state in enumerate(unrolled.states):
            first = base[initial[place]] if initial else 0 * usual[state][:1]
            usual[before(state)] = ops.concatenate([first, usual[state][:-1]])

        def sums() -> dict[str, Any]:
            gates = [o for o in unrolled.cell if isinstance(o.params, Gate)]
            return {
                gate.name: sum(
                    weights.apply(usual[source])
                    for weights, source in zip(gate.params.weights, gate.inputs, strict=True)
                )
                for gate in gates
            }

        # An ablated synapse contributes what it does to the usual sum.
        whole = sums()
        variables = {k.name: k.variable() for o in unrolled.cell for k in o.kernels}
        masked = [(v, v * ops.cast(masks[name], v.dtype)) for name, v in variables.items()]
        with keras.StatelessScope(masked):
            added = {name: (whole[name] - value)[None] for name, value in sums().items()}
            return unrolled.run(*inputs, added=added)
