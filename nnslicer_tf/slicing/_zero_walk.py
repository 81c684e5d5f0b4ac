"""The backward walk at θ = 0 as tensor operations of the backend, on a GPU if there is one.

Because nothing is excluded, sign(CONTRIB · Δy · w · Δx) factorises: each kind's `at_zero` rule is
a product of signs and a vector-Jacobian product. All contributions are integers, which float32
represents exactly up to 2²⁴; `counts_are_exact` checks that a plan stays below this.

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
from nnslicer_tf.kinds import Node, aligned_mask, kind_of
from nnslicer_tf.kinds.recurrence import unwind_at_zero
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import Contributions, Part, Reduction, RowLayout, Rows, Totals

_EXACT = 1 << 24


def applies(im: InstrumentedModel, plan: Plan, batch: int) -> bool:
    """Return whether this walk can run a plan: θ = 0, rules for all kinds, exact sums."""
    at_zero = plan.theta == 0 and plan.granularity == "activation"
    kinds = [node.kind for node in plan.expanded]
    known = all(kind.at_zero is not None or kind.through_time for kind in kinds) and all(
        kind.kernels_at_zero is not None and kind.samples_at_zero is not None
        for kind in kinds
        if kind.synapse_rule is not None
    )
    return at_zero and known and counts_are_exact(im, plan, batch)


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


class _AtZero(Job):
    """Base class of jobs that run the compiled walk on samples.

    Args:
        im: The model.
        plan: The walk.
    """

    def __init__(self, im: InstrumentedModel, plan: Plan) -> None:
        self.captured = im.input_operations
        self._im = im
        self._plan = plan
        self._order: list[Any] = [n if n.members else im[n.name] for n in plan.expanded]
        self._shapes = plan.shapes
        self._means = {name: SplitMean(plan.nodes[name].mean) for name in plan.captured}
        factors = {name for n in plan.nodes.values() if n.kind.multiplies for name in n.inputs}
        factors |= {name for n in plan.expanded if n.members for name in (*n.inputs, *n.members)}
        factors &= set(plan.captured) if plan.product == "midpoint" else set()
        self._opposites = {name: SplitMean(-plan.nodes[name].mean) for name in factors}
        self._compiled = compiled_function(self._outputs)
        self._traced = False

    @property
    def compiles_first(self) -> bool:
        """Whether the backend has not traced the walk yet."""
        return not self._traced

    def _outputs(self, x: Any) -> Any:
        raise NotImplementedError

    def _walk(self, captured: Mapping[str, np.ndarray]) -> Any:
        """Walk a batch on the backend, given the values of the input operations."""
        result = self._compiled([ops.convert_to_tensor(x) for x in captured.values()])
        self._traced = True
        return result

    def _contributions(
        self, x: Any, on_sum: Callable[..., None], on_gates: Callable[[str, Any], None]
    ) -> tuple:
        """Walk a batch; return CONTRIB of the neurons (float32) and the logits.

        `on_sum` is called for each operation with synapses, with the arguments of its `at_zero`
        rule; `on_gates` for each kernel of a recurrent layer, with its name and contributions
        `(batch, taps, inputs, outputs)`.
        """
        values = self._im.compute(x, self._plan.captured)

        def present(name: str, tensor: Any) -> Any:
            """Set padding, which has no neurons, to 0."""
            operation = self._im[name]
            if operation.mask is None or tensor is None:
                return tensor
            rank = len(operation.shape) + 1
            mask = aligned_mask(values[operation.mask], rank, len(tensor.shape) - rank)
            return ops.where(mask > 0.5, tensor, ops.zeros_like(tensor))

        def delta_sign(name: str) -> Any:
            return present(name, self._sign_of_delta(name, values[name]))

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
            return [present(name, part) for name, part in zip(node.inputs, parts, strict=True)]

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
        seed = {name: present(name, tensor) for name, tensor in self._seed(logits).items()}
        return propagate(self._order, seed, expand, self._shapes), logits

    def _sign_of_delta(self, name: str, value: Any) -> Any:
        """Return the sign of an operation's change, value − mean."""
        return self._means[name].sign_of_delta(value)

    def _sign(self, contribution: Any) -> Any:
        """Return the sign of contributions."""
        return ops.sign(contribution)

    def _seed(self, logits: Any) -> dict[str, Any]:
        if self._plan.start.predicted:
            return {self._plan.logits: ops.one_hot(ops.argmax(logits, axis=-1), logits.shape[-1])}
        one = self._plan.seed(np.zeros((1, *logits.shape[1:]), np.float32))
        batch = ops.shape(logits)[0]
        return {
            name: ops.broadcast_to(seed.astype(np.float32), (batch, *seed.shape[1:]))
            for name, seed in one.items()
        }


