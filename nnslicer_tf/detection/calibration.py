"""Turn normal inputs' anomaly scores into thresholds and p-values, assuming no distribution."""

from typing import Any

import numpy as np
from scipy.stats import beta

from nnslicer_tf._checks import as_array, check_number, counted
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError


def as_scores(scores: Any, samples: int, source: str) -> np.ndarray:
    """Return the anomaly scores that a method, `source`, computed, `(samples,)` finite float64."""
    expected = f"{source} must return one finite number for each of {counted(samples, 'input')}"
    try:
        array = as_array(scores)
    except InputShapeError as error:
        raise InvalidArgumentError(f"{expected}. Received: lists of several lengths") from error
    if array.shape != (samples,) or array.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"{expected}. Received: {array.dtype} of shape {array.shape}")
    values = array.astype(np.float64)
    if (bad := ~np.isfinite(values)).any():
        index = int(bad.argmax())
        raise InvalidArgumentError(f"{expected}. Received: {values[index]} for input {index}")
    return values


def threshold_at(normal_scores: np.ndarray, rate: float) -> float:
    """Return the threshold that a new normal input exceeds with probability ≤ `rate`.

    It is the ⌈(n + 1)(1 - rate)⌉-th smallest of n scores that were not used for learning. For
    exchangeable inputs the bound holds for every n, on average over draws of the normal inputs.
    Raises InvalidArgumentError if n < 1/rate - 1.
    """
    rate = check_number("false_positive_rate", rate, "(0, 1)")
    scores = np.sort(np.asarray(normal_scores, np.float64))
    # Rounded first: (n + 1)(1 - rate) may be a whole number that floats miss by an ulp.
    rank = int(np.ceil(round((len(scores) + 1) * (1 - rate), 9)))
    if rank > len(scores):
        raise InvalidArgumentError(
            f"A false-positive rate of {rate:g} needs at least "
            f"{np.ceil(min(1 / rate, 1e300)) - 1:.10g} held-out normal inputs. There are "
            f"{len(scores)}: fit on more, hold out more, or choose a higher rate."
        )
    return float(scores[rank - 1])


def false_alarms(
    normal_scores: np.ndarray, threshold: float, fixed: bool
) -> tuple[float, float, float]:
    """Return the share of held-out scores above a threshold, and a 95 % interval of the rate.

    Of a threshold that was `fixed` beforehand, it is Clopper and Pearson's. One that is the k-th
    smallest of n held-out scores is exceeded by a new score with a probability that has, over draws
    of these inputs, the distribution Beta(n + 1 − k, k), for any continuous distribution of the
    scores. Scores that tie are not continuous: the rate can be lower, and is 0 at a threshold that
    is the largest possible score. The lower end is then Clopper and Pearson's, too.
    """
    count = len(normal_scores)
    above = int((normal_scores > threshold).sum())
    fixed = fixed or len(np.unique(normal_scores)) < count
    low = beta.ppf(0.025, above + (not fixed), count - above + fixed) if above or not fixed else 0.0
    high = beta.ppf(0.975, above + 1, count - above) if above < count else 1.0
    return above / count, float(low), float(high)


def p_values(scores: np.ndarray, normal_scores: np.ndarray, two_sided: bool = False) -> np.ndarray:
    """Return the p-value of each score among those of normal inputs, (N,) float64.

    p = (1 + #{normal ≥ score}) / (1 + n), never 0. If `two_sided`, low scores have small p too.
    Scores that differ by rounding alone, as of one input in other batches, are equal.
    """
    normal = np.sort(np.asarray(normal_scores, np.float64))
    rounding = 1e-6 * np.abs(normal[np.isfinite(normal)]).max(initial=0)
    higher = len(normal) - np.searchsorted(normal, np.asarray(scores) - rounding, side="left")
    high = (1 + higher) / (1 + len(normal))
    if not two_sided:
        return high
    return np.minimum(1.0, 2 * np.minimum(high, p_values(-np.asarray(scores), -normal)))


def surprise(scores: np.ndarray, normal_scores: np.ndarray, two_sided: bool = False) -> np.ndarray:
    """Return -log p of scores, (N,)."""
    return -np.log(p_values(scores, normal_scores, two_sided))
