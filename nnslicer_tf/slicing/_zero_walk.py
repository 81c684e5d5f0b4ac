"""The backward walk at θ = 0 as tensor operations of the backend, on a GPU if there is one.

Because nothing is excluded, sign(CONTRIB · Δy · w · Δx) factorises: each kind's `at_zero` rule is
a product of signs and a vector-Jacobian product. All counts are integers, which float32
represents exactly up to 2²⁴; `counts_are_exact` checks that a plan stays below this. Amounts are
multipliers times changes, by the kinds' `rescale` rules.

The walk costs about two more forward passes, and a few times the memory of a forward pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.config import backend

from nnslicer_tf.engine import Job
from nnslicer_tf.instrument import InstrumentedModel, Operation, Synapses
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.kinds import Node, aligned_mask, kind_of
from nnslicer_tf.kinds.recurrence import unwind_at_zero, unwind_multipliers
from nnslicer_tf.kinds.rescale import midpoint
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._reference import Reference
from nnslicer_tf.slicing._results import Collector, Contributions
from nnslicer_tf.slicing.profile import Profile

_EXACT = 1 << 24


def applies(im: InstrumentedModel, plan: Plan, batch: int) -> bool:
    """Return whether this walk can run a plan: θ = 0, rules for all kinds, exact sums."""
    if plan.theta > 0 or plan.contribution == "amount":
        return plan.theta == 0
    kinds = [node.kind for node in plan.expanded]
    known = all(kind.at_zero is not None or kind.through_time for kind in kinds) and all(
        kind.kernels_at_zero is not None and kind.samples_at_zero is not None
        for kind in kinds
        if kind.synapse_rule is not None
    )
    return plan.granularity == "activation" and known and counts_are_exact(im, plan, batch)


def counts_are_exact(im: InstrumentedModel, plan: Plan, batch: int) -> bool:
    """Return whether no contribution, summed over a batch, can reach 2²⁴.

    An operation with signs adds at most 1 to an input neuron for each of its outputs; routing
    adds whole contributions, once for each output that a neuron is moved to. A synapse gets
    at most 1 for each output position.
    """
    largest = dict.fromkeys((plan.logits, *plan.start.neurons), 1)
    for node in plan.expanded:
        if node.members:  # each neuron of a cell adds at most 1 to every value that it reads
            cell = sum(im[name].size for name in node.members)
            most = cell + max(largest.get(name, 0) for name in node.members)
            largest.update(dict.fromkeys(node.members, most))
            largest.update({name: largest.get(name, 0) + cell for name in node.inputs})
            continue
        operation = im[node.name]
        for source, shape in zip(operation.inputs, operation.input_shapes, strict=True):
            repeats = -(-operation.size // int(np.prod(shape)))
            given = operation.size
            if node.kind.move is not None or plan.passes(node.kind):
                given = largest.get(node.name, 0) * repeats
            elif node.kind.reach == "element":
                given = repeats
            largest[source] = largest.get(source, 0) + given
    return max(largest.values()) * batch < _EXACT


class _BackendWalk(Job):
    """A job that runs a compiled walk on samples.

    Args:
        im: The model.
        plan: The walk.
        collector: What becomes of the contributions of a batch.
    """

    def __init__(self, im: InstrumentedModel, plan: Plan, collector: Collector) -> None:
        self.captured = im.input_operations
        self.collector = collector
        self._im = im
        self._plan = plan
        self._order: list[Any] = [n if n.members else im[n.name] for n in plan.expanded]
        self._compiled = compiled_function(self._outputs)
        self._traced = False

    @property
    def compiles_first(self) -> bool:
        """Whether the backend has not traced the walk yet."""
        return not self._traced

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Any:
        """Return the result for a batch, given the values of the input operations."""
        found = self._compiled([ops.convert_to_tensor(x) for x in captured.values()])
        self._traced = True
        neurons, synapses, logits = keras.tree.map_structure(_host, found)
        if self.collector.reduce is None:
            kernels = self._plan.kernels
            synapses = {
                name: values.reshape(len(values), *kernels[name].shape)
                for name, values in synapses.items()
            }
            return self.collector.collect(Contributions(neurons, synapses), logits)
        return self.collector.collect(Contributions(neurons, {}), logits, synapses)

    def contributions(
        self, x: Any, on_sum: Callable[..., None], on_gates: Callable[[str, Any], None]
    ) -> tuple[dict[str, Any], Any]:
        """Walk a batch; return CONTRIB of the neurons (float32) and the logits.

        Args:
            x: The batch.
            on_sum: Called for each operation with synapses, with the arguments of its `at_zero`
                rule.
            on_gates: Called for each kernel of a recurrent layer, with its name and contributions
                `(batch, taps, inputs, outputs)`.
        """
        raise NotImplementedError

    def of_kernel(self, kernel: Synapses, contributions: Any) -> Any:
        """Return the contributions of a kernel's synapses, given what its rule returned."""
        return contributions

    def _outputs(self, x: Any) -> tuple[dict[str, Any], Any, Any]:
        """Return CONTRIB of neurons and synapses (or what they are reduced to), and the logits."""
        if self.collector.each:
            neurons, synapses, logits = self.each(x)
            if self.collector.reduce is not None:
                batch = ops.shape(logits)[0]
                kernels = self.collector.kernels.items()
                zeros = {n: ops.zeros((batch, *s)) for n, s in kernels if n not in synapses}
                return neurons, self.collector.reduce({**synapses, **zeros}), logits
            return neurons, synapses, logits
        synapses = {}

        def collect(operation: Operation, *given: Any) -> None:
            rule = kind_of(operation).kernels_at_zero
            assert rule is not None, operation.name  # ensured by `applies`
            found = rule(operation, *given)
            for kernel in operation.kernels:
                if kernel.name in found:
                    whole = self.of_kernel(kernel, found[kernel.name])[None]
                    _add(synapses, {kernel.name: whole})

        def collect_gates(name: str, contributions: Any) -> None:
            total = ops.sum(contributions, axis=0, keepdims=True)
            whole = self._plan.kernels[name].tensor_to_kernel(total)[0]
            _add(synapses, {name: self.of_kernel(self._im.kernels[name], whole)[None]})

        neurons, logits = self.contributions(x, collect, collect_gates)
        sums = {name: ops.sum(c, axis=0, keepdims=True) for name, c in neurons.items()}
        return sums, synapses, logits

    def each(self, x: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Return CONTRIB of each sample's neurons and synapses, of their shapes, and logits."""
        synapses: dict[str, Any] = {}
        wanted = self.collector.kernels

        def collect(operation: Operation, *given: Any) -> None:
            kept = [kernel for kernel in operation.kernels if kernel.name in wanted]
            if not kept:
                return
            rule = kind_of(operation).samples_at_zero
            assert rule is not None, operation.name  # ensured by `applies`
            found = rule(operation, *given)
            for kernel in kept:
                # A kernel may be used transposed here.
                layout = self._plan.kernels[kernel.name]
                matrices = found[kernel.name]
                if kernel.axes != layout.axes:
                    matrices = ops.swapaxes(matrices, -1, -2)
                whole = self.of_kernel(kernel, layout.tensor_to_kernel(matrices))
                _add(synapses, {kernel.name: whole})

        def collect_gates(name: str, contributions: Any) -> None:
            if name in wanted:
                whole = self._plan.kernels[name].tensor_to_kernel(contributions)
                _add(synapses, {name: self.of_kernel(self._im.kernels[name], whole)})

        neurons, logits = self.contributions(x, collect, collect_gates)
        kept = {name: c for name, c in neurons.items() if name in self.collector.operations}
        return kept, synapses, logits

    def _seed(self, logits: Any) -> dict[str, Any]:
        if self._plan.start.predicted:
            return {self._plan.logits: ops.one_hot(ops.argmax(logits, axis=-1), logits.shape[-1])}
        one = self._plan.seed(np.zeros((1, *logits.shape[1:]), np.float32))
        batch = ops.shape(logits)[0]
        return {
            name: ops.broadcast_to(seed.astype(np.float32), (batch, *seed.shape[1:]))
            for name, seed in one.items()
        }

    def _present(self, values: Mapping[str, Any], name: str, tensor: Any) -> Any:
        """Set padding, which has no neurons, to 0."""
        operation = self._im[name]
        if operation.mask is None or tensor is None:
            return tensor
        rank = len(operation.shape) + 1
        mask = aligned_mask(values[operation.mask], rank, len(tensor.shape) - rank)
        return ops.where(mask > 0.5, tensor, ops.zeros_like(tensor))


class CountWalk(_BackendWalk):
    """The walk with counts: sums of signs."""

    def __init__(self, im: InstrumentedModel, plan: Plan, collector: Collector) -> None:
        super().__init__(im, plan, collector)
        self._means = {name: SplitMean(plan.nodes[name].mean) for name in plan.captured}
        factors = {name for n in plan.nodes.values() if n.kind.multiplies for name in n.inputs}
        factors |= {name for n in plan.expanded if n.members for name in (*n.inputs, *n.members)}
        factors &= set(plan.captured) if plan.product == "midpoint" else set()
        self._opposites = {name: SplitMean(-plan.nodes[name].mean) for name in factors}

    def contributions(
        self, x: Any, on_sum: Callable[..., None], on_gates: Callable[[str, Any], None]
    ) -> tuple[dict[str, Any], Any]:
        values = self._im.compute(x, self._plan.captured)

        def delta_sign(name: str) -> Any:
            return self._present(values, name, self._sign_of_delta(name, values[name]))

        def factor_sign(name: str) -> Any:
            """Return the signs of an operation's factor in products."""
            value = values[name]
            if self._plan.product == "value":
                return ops.sign(value)
            middle = self._opposites[name].sign_of_delta(value)
            mask = self._im[name].mask
            if mask is None:
                return middle
            here = aligned_mask(values[mask], len(self._im[name].shape) + 1)
            return ops.where(here > 0.5, middle, ops.sign(value))

        def expand_through_time(node: Node, given: Mapping[str, Any]) -> tuple[Any, Any]:
            unrolled = self._im[node.members[0]].params.unrolled
            found = unwind_at_zero(
                unrolled,
                node.table.prefix,
                node.inputs,
                given,
                values,
                delta_sign,
                factor_sign,
                self._plan.passes,
            )
            for name, contributions in found.synapses.items():
                on_gates(name, contributions)
            return found.inputs, found.members

        def expand(operation: Any, contribution: Any) -> Any:
            if isinstance(operation, Node):
                parts, totals = expand_through_time(operation, contribution)
                return given_to(operation, parts), totals
            return given_to(operation, unmasked(operation, contribution))

        def given_to(node: Any, parts: Sequence[Any]) -> list[Any]:
            pairs = zip(node.inputs, parts, strict=True)
            return [self._present(values, name, part) for name, part in pairs]

        def unmasked(operation: Operation, contribution: Any) -> Sequence[Any]:
            kind = kind_of(operation)
            rule = kind.at_zero
            assert rule is not None, operation.name  # ensured by `applies`
            if kind.move is not None:
                return rule(operation, contribution, (), values)
            if self._plan.passes(kind):
                return [contribution]
            change = delta_sign(operation.name)
            g = self._sign(contribution) * (change if kind.by_change else ops.abs(change))
            signs = [delta_sign(source) for source in operation.inputs]
            if kind.synapse_rule is not None:
                on_sum(operation, g, signs, values)
            if kind.multiplies:
                return rule(operation, g, signs, {n: factor_sign(n) for n in operation.inputs})
            return rule(operation, g, signs, values)

        logits = values[self._plan.logits]
        seed = {name: self._present(values, name, t) for name, t in self._seed(logits).items()}
        return propagate(self._order, seed, expand, self._plan.shapes), logits

    def _sign_of_delta(self, name: str, value: Any) -> Any:
        """Return the sign of an operation's change, value − mean."""
        return self._means[name].sign_of_delta(value)

    def _sign(self, contribution: Any) -> Any:
        """Return the sign of contributions."""
        return ops.sign(contribution)


class AmountWalk(_BackendWalk):
    """The walk with amounts: multipliers times changes from the reference.

    The walk carries multipliers. Where an operation looks up tokens, whose numbers mean nothing,
    they become amounts, which reach the tokens.
    """

    def __init__(
        self, im: InstrumentedModel, plan: Plan, collector: Collector, profile: Profile
    ) -> None:
        super().__init__(im, plan, collector)
        self._shapes = {operation.name: operation.shape for operation in im.operations}
        walked = {name for n in plan.expanded for name in (*(n.members or (n.name,)), *n.inputs)}
        walked |= {plan.logits, *plan.start.neurons}
        of = [o.name for o in im.operations if o.name in walked]
        self._reference = Reference(im, profile, of)
        masks = {mask for name in walked if (mask := im[name].mask) is not None}
        self._needed = tuple(walked | masks | self._reference.needs)
        read = [i for o in self._order if getattr(o, "kind", "") == "lookup" for i in o.inputs]
        self._tokens = {operation.name for operation in im.graph.ancestors(read)}

    def contributions(
        self, x: Any, on_sum: Callable[..., None], on_gates: Callable[[str, Any], None]
    ) -> tuple[dict[str, Any], Any]:
        values = self._im.compute(x, self._needed)
        logits = values[self._plan.logits]
        batch = ops.shape(logits)[0]
        shared = self._reference(values, batch)
        reference = {
            name: ops.broadcast_to(value, (batch, *value.shape[1:]))
            for name, value in shared.items()
        }

        def present(name: str, tensor: Any) -> Any:
            return self._present(values, name, tensor)

        def change(name: str) -> Any:
            return present(name, values[name] - reference[name])

        def expand(operation: Any, multipliers: Any) -> Any:
            if isinstance(operation, Node):
                found = unwind_multipliers(
                    self._im[operation.members[0]].params.unrolled,
                    operation.table.prefix,
                    operation.inputs,
                    multipliers,
                    values,
                    reference,
                )
                for name, contributions in found.synapses.items():
                    on_gates(name, contributions)
                return given_to(operation, found.inputs), found.members
            return given_to(operation, multipliers_of_inputs(operation, multipliers))

        def given_to(node: Any, parts: Sequence[Any]) -> list[Any]:
            found = [present(name, part) for name, part in zip(node.inputs, parts, strict=True)]
            if node.name in self._tokens or getattr(node, "kind", "") == "lookup":
                return found
            return [
                part * change(name) if part is not None and name in self._tokens else part
                for name, part in zip(node.inputs, found, strict=True)
            ]

        def multipliers_of_inputs(operation: Operation, multipliers: Any) -> Sequence[Any]:
            kind = kind_of(operation)
            if operation.name in self._tokens:  # amounts: they only move
                if kind.move is None:
                    return [None] * len(operation.inputs)
                return kind.at_zero(operation, multipliers, (), values)  # type: ignore[misc]
            if operation.kind == "lookup":
                amounts = multipliers * change(operation.name)
                on_sum(operation, amounts, (), values)
                return kind.at_zero(operation, amounts, (), values)  # type: ignore[misc]
            inputs = [values[name] for name in operation.inputs]
            usual = [reference[name] for name in operation.inputs]
            if kind.kernels_at_zero is not None:
                on_sum(operation, multipliers, [change(n) for n in operation.inputs], values)
            return (kind.rescale or midpoint)(operation, inputs, usual, multipliers)

        seed = {}
        for name, given in self._seed(logits).items():
            shape = self._shapes[name]
            if tuple(given.shape[1:]) != shape:  # the mean of a channel
                positions = int(np.prod(shape[:-1]))
                given = ops.reshape(given, (-1, *(1,) * (len(shape) - 1), shape[-1]))
                given = ops.broadcast_to(given / positions, (batch, *shape))
            seed[name] = present(name, given)
        received = propagate(self._order, seed, expand, self._shapes)
        amounts = {
            name: found if name in self._tokens else found * change(name)
            for name, found in received.items()
        }
        if self._plan.granularity == "channel":
            amounts = {
                name: ops.sum(ops.reshape(v, (batch, -1, v.shape[-1])), axis=1)
                for name, v in amounts.items()
            }
        return amounts, logits

    def of_kernel(self, kernel: Synapses, contributions: Any) -> Any:
        """Multiply by the size of the weights, whose signs the kinds' rules have multiplied by."""
        if isinstance(kernel, Lookup):
            return contributions
        return contributions * ops.abs(ops.cast(kernel.variable(), "float32"))


class SplitMean:
    """A float64 mean as two float32 bounds: Δ > 0 above the first, Δ < 0 below the second.

    The sign of Δ = value − mean is thus exact without float64, which accelerators lack: no
    float32 value lies strictly between the mean and its nearest float32.
    """

    def __init__(self, mean: np.ndarray) -> None:
        nearest = mean.astype(np.float32)
        exact = nearest.astype(np.float64)
        self.nearest = nearest
        below = np.nextafter(nearest, np.float32(-np.inf))
        above = np.nextafter(nearest, np.float32(np.inf))
        # Tensors, because arrays would be embedded in the compiled walk, in several copies.
        self._positive_above = ops.convert_to_tensor(np.where(exact > mean, below, nearest))
        self._negative_below = ops.convert_to_tensor(np.where(exact < mean, above, nearest))

    def sign_of_delta(self, value: Any) -> Any:
        positive = ops.cast(value > self._positive_above, "float32")
        return positive - ops.cast(value < self._negative_below, "float32")


def _add(totals: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        totals[name] = totals[name] + value if name in totals else value


def _host(tensor: Any) -> np.ndarray:
    """Return a tensor as an array, without copying if the backend allows it."""
    return ops.convert_to_numpy(tensor) if backend() == "torch" else np.asarray(tensor)
