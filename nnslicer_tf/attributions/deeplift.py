"""DeepLIFT by the rescale rule (Shrikumar et al., ICML 2017, sections 3.2 and 3.5.1).

The rules are those of slices with amounts; contributions add up to the change of the score, up to
rounding. Cost: a forward pass of two samples, and a backward pass.
"""

from dataclasses import dataclass
from typing import Any

from keras import ops

from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.recurrence import Member, Unrolled
from nnslicer_tf.instrument.target import TargetLike
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.kinds.recurrence import unwind_multipliers
from nnslicer_tf.kinds.rescale import midpoint


@dataclass(frozen=True)
class _Recurrent:
    """A recurrent layer, whose operations are expanded together."""

    name: str
    inputs: tuple[str, ...]
    members: tuple[str, ...]
    unrolled: Unrolled


def deeplift(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return DeepLIFT's contributions, with the baseline as the reference input."""
    problem = Problem(im, x, baseline, target)
    start = problem.target.operation

    def multipliers_of(ids: Any, features: Any, weights: Any) -> list[Any]:
        """Return the features' multipliers; row 0 is the sample, row 1 the baseline."""
        order: dict[Any, Operation | _Recurrent] = {}
        for operation in im.graph.between(problem.x, [start]):
            if isinstance(operation.params, Member):
                unrolled, cell = operation.params.unrolled, operation.params.operation
                prefix = operation.name.removesuffix(cell.name)
                members = tuple(prefix + o.name for o in unrolled.cell)
                order[unrolled] = _Recurrent(prefix, operation.inputs, members, unrolled)
            elif operation.name not in problem.x:
                order[operation.name] = operation
        nodes = list(order.values())
        wanted = {start} | {m for n in nodes if isinstance(n, _Recurrent) for m in n.members}
        both = problem.values(ids, features, sorted(wanted))
        values, reference = ({n: v[row : row + 1] for n, v in both.items()} for row in (0, 1))

        def rule(node: Any, multipliers: Any) -> Any:
            if isinstance(node, _Recurrent):
                through_time = unwind_multipliers(
                    node.unrolled, node.name, node.inputs, multipliers, values, reference
                )
                return through_time.inputs, through_time.members
            x, x0 = ([at[name] for name in node.inputs] for at in (values, reference))
            return (kind_of(node).rescale or midpoint)(node, x, x0, multipliers)

        seed = {start: ops.reshape(weights, (1, *im[start].shape))}
        shapes = {operation.name: operation.shape for operation in im.operations}
        received = propagate(reversed(nodes), seed, rule, shapes)
        return [received.get(name, ops.zeros_like(values[name])) for name in problem.x]

    return problem.attributions(problem.multipliers(multipliers_of))
