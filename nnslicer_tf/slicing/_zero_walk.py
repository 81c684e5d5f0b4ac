"""The backward walk at θ = 0 as tensor operations of the backend, on a GPU if there is one.

Nothing is excluded, so sign(CONTRIB · Δy · w · Δx) factorises: each rule of `AT_ZERO` is a product
of signs and a vector-Jacobian product. Counts are integers below 2²⁴, which float32 represents
exactly (`applies` checks this). Amounts, which are defined at θ = 0 alone, are multipliers times
changes. The cost is about two more forward passes, and a few times their memory.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.attributions.multipliers import propagate_multipliers
from nnslicer_tf.engine import Job
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.inputs import check_finite
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.recurrence import RecurrentLayer, consumers_first
from nnslicer_tf.kinds import AT_ZERO, kind_of
from nnslicer_tf.kinds.kind import aligned_mask
from nnslicer_tf.kinds.recurrence import unwind_at_zero
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import Collector, Contributions
from nnslicer_tf.slicing.profile import Profile

_EXACT = 1 << 24
OnSum = Callable[..., None]
"""Called for each operation with synapses, with the arguments of its `AtZero` rule."""
OnGates = Callable[[str, Any], None]
"""Called for each kernel of a recurrent layer, with its name and contributions
`(batch, taps, inputs, outputs)`."""


def applies(im: InstrumentedModel, plan: Plan, batch: int) -> bool:
    """Return whether this walk can run a plan: θ = 0, rules for all kinds, exact sums."""
    if plan.is_amount:
        return True
    if plan.theta > 0 or plan.granularity != "activation":
        return False
    for node in plan.expanded:
        if node.members:
            continue
        at_zero, has_synapses = AT_ZERO.get(node.kind.name), node.rule and node.rule.synapses
        if at_zero is None or (has_synapses and None in (at_zero.kernels, at_zero.samples)):
            return False

    # The largest contribution of a sample: an operation with signs adds at most 1 to an input
    # neuron for each of its outputs; routing adds whole contributions, once for each output that
    # a neuron is moved to. A synapse gets at most 1 for each output position of each call.
    largest = dict.fromkeys((plan.logits, *plan.start.neurons), 1)
    synapses: dict[str, int] = {}
    for node in plan.expanded:
        for name in node.members or (node.name,):
            for kernel in im[name].kernels:
                positions = im[name].size // im[name].shape[-1]
                synapses[kernel.name] = synapses.get(kernel.name, 0) + positions
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
            if node.kind.moves or plan.passes(node.kind):
                given = largest.get(node.name, 0) * repeats
            elif node.kind.reach == "element":
                given = repeats
            largest[source] = largest.get(source, 0) + given
    return max(*largest.values(), *synapses.values()) * batch < _EXACT


FIRST = ""
"""Key of the number of a batch's first sample, beside the values that a job reads."""


