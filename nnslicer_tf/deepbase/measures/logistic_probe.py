"""A logistic regression from all units of a group to each hypothesis.

It is not a function of sums, so records are kept: all up to a bound, then a uniform sample.
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from nnslicer_tf._checks import check_count
from nnslicer_tf.deepbase.measures.base import REPLICATES, Block, Measure, Scores, jackknife, lots

_HELD_OUT = 5  # a fifth of the records, drawn at random, is held out for scoring


@dataclass(frozen=True)
class LogisticProbe(Measure):
    """F1 of a logistic regression on held-out records (one in five), with the units' weights.

    Units are standardised, so that weights are comparable; the penalty is scikit-learn's default,
    ½‖w‖². NaN if no held-out record is or is predicted positive.

    Attributes:
        max_rows: Most rows to keep (records, or records times positions), at least 100.
    """

    name = "logistic_probe"
    binary = True
    max_rows: int = 20_000

    def __post_init__(self) -> None:
        check_count("max_rows", self.max_rows, 100)

    def summarise(self, block: Block, calibration: None) -> Block:
        """Keep the block's records, up to the bound."""
        limit = max(1, self.max_rows // block.units.shape[1])
        if len(block.indices) <= limit:
            return block
        # A record's lot depends only on its index, so samples of samples are uniform and
        # do not depend on how the data was divided into blocks.
        return block[np.sort(np.argpartition(lots(block.indices), limit)[:limit])]

    def merge(self, total: Block, part: Block) -> Block:
        """Keep both, or a uniform sample of both."""
        arrays = zip(vars(total).values(), vars(part).values(), strict=True)
        return self.summarise(Block(*map(np.concatenate, arrays)), None)

    def result(self, total: Block, calibration: None, confidence: float) -> Scores:
        """Fit four fifths of the records, and score the others."""
        drawn = lots(total.indices)
        held = drawn % _HELD_OUT == 0
        (x, y), (test_x, test_y) = total[~held].rows(), total[held].rows()
        units, hypotheses = x.shape[1], y.shape[1]
        if not len(x) or not len(test_x):
            nothing = np.full((1, hypotheses), np.nan)
            return Scores(nothing, nothing, np.full((units, hypotheses), np.nan))
        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale[scale == 0] = 1

        # Penalised logistic regressions on standardised units.
        standard = (x - mean) / scale

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weights, bias = flat[:-hypotheses].reshape(units, hypotheses), flat[-hypotheses:]
            z = standard @ weights + bias
            value = np.logaddexp(0, z).sum() - (y * z).sum() + (weights**2).sum() / 2
            change = special.expit(z) - y
            slopes = [(standard.T @ change + weights).ravel(), change.sum(axis=0)]
            return value / len(x), np.concatenate(slopes) / len(x)

        start = np.zeros((units + 1) * hypotheses)
        options = {"maxiter": 500, "ftol": 1e-12, "gtol": 1e-6}
        best = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
        weights, bias = best[:-hypotheses].reshape(units, hypotheses), best[-hypotheses:]

        # True positives and errors of each replicate, (REPLICATES, 2, hypotheses).
        predicted, truth = (test_x - mean) / scale @ weights + bias > 0, test_y > 0.5
        part = (drawn[held] // _HELD_OUT % REPLICATES).astype(int)
        part = np.repeat(part, total.units.shape[1])
        counts = np.zeros((REPLICATES, 2, hypotheses))
        np.add.at(counts[:, 0], part, predicted & truth)
        np.add.at(counts[:, 1], part, predicted != truth)
        score = _f1(counts.sum(axis=0))
        parts = np.stack([_f1(counts.sum(axis=0) - counts[i]) for i in np.unique(part)])
        # Replicates that are all 0, or all 1, do not differ: a bound on what was never seen.
        least = 1 - (1 - confidence) ** (1 / np.maximum(truth.sum(axis=0), 1))
        error = jackknife(score, parts, confidence)
        return Scores(score, np.where(score % 1 == 0, np.fmax(error, least), error), weights)


def _f1(counts: np.ndarray) -> np.ndarray:
    """Return F1 `(1, hypotheses)` from counts `(2, hypotheses)`."""
    right, wrong = counts
    with np.errstate(invalid="ignore"):
        return (2 * right / (2 * right + wrong))[None]