class SumAtZero(_AtZero):
    """A job that sums the contributions of a batch of samples."""

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Totals:
        """Return the totals of a batch, given the values of the input operations."""
        neurons, synapses = self._walk(captured)
        samples = len(captured[self.captured[0]])
        return Totals(_to_int(neurons), _to_int(synapses), samples)

    def _outputs(self, x: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        synapses: dict[str, Any] = {}

        def collect(operation: Operation, *given: Any) -> None:
            rule = kind_of(operation).kernels_at_zero
            assert rule is not None, operation.name  # ensured by `applies`
            _add(synapses, rule(operation, *given))

        def collect_gates(name: str, contributions: Any) -> None:
            total = ops.sum(contributions, axis=0, keepdims=True)
            _add(synapses, {name: self._plan.kernels[name].tensor_to_kernel(total)[0]})

        contributions, _ = self._contributions(x, collect, collect_gates)
        return {name: ops.sum(c, axis=0) for name, c in contributions.items()}, synapses


class _EachAtZero(_AtZero):
    """Base class of jobs that return the contributions of every sample.

    Args:
        im: The model.
        plan: The walk.
        layout: Kernels and operations whose contributions are returned.
    """

    def __init__(self, im: InstrumentedModel, plan: Plan, layout: RowLayout) -> None:
        super().__init__(im, plan)
        self._layout = layout

    def _each(self, x: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Return CONTRIB of neurons, of synapses `(batch, taps, inputs, outputs)`, and logits."""
        synapses: dict[str, Any] = {}

        def collect(operation: Operation, *given: Any) -> None:
            if all(kernel.name not in self._layout.kernels for kernel in operation.kernels):
                return
            rule = kind_of(operation).samples_at_zero
            assert rule is not None, operation.name  # ensured by `applies`
            found = rule(operation, *given)
            kept = [kernel for kernel in operation.kernels if kernel.name in self._layout.kernels]
            _add(synapses, {k.name: self._as_planned(k, found[k.name]) for k in kept})

        def collect_gates(name: str, contributions: Any) -> None:
            if name in self._layout.kernels:
                _add(synapses, {name: contributions})

        contributions, logits = self._contributions(x, collect, collect_gates)
        kept = {name: c for name, c in contributions.items() if name in self._layout.operations}
        return kept, synapses, logits

    def _as_planned(self, kernel: Synapses, matrices: Any) -> Any:
        """Convert matrices of a kernel, which may be used transposed here, to the plan's layout."""
        same = kernel.axes == self._plan.kernels[kernel.name].axes
        return matrices if same else ops.swapaxes(matrices, -1, -2)


class RowsAtZero(_EachAtZero):
    """A job that returns the contributions of every sample of a batch, as dense rows."""

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Rows:
        """Return the rows of a batch, given the values of the input operations."""
        neurons, synapses, logits = self._walk(captured)
        kernels = self._plan.kernels
        result = Contributions(
            {name: _host(value) for name, value in neurons.items()},
            {name: kernels[name].to_kernel(_host(value)) for name, value in synapses.items()},
        )
        return self._layout.rows(result, _host(logits), dense=True)

    def _outputs(self, x: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        return self._each(x)


class PartsAtZero(_EachAtZero):
    """A job that returns the contributions of every sample of a batch, dense or reduced.

    Args:
        im: The model.
        plan: The walk.
        layout: Kernels and operations whose contributions are returned.
        reduce: Reduction of the synapses, run on the backend; None returns them unreduced.
    """

    def __init__(
        self, im: InstrumentedModel, plan: Plan, layout: RowLayout, reduce: Reduction | None
    ) -> None:
        super().__init__(im, plan, layout)
        self._reduce = reduce

    def __call__(self, captured: Mapping[str, np.ndarray]) -> Part:
        """Return the contributions of a batch, given the values of the input operations."""
        found = self._walk(captured)
        neurons, synapses, logits = keras.tree.map_structure(_host, found)
        if self._reduce is None:
            return self._layout.part(Contributions(neurons, synapses), logits)
        return self._layout.part(Contributions(neurons, {}), logits, synapses)

    def _outputs(self, x: Any) -> tuple[dict[str, Any], Any, Any]:
        neurons, synapses, logits = self._each(x)
        batch = ops.shape(logits)[0]
        shaped = {}
        for name, shape in self._layout.kernels.items():
            if name not in synapses:
                shaped[name] = ops.zeros((batch, *shape))
                continue
            shaped[name] = self._plan.kernels[name].tensor_to_kernel(synapses[name])
        return neurons, shaped if self._reduce is None else self._reduce(shaped), logits


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


def _to_int(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: _host(value).astype(np.int64) for name, value in tensors.items()}


def _host(tensor: Any) -> np.ndarray:
    """Return a tensor as an array, without copying if the backend allows it."""
    return ops.convert_to_numpy(tensor) if backend() == "torch" else np.asarray(tensor)
