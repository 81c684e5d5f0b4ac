"""DeepLIFT by the rescale rule (Shrikumar et al., ICML 2017, sections 3.2 and 3.5.1).

Contributions add up to the change of the score, up to rounding. Cost: a forward pass of two
samples, and a backward pass, for each baseline.
"""

from typing import Any

from keras import ops

from nnslicer_tf.attributions.multipliers import propagate_multipliers
from nnslicer_tf.attributions.problem import Features, Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.recurrence import RecurrentLayer, consumers_first
from nnslicer_tf.instrument.target import TargetLike


def deeplift(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return DeepLIFT's contributions, with the baseline as the reference input."""
    problem = Problem(im, x, baseline, target)
    found = _contributions(problem, {n: value[None] for n, value in problem.baseline.items()})
    return {n: v[0] for n, v in found.items()} if isinstance(found, dict) else found[0]


def deeplift_by_row(im: InstrumentedModel, x: Any, rows: Any, target: TargetLike) -> Any:
    """Return DeepLIFT's contributions against each row of a checked batch, `(rows, *shape)`.

    For several inputs, a dict by name. Rows of tokens are read with the sample's padding.
    """
    problem = Problem(im, x, rows[0], target)
    return _contributions(problem, problem.features(rows))


def _contributions(problem: Problem, baselines: Features) -> Any:
    im, start = problem.im, problem.target.operation

    def multipliers_of(ids: Any, features: Any, weights: Any) -> list[Any]:
        """Return the features' multipliers; the batch's first half is the sample."""
        path = im.graph.between(problem.x, [start])
        order = consumers_first(o for o in path if o.name not in problem.x)
        wanted = {start} | {m for n in order if isinstance(n, RecurrentLayer) for m in n.members}
        both = problem.values(ids, features, sorted(wanted))
        count = ops.shape(features[0])[0] // 2
        values = {name: value[:count] for name, value in both.items()}
        reference = {name: value[count:] for name, value in both.items()}
        shape = im[start].shape
        seed = {start: ops.broadcast_to(ops.reshape(weights, (1, *shape)), (count, *shape))}
        received = propagate_multipliers(im, order, seed, values, reference)
        return [received.get(name, ops.zeros_like(values[name])) for name in problem.x]

    return problem.attributions(problem.multipliers(multipliers_of, baselines), baselines)