class _BackendWalk(Job):
    """A job that runs a compiled walk on samples."""

    def __init__(self, im: InstrumentedModel, plan: Plan, collector: Collector) -> None:
        self.captured = im.input_operations
        self.collector = collector
        self._im, self._plan = im, plan
        expanded = [name for node in plan.expanded for name in node.members or (node.name,)]
        self._order = consumers_first(im[name] for name in reversed(expanded))
        self._seeds: Mapping[str, Any] = {}
        self._compiled = compiled_function(self._walk_from)
        self._traced = False

    @property
    def compiles_first(self) -> bool:
        """Whether the backend has not traced the walk yet."""
        return not self._traced

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Any:
        """Return the result for a batch, given the values of the input operations."""
        seeds = {} if self._plan.start.predicted else self._fixed_seeds()
        inputs = [captured[name] for name in self.captured]
        convert = ops.convert_to_tensor
        tensors = self._compiled(
            [convert(x, "float32" if x.dtype == np.float64 else None) for x in inputs],
            {name: convert(seed) for name, seed in seeds.items()},
        )
        self._traced = True
        # Without copying, if the backend allows it.
        to_host = ops.convert_to_numpy if keras.backend.backend() == "torch" else np.asarray
        neurons, synapses, logits = keras.tree.map_structure(to_host, tensors)
        check_finite({f"{self._plan.logits} or one before it": logits}, int(captured.get(FIRST, 0)))
        if self.collector.reduce is not None:
            return self.collector.collect(Contributions(neurons, {}), logits, synapses)
        synapses = {n: v.reshape(len(v), *self._plan.kernels[n].shape) for n, v in synapses.items()}
        return self.collector.collect(Contributions(neurons, synapses), logits)

    @abstractmethod
    def contributions(self, x: Any, on_sum: OnSum, on_gates: OnGates) -> tuple[dict[str, Any], Any]:
        """Walk a batch; return CONTRIB of the neurons (float32) and the logits."""

    def walk(self, x: Any) -> tuple[dict[str, Any], Any, Any]:
        """Return CONTRIB of neurons and synapses (or the reduction's result), and the logits.

        A collector of sums gets sums over the batch, `(1, *shape)`.
        """
        synapses: dict[str, Any] = {}
        each = self.collector.each
        wanted = self.collector.kernels if each else self._plan.kernels

        def add(name: str, contributions: Any) -> None:
            kernel = self._im.kernels[name]
            if self._plan.is_amount and not isinstance(kernel, Lookup):
                # The kinds' rules multiply by the signs of the weights.
                contributions *= ops.abs(ops.cast(kernel.variable(), "float32"))
            synapses[name] = synapses[name] + contributions if name in synapses else contributions

        def on_sum(operation: Operation, *given: Any) -> None:
            kernels = [kernel for kernel in operation.kernels if kernel.name in wanted]
            if not kernels:
                return
            rules = AT_ZERO[operation.kind]
            rule = rules.samples if each else rules.kernels
            assert rule is not None, operation.name  # ensured by `applies`
            parts = rule(operation, *given)
            for kernel in kernels:
                if not each:
                    if kernel.name in parts:
                        add(kernel.name, parts[kernel.name][None])
                    continue
                matrices, layout = parts[kernel.name], self._plan.kernels[kernel.name]
                if kernel.axes != layout.axes:  # it is used transposed here
                    matrices = ops.swapaxes(matrices, -1, -2)
                add(kernel.name, layout.to_kernel(matrices))

        def on_gates(name: str, contributions: Any) -> None:
            if name in wanted:
                if not each:
                    contributions = ops.sum(contributions, axis=0, keepdims=True)
                add(name, self._plan.kernels[name].to_kernel(contributions))

        neurons, logits = self.contributions(x, on_sum, on_gates)
        if not each:
            totals = {name: ops.sum(c, axis=0, keepdims=True) for name, c in neurons.items()}
            return totals, synapses, logits
        neurons = {name: c for name, c in neurons.items() if name in self.collector.operations}
        if self.collector.reduce is None:
            return neurons, synapses, logits
        batch = ops.shape(logits)[0]
        for name, shape in self.collector.kernels.items():
            synapses.setdefault(name, ops.zeros((batch, *shape), "float32"))
        return neurons, self.collector.reduce(synapses), logits

    def share(self, other: "_BackendWalk") -> None:
        """Reuse what another walk has compiled; only their starting neurons may differ."""
        self._compiled, self._traced = other._compiled, other._traced

    def _walk_from(self, x: Any, seeds: Mapping[str, Any]) -> Any:
        """Walk from seeds that are arguments, so that other classes need no new compilation."""
        self._seeds = seeds
        try:
            return self.walk(x)
        finally:
            self._seeds = {}

    def _logits(self, values: Mapping[str, Any]) -> Any:
        """Return the logits, NaN for samples with values that are not finite."""
        logits = values[self._plan.logits]
        axes = range(1, len(logits.shape))
        for value in values.values():
            if keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)):
                rows = ops.reshape(ops.isfinite(value), (ops.shape(value)[0], -1))
                right = ops.expand_dims(ops.all(rows, axis=1), [*axes])
                logits = ops.where(right, logits, np.float32(np.nan))
        return logits

    def _fixed_seeds(self) -> dict[str, np.ndarray]:
        logits = np.zeros((1, *self._plan.nodes[self._plan.logits].shape), np.float32)
        return {name: seed.astype(np.float32) for name, seed in self._plan.seed(logits).items()}

    def _seed(self, logits: Any) -> dict[str, Any]:
        if self._plan.start.predicted:
            axis = self._plan.start.axis
            predicted, options = ops.argmax(logits, axis=axis), {"axis": axis, "dtype": "float32"}
            return {self._plan.logits: ops.one_hot(predicted, logits.shape[axis], **options)}
        batch = ops.shape(logits)[0]
        return {
            name: ops.broadcast_to(seed, (batch, *seed.shape[1:]))
            for name, seed in (self._seeds or self._fixed_seeds()).items()
        }

    def _present(self, values: Mapping[str, Any], name: str, tensor: Any) -> Any:
        """Set positions of padding, which have no neurons, to 0."""
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
        self._means = {
            name: SplitMean(plan.nodes[name].mean, plan.nodes[name].rounding)
            for name in plan.captured
        }
        self._ties = {
            name: ops.convert_to_tensor(np.asarray(node.rounding, np.float32))
            for name, node in plan.nodes.items()
            if node.kind.extreme
        }
        factors = {name for n in plan.nodes.values() if n.kind.multiplies for name in n.inputs}
        factors |= {name for n in plan.expanded if n.members for name in (*n.inputs, *n.members)}
        factors &= set(plan.captured) if plan.product == "midpoint" else set()
        self._opposites = {name: SplitMean(-plan.nodes[name].mean) for name in factors}

    def contributions(self, x: Any, on_sum: OnSum, on_gates: OnGates) -> tuple[dict[str, Any], Any]:
        plan = self._plan
        values = self._im.compute(x, plan.captured)

        def delta_sign(name: str) -> Any:
            return self._present(values, name, self._sign_of_delta(name, values[name]))

        def factor_sign(name: str) -> Any:
            """Return the signs of an operation's factor in products."""
            value = values[name]
            if plan.product == "value":
                return ops.sign(value)
            middle = self._opposites[name].sign_of_delta(value)
            mask = self._im[name].mask
            if mask is None:
                return middle
            here = aligned_mask(values[mask], len(self._im[name].shape) + 1)
            return ops.where(here > 0.5, middle, ops.sign(value))

        def expand(node: Operation | RecurrentLayer, contribution: Any) -> Any:
            if not isinstance(node, RecurrentLayer):
                return given_to(node, rule(node, contribution))
            signs = delta_sign, factor_sign, plan.passes
            through_time = unwind_at_zero(node, contribution, values, *signs)
            for name, of_gates in through_time.synapses.items():
                on_gates(name, of_gates)
            return given_to(node, through_time.inputs), through_time.members

        def given_to(node: Operation | RecurrentLayer, parts: Sequence[Any]) -> list[Any]:
            pairs = zip(node.inputs, parts, strict=True)
            return [self._present(values, name, part) for name, part in pairs]

        def rule(operation: Operation, contribution: Any) -> Sequence[Any]:
            kind, at_zero = kind_of(operation), AT_ZERO[operation.kind]
            if kind.moves:
                return at_zero.inputs(operation, contribution, (), values)
            if plan.passes(kind):
                return [contribution]
            change = delta_sign(operation.name)
            g = self._sign(contribution) * (change if kind.by_change else ops.abs(change))
            signs = [delta_sign(source) for source in operation.inputs]
            if at_zero.kernels is not None:
                on_sum(operation, g, signs, values)
            if kind.multiplies:
                factors = {name: factor_sign(name) for name in operation.inputs}
                return at_zero.inputs(operation, g, signs, factors)
            if kind.extreme:
                limit = values[operation.name] - kind.extreme * self._ties[operation.name]
                return at_zero.inputs(operation, g, signs, {**values, operation.name: limit})
            return at_zero.inputs(operation, g, signs, values)

        logits = self._logits(values)
        seed = {n: self._present(values, n, v) for n, v in self._seed(logits).items()}
        return propagate(self._order, seed, expand, plan.shapes), logits

    def _sign_of_delta(self, name: str, value: Any) -> Any:  # overridden, as is the next, in apps/
        return self._means[name].sign_of_delta(value)

    def _sign(self, contribution: Any) -> Any:
        return ops.sign(contribution)


