"""`ChallengeResult`: how well a detector withstands adaptive attacks."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_name, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.detection.adaptive.table import ADAPTIVE_ATTACKS, WHITE

# The palette of Okabe and Ito, as in `report.palette`.
_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7"),
    *("#d55e00", "#56b4e9", "#8f6300", "#222222"),
)
MODEL, PAIR = "model alone", "model and detector"


@dataclass(frozen=True)
class Check:
    """A sanity check of the attacks, with its figures in words."""

    name: str
    passed: bool
    said: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of the attacks in one norm; changes are infinite where no attack succeeded.

    Attributes:
        budgets: (B,) ascending.
        undefended: (N,) smallest change that misleads the model.
        attacks: Attack → (N,) smallest change that evades the pair.
        runs: One row for each attack and budget (infinite if unlimited), with the share of images
            on which that run alone succeeded.
        examples: (N, *input_shape) the nearest inputs that evade the pair, else the images.
    """

    budgets: np.ndarray
    undefended: np.ndarray
    attacks: dict[str, np.ndarray]
    runs: pd.DataFrame
    examples: np.ndarray

    @property
    def pair(self) -> np.ndarray:
        """The smallest change by which any attack evades the pair, (N,)."""
        return np.min(list(self.attacks.values()), axis=0)


@dataclass(frozen=True, eq=False, repr=False)
class ChallengeResult(ShownAsTable):
    """The outcome of `challenge`.

    If a check fails, the attacks are at fault or the detector masks its gradients, and nothing is
    known about the detector's robustness.

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
        if self.credible:
            return "credible"
        return "not credible: " + "; ".join(self.reasons)

    def success(self, budget: float | None = None, norm: str | None = None) -> pd.DataFrame:
        """Return the share of images with a successful change within a budget.

        Args:
            budget: A budget; None: all that were tried.
            norm: `"linf"` or `"l2"`; None: all.

        Returns:
            Columns `norm`, `budget`, `model alone`, `model and detector`.
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

        Returns:
            Columns `norm`, `attack`, `kind`, `median` (smallest change, median over the images;
            infinite if most images withstand), `ratio` (to the median of the model alone), `best`
            (share of images on which it is the best attack) and `≤ 1×`, …: share of images with a
            success within that multiple of the undefended median.
        """
        rows = []
        for norm, outcome in self.norms.items():
            base = _median(outcome.undefended)
            best = self._best(outcome)
            named = {MODEL: outcome.undefended, PAIR: outcome.pair, **outcome.attacks}
            for name, distances in named.items():
                attack = ADAPTIVE_ATTACKS.get(name)
                row = {
                    "norm": norm,
                    "attack": name,
                    "kind": attack.kind if attack else "best of all",
                    "median": _median(distances),
                    "ratio": _median(distances) / base,
                    "best": float(np.mean(best == name)) if attack else np.nan,
                }
                rows.append(row | {f"≤ {m:g}×": _share(distances, m * base) for m in (1, 2, 4)})
        return pd.DataFrame(rows)

    def images(self) -> pd.DataFrame:
        """Return one row for each norm and image: the smallest changes, and the best attack.

        Returns:
            Columns `norm`, `image` (index among those given), `model alone`, `model and detector`,
            `attack` (empty if none succeeded).
        """
        columns: dict[str, list] = {"norm": [], "image": [], MODEL: [], PAIR: [], "attack": []}
        for norm, outcome in self.norms.items():
            columns["norm"] += [norm] * len(self.index)
            columns["image"] += self.index.tolist()
            columns[MODEL] += outcome.undefended.tolist()
            columns[PAIR] += outcome.pair.tolist()
            columns["attack"] += self._best(outcome).tolist()
        return pd.DataFrame(columns)

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
        figure.suptitle(
            "The attacks pass their checks" if self.credible else "Not credible: a check failed"
        )
        return figure

    def __repr__(self) -> str:
        parts = [
            f"{norm}: median {_median(o.undefended):.3g} alone, {_median(o.pair):.3g} with detector"
            for norm, o in self.norms.items()
        ]
        return (
            f"ChallengeResult({counted(len(self.index), 'image')}; {'; '.join(parts)}; "
            f"{self.verdict})"
        )

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
