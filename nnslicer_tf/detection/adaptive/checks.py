"""Sanity checks of adaptive attacks: if one fails, a detector's results mean nothing.

Based on Carlini et al., "On evaluating adversarial robustness" (2019), and Tramèr et al. (NeurIPS
2020).
"""

from collections.abc import Mapping

import numpy as np

from nnslicer_tf.detection.adaptive.result import Check, Outcome
from nnslicer_tf.detection.adaptive.table import ADAPTIVE_ATTACKS, WHITE

# Differences between shares of images up to this size are not significant.
_TOLERANCE = 0.05
MIN_CORRELATION = 0.8
MAX_WITHOUT_GRADIENT = 0.1


def check_outcomes(norms: Mapping[str, Outcome]) -> tuple[Check, Check, Check]:
    """Check the attacks by their success.

    Unbounded attacks that start at the image always succeed. Success does not drop as the budget
    grows. White-box attacks are no weaker than others.
    """
    worst, falls, behind, ahead = {}, [], [], 0.0
    for norm, outcome in norms.items():
        runs = outcome.runs
        unbounded = runs.loc[runs["budget"] == np.inf, "together"]
        worst[norm] = 1.0 if runs.empty else float(unbounded.max())
        shares = runs[np.isfinite(runs["budget"])].groupby("budget")["together"].max().sort_index()
        falls += [
            f"from {one:.0%} to {other:.0%} at {budget:.3g} in {norm}"
            for one, other, budget in zip(shares, shares[1:], shares.index[1:], strict=False)
            if other < one - _TOLERANCE
        ]
        is_white = {name: ADAPTIVE_ATTACKS[name].kind == WHITE for name in outcome.attacks}
        white = [d for name, d in outcome.attacks.items() if is_white[name]]
        others = [d for name, d in outcome.attacks.items() if not is_white[name]]
        for budget in outcome.budgets if white and others else ():
            limit = budget * (1 + 1e-5)
            theirs, ours = (np.mean(np.min(d, axis=0) <= limit) for d in (others, white))
            ahead = max(ahead, theirs - ours)
            if theirs > ours + _TOLERANCE:
                behind.append(f"{ours:.0%} against {theirs:.0%} at {budget:.3g} in {norm}")
    reached = ", ".join(f"{share:.0%} in {norm}" for norm, share in worst.items())
    said = "; ".join(behind) or f"others at most {ahead:.0%} ahead"
    return (
        Check("without a bound, every image", all(v == 1 for v in worst.values()), reached),
        Check("larger budgets reach more", not falls, "; ".join(falls) or "no falls"),
        Check("white-box no weaker than black-box and transfer", not behind, said),
    )


def check_scores(surrogate: np.ndarray, true: np.ndarray) -> Check:
    """Check that a surrogate's scores rank inputs as the true ones do."""
    from scipy.stats import spearmanr

    name = "surrogate's score like the true one"
    if np.ptp(true) == 0 or np.ptp(surrogate) == 0:
        return Check(name, False, "the score is the same for all inputs")
    value = float(spearmanr(surrogate, true).statistic)
    return Check(name, value >= MIN_CORRELATION, f"rank correlation {value:.2f}")


def check_gradients(gradients: np.ndarray) -> Check:
    """Check that the detector's score has a gradient at the images."""
    share = float(np.mean(np.abs(gradients.reshape(len(gradients), -1)).max(axis=1) == 0))
    said = f"gradient of the score is 0 on {share:.0%} of the images"
    return Check("the score has a gradient", share <= MAX_WITHOUT_GRADIENT, said)