class AmountWalk(_BackendWalk):
    """The walk with amounts: multipliers times changes from the reference.

    Token ids have no meaningful changes: at a lookup, multipliers become amounts for its tokens.
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

    def contributions(self, x: Any, on_sum: OnSum, on_gates: OnGates) -> tuple[dict[str, Any], Any]:
        values = self._im.compute(x, self._needed)
        logits = self._logits(values)
        batch = ops.shape(logits)[0]
        reference = {
            name: ops.broadcast_to(value, (batch, *value.shape[1:]))
            for name, value in self._reference(values, batch).items()
        }

        def change(name: str) -> Any:
            return values[name] - reference[name]

        def before(operation: Operation, multipliers: Any) -> Sequence[Any] | None:
            """Collect synapses; from lookups back to tokens, amounts replace multipliers."""
            kind, at_zero = kind_of(operation), AT_ZERO.get(operation.kind)
            if operation.name in self._tokens:  # amounts: they only move
                if not kind.moves or at_zero is None:
                    return [None] * len(operation.inputs)
                return at_zero.inputs(operation, multipliers, (), values)
            if operation.kind == "lookup":
                amounts = multipliers * change(operation.name)
                on_sum(operation, amounts, (), values)
                return AT_ZERO["lookup"].inputs(operation, amounts, (), values)
            if at_zero is not None and at_zero.kernels is not None:
                on_sum(operation, multipliers, [change(n) for n in operation.inputs], values)
            return None

        def arrive(node: Operation | RecurrentLayer, name: str, part: Any) -> Any:
            is_amount = node.name in self._tokens or getattr(node, "kind", "") == "lookup"
            if part is not None and name in self._tokens and not is_amount:
                return part * change(name)
            return part

        seed = {}
        for name, given in self._seed(logits).items():
            shape = self._shapes[name]
            if tuple(given.shape[1:]) != shape:  # the mean of a channel
                given = ops.reshape(given, (-1, *(1,) * (len(shape) - 1), shape[-1]))
                given = ops.broadcast_to(given / int(np.prod(shape[:-1])), (batch, *shape))
            seed[name] = self._present(values, name, given)
        hooks: dict[str, Any] = {"before": before, "arrive": arrive, "on_gates": on_gates}
        received = propagate_multipliers(self._im, self._order, seed, values, reference, **hooks)
        amounts = {
            name: tensor if name in self._tokens else tensor * change(name)
            for name, tensor in received.items()
        }
        if self._plan.granularity == "channel":
            amounts = {
                name: ops.sum(ops.reshape(v, (batch, -1, v.shape[-1])), axis=1)
                for name, v in amounts.items()
            }
        return amounts, logits


class SplitMean:
    """A float64 mean as two float32 bounds: Δ > 0 above the first, Δ < 0 below the second.

    The signs of Δ = value − mean, 0 within `rounding`, are thus exact on accelerators without
    float64: no float32 value lies strictly between a bound and its nearest float32.
    """

    def __init__(self, mean: np.ndarray, rounding: np.ndarray | float = 0.0) -> None:
        high, low = mean + rounding, mean - rounding
        up, down = high.astype(np.float32), low.astype(np.float32)
        below = np.nextafter(up, np.float32(-np.inf))
        above = np.nextafter(down, np.float32(np.inf))
        self.nearest = mean.astype(np.float32)
        # Tensors, because arrays would be embedded in the compiled walk, in several copies.
        self._positive_above = ops.convert_to_tensor(np.where(up > high, below, up))
        self._negative_below = ops.convert_to_tensor(np.where(down < low, above, down))

    def sign_of_delta(self, value: Any) -> Any:
        positive = ops.cast(value > self._positive_above, "float32")
        return positive - ops.cast(value < self._negative_below, "float32")


class Reference:
    """Computes the reference values of amounts as tensors of the backend.

    Amounts are changes from a reference to a sample. The reference is one run of the network on the
    profile's mean input (for tokens: the mean embedding), so contributions at every cut add up to
    the change of the target. The profile's means of inner neurons would not: the mean of a ReLU is
    not the ReLU of a mean. On ResNet10 they missed a change of 11 by 3,800.
    """

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
            if mask not in self._masks:
                return mean
            return ops.where(aligned_mask(values[mask], len(mean.shape)) > 0.5, mean, values[name])

        inputs = [mean_of(name) for name in self._im.input_operations]
        reference = self._im.graph.run(inputs, self._wanted, change)
        return {name: reference[name] for name in self._wanted}
