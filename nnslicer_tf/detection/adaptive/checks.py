"""Sanity checks of adaptive attacks: if one fails, a detector's results mean nothing.

Based on Carlini et al., "On evaluating adversarial robustness" (2019), and Tramèr et al., "On
adaptive attacks to adversarial example defenses" (NeurIPS 2020).
"""

from collections.abc import Mapping

import numpy as np

from nnslicer_tf.detection.adaptive.result import Check, Outcome
from nnslicer_tf.detection.adaptive.table import ADAPTIVE_ATTACKS, WHITE

# Differences between shares of images up to this size are not significant.
_TOLERANCE = 0.05
_CORRELATION = 0.8
_WITHOUT_GRADIENT = 0.1


def unbounded(norms: Mapping[str, Outcome]) -> Check:
    """Check that attacks that start at the image always succeed when unbounded."""
    worst = {
        norm: 1.0
        if outcome.runs.empty
        else float(outcome.runs.loc[outcome.runs["budget"] == np.inf, "together"].max())
        for norm, outcome in norms.items()
    }
    said = ", ".join(f"{share:.0%} in {norm}" for norm, share in worst.items())
    return Check("without a bound, every image", all(v == 1 for v in worst.values()), said)


def monotone(norms: Mapping[str, Outcome]) -> Check:
    """Check that success does not drop as the budget grows: each budget is attacked separately."""
    falls = []
    for norm, outcome in norms.items():
        finite = outcome.runs[np.isfinite(outcome.runs["budget"])]
        shares = finite.groupby("budget")["together"].max().sort_index()
        falls += [
            f"from {one:.0%} to {other:.0%} at {budget:.3g} in {norm}"
            for one, other, budget in zip(shares, shares[1:], shares.index[1:], strict=False)
            if other < one - _TOLERANCE
        ]
    return Check("larger budgets reach more", not falls, "; ".join(falls) or "no falls")


def strongest(norms: Mapping[str, Outcome]) -> Check:
    """Check that white-box attacks are no weaker than those without gradients."""
    behind, most = [], 0.0
    for norm, outcome in norms.items():
        kinds = {name: ADAPTIVE_ATTACKS[name].kind for name in outcome.attacks}
        white = [d for name, d in outcome.attacks.items() if kinds[name] == WHITE]
        others = [d for name, d in outcome.attacks.items() if kinds[name] != WHITE]
        if not white or not others:
            continue
        for budget in outcome.budgets:
            limit = budget * (1 + 1e-5)
            theirs, ours = (np.mean(np.min(d, axis=0) <= limit) for d in (others, white))
            most = max(most, theirs - ours)
            if theirs > ours + _TOLERANCE:
                behind.append(f"{ours:.0%} against {theirs:.0%} at {budget:.3g} in {norm}")
    said = "; ".join(behind) or f"others at most {most:.0%} ahead"
    return Check("white-box no weaker than black-box and transfer", not behind, said)


def correlated(surrogate: np.ndarray, true: np.ndarray) -> Check:
    """Check that the surrogate's scores rank inputs as the true ones do."""
    from scipy.stats import spearmanr

    name = "surrogate's score like the true one"
    if np.ptp(true) == 0 or np.ptp(surrogate) == 0:
        return Check(name, False, "the score is the same for all inputs")
    value = float(spearmanr(surrogate, true).statistic)
    return Check(name, value >= _CORRELATION, f"rank correlation {value:.2f}")


def sloping(gradients: np.ndarray) -> Check:
    """Check that the detector's score has a gradient at the images."""
    share = float(np.mean(np.abs(gradients.reshape(len(gradients), -1)).max(axis=1) == 0))
    said = f"gradient of the score is 0 on {share:.0%} of the images"
    return Check("the score has a gradient", share <= _WITHOUT_GRADIENT, said)
