"""The backward walk of one batch by exclusion (NNSlicer, Algorithm 1), at any θ.

It runs without Keras, in this process or on a worker. It is single-threaded, and its memory is a
few times that of the batch's activations.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._kernels import sums
from nnslicer_tf.engine import Job
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.kinds import Neurons, Node, aligned_mask
from nnslicer_tf.kinds.pointwise import sign
from nnslicer_tf.kinds.recurrence import unwind
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import Contributions, Part, RowLayout, Rows, Totals

# Size in bytes of the dense synapse contributions of samples that are walked together.
_ROW_BYTES = 64 << 20
# Least captured bytes of a part per byte of synapses, and largest number of parts per thread.
_FOR_A_PART = 8
_MOST_PARTS = 3

Captured = Mapping[str, np.ndarray]


def walk(plan: Plan, captured: Captured, each: bool) -> Contributions:
    """Return the contributions of every sample of a batch.

    Args:
        plan: The walk.
        captured: Values `(batch, *operation shape)` float32 of `plan.captured`.
        each: Keep the synapses' contributions of each sample separate.
    """
    neurons: dict[str, Neurons] = {}
    synapses: dict[str, np.ndarray] = {}

    def values(name: str) -> Neurons:
        if name not in neurons:
            node = plan.nodes[name]
            mask = None
            if node.mask is not None:
                mask = aligned_mask(captured[node.mask], captured[name].ndim)
            neurons[name] = Neurons(captured[name], node.mean, plan.relative_to, mask, plan.product)
        return neurons[name]

    def collect(given: Mapping[str, np.ndarray]) -> None:
        for name, values in given.items():
            synapses[name] = synapses[name] + values if name in synapses else values

    def present(name: str, contribution: np.ndarray | None) -> np.ndarray | None:
        """Drop contributions to padding, which has no neurons."""
        node = plan.nodes[name]
        if contribution is None or node.mask is None or plan.granularity == "channel":
            return contribution
        rank = len(node.shape) + 1
        mask = aligned_mask(captured[node.mask], rank, contribution.ndim - rank)
        return np.where(mask > 0, contribution, 0)

    def expand(node: Node, contribution: Any) -> Any:
        if node.members:
            found = unwind(node, plan.theta, contribution, values, plan.passes, each)
            collect(found.synapses)
            return given_to(node, found.inputs), found.members
        return given_to(node, unmasked(node, contribution))

    def given_to(node: Node, parts: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        return [present(name, part) for name, part in zip(node.inputs, parts, strict=True)]

    def unmasked(node: Node, contribution: np.ndarray) -> Sequence[np.ndarray | None]:
        kind = node.kind
        if kind.move is not None:
            return kind.move(node, contribution)
        if plan.passes(kind):
            return [contribution]
        output = values(node.name)
        inputs = [values(name) for name in node.inputs]
        signs = sign(contribution)
        signs *= output.sign if kind.by_change else np.abs(output.sign)
        if kind.synapse_rule is None:
            rule = getattr(kind.rule, plan.granularity)
            return rule(node, plan.theta, signs, output, inputs)
        received, collected = kind.synapse_rule(node, plan.theta, signs, output, inputs, each)
        collect(collected)
        return received

    seed = {
        name: present(name, values) for name, values in plan.seed(captured[plan.logits]).items()
    }
    return Contributions(propagate(plan.expanded, seed, expand, plan.shapes), synapses)


class _ByExclusion(Job):
    """Base class of jobs that take captured values and can walk a batch in parts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.captured = plan.captured

    @property
    def compiles_first(self) -> bool:
        """Whether the kernels still have to be compiled, or loaded, in this process."""
        return not sums.is_compiled()

    def split(self, item: Captured, parts: int) -> list[Captured]:
        """Return smaller, non-empty batches: `parts` of them, or a few times as many.

        Samples differ in cost, so threads finish together if each has several parts; but every
        part has its own array of synapses to clear and to add up.
        """
        length = len(item[self._plan.logits])
        captured = sum(values.nbytes for values in item.values())
        each = captured // max(_FOR_A_PART * parts * self._plan.synapse_bytes, 1)
        if parts > 1:
            parts *= int(min(max(each, 1), _MOST_PARTS))
        bounds = np.linspace(0, length, min(parts, length) + 1).astype(int)
        return [_part(item, start, end) for start, end in itertools.pairwise(bounds)]


class SumByExclusion(_ByExclusion):
    """A job that sums the contributions of a batch."""

    def __call__(self, captured: Captured) -> Totals:
        """Return the totals of a batch of captured values."""
        return Totals.of(walk(self._plan, captured, each=False), len(captured[self._plan.logits]))

    def join(self, results: Sequence[Totals]) -> Totals:
        """Return the totals of all parts."""
        return Totals.join(results)


class _EachByExclusion(_ByExclusion):
    """Base class of jobs that return the contributions of every sample.

    Args:
        plan: The walk.
        layout: Kernels and operations whose contributions are returned.
    """

    def __init__(self, plan: Plan, layout: RowLayout) -> None:
        super().__init__(plan)
        self._layout = layout


class RowsByExclusion(_EachByExclusion):
    """A job that returns the contributions of every sample of a batch, as sparse rows."""

    def __call__(self, captured: Captured) -> Rows:
        """Return the rows of a batch of captured values."""
        step = max(1, _ROW_BYTES // (4 * max(self._layout.synapses, 1)))
        parts = []
        for start in range(0, len(captured[self._plan.logits]), step):
            part = _part(captured, start, start + step)
            logits = part[self._plan.logits]
            parts.append(self._layout.rows(walk(self._plan, part, each=True), logits, dense=False))
        return Rows.join(parts)

    def join(self, results: Sequence[Rows]) -> Rows:
        """Return the rows of all parts, in order."""
        return Rows.join(results)


class PartsByExclusion(_EachByExclusion):
    """A job that returns the contributions of every sample of a batch, as dense arrays."""

    def __call__(self, captured: Captured) -> Part:
        """Return the contributions of a batch of captured values."""
        return self._layout.part(walk(self._plan, captured, each=True), captured[self._plan.logits])

    def join(self, results: Sequence[Part]) -> Part:
        """Return the contributions of all parts, in order."""
        first = results[0]
        return Part(
            {name: np.concatenate([r.synapses[name] for r in results]) for name in first.synapses},
            {name: np.concatenate([r.neurons[name] for r in results]) for name in first.neurons},
            np.concatenate([r.predicted for r in results]),
        )


def _part(captured: Captured, start: int, end: int) -> Captured:
    return {name: values[start:end] for name, values in captured.items()}
