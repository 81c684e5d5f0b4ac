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
from nnslicer_tf.slicing._results import Collector, Contributions, EachRow

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


class ExclusionWalk(Job):
    """A job that walks batches of captured values.

    Args:
        plan: The walk.
        collector: What becomes of the contributions of a batch.
    """

    def __init__(self, plan: Plan, collector: Collector) -> None:
        self.plan = plan
        self.captured = plan.captured
        self.collector = collector

    @property
    def compiles_first(self) -> bool:
        """Whether the kernels still have to be compiled, or loaded, in this process."""
        return not sums.is_compiled()

    def __call__(self, captured: Captured) -> Any:
        """Return the result for a batch of captured values."""
        samples = len(captured[self.plan.logits])
        step = samples
        if isinstance(self.collector, EachRow):
            step = max(1, _ROW_BYTES // (4 * max(self.collector.synapses, 1)))
        results: list[Any] = []
        for start in range(0, samples, step):
            part = _part(captured, start, start + step)
            result = walk(self.plan, part, self.collector.each)
            results.append(self.collector.collect(result, part[self.plan.logits]))
        return self.join(results)

    def split(self, item: Captured, parts: int) -> list[Captured]:
        """Return smaller, non-empty batches: `parts` of them, or a few times as many.

        Samples differ in cost, so threads finish together if each has several parts; but every
        part has its own array of synapses to clear and to add up.
        """
        length = len(item[self.plan.logits])
        captured = sum(values.nbytes for values in item.values())
        each = captured // max(_FOR_A_PART * parts * self.plan.synapse_bytes, 1)
        if parts > 1:
            parts *= int(min(max(each, 1), _MOST_PARTS))
        bounds = np.linspace(0, length, min(parts, length) + 1).astype(int)
        return [_part(item, start, end) for start, end in itertools.pairwise(bounds)]

    def join(self, results: Sequence[Any]) -> Any:
        """Return the result of all parts of a batch."""
        return results[0] if len(results) == 1 else self.collector.join(results)


def _part(captured: Captured, start: int, end: int) -> Captured:
    return {name: values[start:end] for name, values in captured.items()}
