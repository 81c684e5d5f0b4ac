"""Attributions by gradients, DeepLIFT's rescale rule, and occlusion.

Cost: one gradient for gradient × input, one for each step of sampled gradients; for DeepLIFT a
forward pass of two samples, and a backward pass, for each baseline; for occlusion a forward pass
for each window: at most about 200 for an image, one for each column or token.
"""

from typing import Any

import numpy as np
import scipy.linalg
from keras import ops

from nnslicer_tf.attributions.multipliers import propagate_multipliers
from nnslicer_tf.attributions.problem import Features, Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.recurrence import RecurrentLayer, consumers_first
from nnslicer_tf.instrument.target import TargetLike

_PLACES = 14  # positions of the window along an axis of an image


def gradient_times_input(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return the score's gradient times the difference between sample and baseline.

    With a baseline of zero, this is gradient × input (Shrikumar et al., 2016).
    """
    problem = Problem(im, x, baseline, target)
    return mean_gradient(problem, {n: v[None] for n, v in problem.x.items()})


def sampled_gradients(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, *, samples: int = 50
) -> Any:
    """Return integrated gradients by the trapezoidal rule (Sundararajan et al., ICML 2017).

    They add up to the change of the score, up to the error of the rule, with `samples` steps from
    the baseline to the sample. Embeddings of tokens are interpolated.
    """
    problem = Problem(im, x, baseline, target)
    weights = np.full(samples + 1, 1 / samples)
    weights[[0, -1]] /= 2
    return mean_gradient(problem, between(problem, np.linspace(0, 1, samples + 1)), weights)


def between(problem: Problem, ratios: np.ndarray) -> Features:
    """Return points on the line from the baseline (0) to the sample (1)."""
    return {
        name: problem.baseline[name]
        + ratios.reshape(-1, *[1] * value.ndim) * (value - problem.baseline[name])
        for name, value in problem.x.items()
    }


def mean_gradient(problem: Problem, features: Features, weights: np.ndarray | None = None) -> Any:
    """Return the mean, or weighted mean, of the gradients at some features, times x − baseline."""
    gradients = problem.gradients(features).items()
    return problem.attributions({k: np.average(v, axis=0, weights=weights) for k, v in gradients})


def deeplift(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return DeepLIFT's contributions (Shrikumar et al., ICML 2017), which add up to the change.

    The rule is the rescale rule (sections 3.2 and 3.5.1), and the baseline the reference input.
    """
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


def occlusion(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return, for each feature, the mean decrease of the score over the windows that hide it.

    Windows are squares with all channels (Zeiler and Fergus, ECCV 2014); their side is twice the
    step, a fourteenth of the image. Columns of tables, steps and tokens are hidden one at a time.
    """
    problem = Problem(im, x, baseline, target)
    blocks = []
    for shape in problem.unit_shapes.values():
        if len(shape) != 2:
            blocks.append(np.eye(int(np.prod(shape)), dtype=bool))
            continue
        sides = []
        for length in shape:
            step = max(1, -(-length // _PLACES))
            starts = np.arange(1 - step, length, step)[:, None]
            sides.append((np.arange(length) >= starts) & (np.arange(length) < starts + 2 * step))
        blocks.append(np.kron(*sides))
    hidden = scipy.linalg.block_diag(*blocks).astype(bool)
    whole = problem.scores(problem.hidden(np.zeros((1, problem.units))))
    falls = whole - problem.scores(problem.hidden(hidden))
    return problem.from_units((falls @ hidden) / np.maximum(hidden.sum(axis=0), 1))
