"""The backward walk of one batch by exclusion (NNSlicer, Algorithm 1), at any θ.

With the kernels it is single-threaded and runs without Keras, in this process or on a worker. Its
memory is a few times that of the batch's activations.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._kernels import sums
from nnslicer_tf.engine import Job
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.kinds import Neurons, Node
from nnslicer_tf.kinds.kind import aligned_mask
from nnslicer_tf.kinds.pointwise import sign
from nnslicer_tf.kinds.recurrence import unwind
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import Collector, Contributions, EachRow

# Size in bytes of the dense synapse contributions of samples that are walked together.
_ROW_BYTES = 64 << 20
# Captured bytes of a part per byte of synapses, and parts per thread.
_MIN_PART = 8
_MAX_PARTS = 3

Captured = Mapping[str, np.ndarray]  # the values of `Plan.captured`, (batch, *shape) float32


def walk(plan: Plan, captured: Captured, each: bool) -> Contributions:
    """Return the counts of a batch; with `each`, those of synapses are not summed over samples."""
    known: dict[str, Neurons] = {}
    synapses: dict[str, np.ndarray] = {}

    def values(name: str) -> Neurons:
        if name not in known:
            node = plan.nodes[name]
            mask = None
            if node.mask is not None:
                mask = aligned_mask(captured[node.mask], captured[name].ndim)
            known[name] = Neurons(
                captured[name], node.mean, plan.relative_to, mask, plan.product, node.rounding
            )
        return known[name]

    def present(name: str, part: np.ndarray | None) -> np.ndarray | None:
        return part if plan.granularity == "channel" else _present(plan.nodes[name], captured, part)

    def expand(node: Node, contribution: Any) -> Any:
        if node.members:
            through_time = unwind(node, plan.theta, contribution, values, plan.passes, each)
            _add(synapses, through_time.synapses)
            return given_to(node, through_time.inputs), through_time.members
        kind, rule = node.kind, node.rule
        assert rule is not None, node.name  # ensured by `check_rules`
        apply = rule.activation if plan.granularity == "activation" else rule.channel
        if kind.moves:
            return given_to(node, apply(node, plan.theta, contribution, None, ()))
        if plan.passes(kind):
            return given_to(node, [contribution])
        output = values(node.name)
        inputs = [values(name) for name in node.inputs]
        signs = sign(contribution)
        signs *= output.sign if kind.by_change else np.abs(output.sign)
        if not rule.synapses:
            return given_to(node, apply(node, plan.theta, signs, output, inputs))
        parts, of_synapses = apply(node, plan.theta, signs, output, inputs, each)
        _add(synapses, {k: v for k, v in of_synapses.items() if k in plan.kernels})
        return given_to(node, parts)

    def given_to(node: Node, parts: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        return [present(name, part) for name, part in zip(node.inputs, parts, strict=True)]

    seed = {name: present(name, v) for name, v in plan.seed(captured[plan.logits]).items()}
    return Contributions(propagate(plan.expanded, seed, expand, plan.shapes), synapses)


def _present(node: Node, captured: Captured, part: np.ndarray | None) -> np.ndarray | None:
    """Return what a node received without what padding received, which has no neurons."""
    if part is None or node.mask is None:
        return part
    rank = len(node.shape) + 1
    mask = aligned_mask(captured[node.mask], rank, part.ndim - rank)
    return np.where(mask > 0, part, part.dtype.type(0))


def _add(totals: dict[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
    for name, value in values.items():
        totals[name] = totals[name] + value if name in totals else value


class ExclusionWalk(Job):
    """A job that walks batches of captured values."""

    def __init__(self, plan: Plan, collector: Collector) -> None:
        self.plan = plan
        self.captured = plan.captured
        self.collector = collector

    @property
    def compiles_first(self) -> bool:
        """Whether this process has not compiled or loaded the kernels yet."""
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
        """Split a batch into `parts` or a few times as many.

        Samples differ in cost, so several parts per thread balance the load; but each part has to
        clear and add up its own array of synapses.
        """
        length = len(item[self.plan.logits])
        captured = sum(values.nbytes for values in item.values())
        each = captured // max(_MIN_PART * parts * self.plan.synapse_bytes, 1)
        if parts > 1:
            parts *= int(min(max(each, 1), _MAX_PARTS))
        bounds = np.linspace(0, length, min(parts, length) + 1).astype(int)
        return [_part(item, start, end) for start, end in itertools.pairwise(bounds)]

    def join(self, results: Sequence[Any]) -> Any:
        """Return the result of all parts of a batch."""
        return results[0] if len(results) == 1 else type(results[0]).join(results)


def _part(captured: Captured, start: int, end: int) -> Captured:
    return {name: values[start:end] for name, values in captured.items()}
