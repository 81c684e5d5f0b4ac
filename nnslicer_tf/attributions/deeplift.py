"""DeepLIFT by the rescale rule (Shrikumar et al., ICML 2017, sections 3.2 and 3.5.1).

Contributions add up to the change of the score, up to rounding. Cost: a forward pass of two
samples, and a backward pass.
"""

from typing import Any

from keras import ops

from nnslicer_tf.attributions.multipliers import propagate_multipliers
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.recurrence import RecurrentLayer, consumers_first
from nnslicer_tf.instrument.target import TargetLike


def deeplift(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return DeepLIFT's contributions, with the baseline as the reference input."""
    problem = Problem(im, x, baseline, target)
    start = problem.target.operation

    def multipliers_of(ids: Any, features: Any, weights: Any) -> list[Any]:
        """Return the features' multipliers; row 0 is the sample, row 1 the baseline."""
        path = im.graph.between(problem.x, [start])
        order = consumers_first(o for o in path if o.name not in problem.x)
        wanted = {start} | {m for n in order if isinstance(n, RecurrentLayer) for m in n.members}
        both = problem.values(ids, features, sorted(wanted))
        values, reference = ({n: v[row : row + 1] for n, v in both.items()} for row in (0, 1))
        seed = {start: ops.reshape(weights, (1, *im[start].shape))}
        received = propagate_multipliers(im, order, seed, values, reference)
        return [received.get(name, ops.zeros_like(values[name])) for name in problem.x]

    return problem.attributions(problem.multipliers(multipliers_of))
