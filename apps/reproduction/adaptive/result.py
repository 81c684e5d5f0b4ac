"""`ChallengeResult`: how well a detector withstands adaptive attacks, and checks of these."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_name, counted
from nnslicer_tf._tables import ShownAsTable
from reproduction.adaptive.table import ADAPTIVE_ATTACKS, WHITE

# The palette of Okabe and Ito, as in `report.palette`.
_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8f6300", "#222222"]
MODEL, PAIR, ALL = "model alone", "model and detector", "best of all"

# Differences between shares of images up to this size are not significant.
_TOLERANCE = 0.05
MIN_CORRELATION = 0.8
MAX_WITHOUT_GRADIENT = 0.1


@dataclass(frozen=True)
class Check:
    """A sanity check of the attacks, with its figures in words."""

    name: str
    passed: bool
    said: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of the attacks in one norm; changes are infinite where no attack succeeded."""

    budgets: np.ndarray  # (B,) ascending
    undefended: np.ndarray  # (N,) smallest change that misleads the model
    attacks: dict[str, np.ndarray]  # attack → (N,) smallest change that evades the pair
    # One row for each attack and budget (infinite if unlimited): the share of successes.
    runs: pd.DataFrame
    examples: np.ndarray  # (N, *input_shape) nearest inputs that evade the pair, else the images

    @property
    def pair(self) -> np.ndarray:
        """The smallest change by which any attack evades the pair, (N,)."""
        return np.min(list(self.attacks.values()), axis=0)


@dataclass(frozen=True, eq=False, repr=False)
class ChallengeResult(ShownAsTable):
    """The outcome of `challenge`.

    If a check fails, nothing is known about the detector's robustness: the attacks are at fault, or
    the detector masks its gradients.

    Attributes:
        norms: Norm → the outcome in that norm.
        index: (N,) which of the given images were attacked: those classified correctly.
        false_positives: Share of these images, unchanged, that the detector flags.
        checks: The sanity checks.
    """

    norms: Mapping[str, Outcome]
    index: np.ndarray
    false_positives: float
    checks: tuple[Check, ...]

    @property
    def credible(self) -> bool:
        """Whether all sanity checks passed; if not, see `reasons`."""
        return all(check.passed for check in self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the result is not credible; empty if it is."""
        return tuple(f"{c.name}: {c.said}" for c in self.checks if not c.passed)

    @property
    def verdict(self) -> str:
        """`"credible"`, or `"not credible"` with the reasons. Never "robust"."""
        return "credible" if self.credible else f"not credible: {'; '.join(self.reasons)}"

    def success(self, budget: float | None = None, norm: str | None = None) -> pd.DataFrame:
        """Return the share of images with a successful change within a budget; None: all budgets.

        Columns are `norm` ("linf" or "l2"; None: both), `budget`, `model alone`, `model and
        detector`.
        """
        if norm is not None:
            check_name("norm", norm, self.norms)
        rows = []
        for name, outcome in self.norms.items():
            if norm in (None, name):
                for limit in outcome.budgets if budget is None else [budget]:
                    shares = [_share(outcome.undefended, limit), _share(outcome.pair, limit)]
                    rows.append((name, float(limit), *shares))
        return pd.DataFrame(rows, columns=["norm", "budget", MODEL, PAIR])

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each norm and attack, the model alone and the pair's best first.

        Columns are `norm`, `attack`, `kind`, `median` (of the smallest changes; infinite if most
        images withstand), `ratio` (to the median of the model alone), `best` (share of images on
        which it is the best attack) and `≤ 1×`, …: share of images with a success within that
        multiple of the undefended median.
        """
        rows = []
        for norm, outcome in self.norms.items():
            base = _median(outcome.undefended)
            best = self._best(outcome)
            named = {MODEL: outcome.undefended, PAIR: outcome.pair, **outcome.attacks}
            for name, distances in named.items():
                attack = ADAPTIVE_ATTACKS.get(name)
                kind, beats = (attack.kind, np.mean(best == name)) if attack else (ALL, np.nan)
                median = _median(distances)
                row = {"norm": norm, "attack": name, "kind": kind, "median": median}
                row |= {"ratio": median / base, "best": float(beats)}
                rows.append(row | {f"≤ {m:g}×": _share(distances, m * base) for m in (1, 2, 4)})
        return pd.DataFrame(rows)

    def images(self) -> pd.DataFrame:
        """Return one row for each norm and image: the smallest changes, and the best attack.

        `image` is its index among those given; `attack` is empty if none succeeded.
        """
        parts = []
        for norm, outcome in self.norms.items():
            columns = {"norm": norm, "image": self.index, MODEL: outcome.undefended}
            columns |= {PAIR: outcome.pair, "attack": self._best(outcome)}
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def plot(self) -> Figure:
        """Plot the success rate by budget, for the model alone and for the pair."""
        figure = Figure(figsize=(5 * len(self.norms), 4), layout="constrained")
        axes = figure.subplots(1, len(self.norms), squeeze=False)[0]
        styles = {WHITE: "-", "black-box": ":", "transfer": "--"}
        for axis, (norm, outcome) in zip(axes, self.norms.items(), strict=True):
            places = np.linspace(0, outcome.budgets.max(), 200)
            lines = [
                (MODEL, outcome.undefended, "-", "#8a8f98", 1.5),
                (PAIR, outcome.pair, "-", "#00375c", 1.5),
            ]
            for colour, (name, distances) in zip(_COLOURS, outcome.attacks.items(), strict=False):
                style = styles[ADAPTIVE_ATTACKS[name].kind]
                lines.append((name, distances, style, colour, 0.9))
            for name, distances, style, colour, width in lines:
                shares = [_share(distances, b) for b in places]
                axis.plot(places, shares, style, color=colour, linewidth=width, label=name)
            axis.set_ylim(-0.02, 1.02)
            axis.grid(alpha=0.3)
            axis.set(title=norm.replace("linf", "L∞").replace("l2", "L2"), xlabel="largest change")
            axis.set_ylabel("share of images with a success")
        figure.axes[0].legend(fontsize=8)
        title = "The attacks pass their checks" if self.credible else "Not credible: a check failed"
        figure.suptitle(title)
        return figure

    def __repr__(self) -> str:
        parts = [
            f"{norm}: median {_median(o.undefended):.3g} alone, {_median(o.pair):.3g} with detector"
            for norm, o in self.norms.items()
        ]
        images = counted(len(self.index), "image")
        return f"ChallengeResult({images}; {'; '.join(parts)}; {self.verdict})"

    @staticmethod
    def _best(outcome: Outcome) -> np.ndarray:
        """Return the name of the best attack on each image, (N,); empty where none succeeded."""
        names = np.array(list(outcome.attacks))
        distances = np.stack(list(outcome.attacks.values()))
        return np.where(np.isfinite(distances.min(axis=0)), names[distances.argmin(axis=0)], "")


def _median(distances: np.ndarray) -> float:
    """Return the median, with infinite values included."""
    ordered = np.sort(distances)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(middle[0] if middle[0] == middle[1] else np.mean(middle))


def _share(distances: np.ndarray, budget: float) -> float:
    # A change as large as the budget counts, despite the rounding of float32.
    return float(np.mean(distances <= budget * (1 + 1e-5)))


# --- sanity checks (Carlini et al., "On evaluating adversarial robustness", 2019; Tramèr et al.,
# NeurIPS 2020) ---


def check_outcomes(norms: Mapping[str, Outcome]) -> tuple[Check, Check, Check]:
    """Check that unbounded attacks succeed, success grows with budgets, and white-box is best."""
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
