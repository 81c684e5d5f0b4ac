"""Metrics of attributions: `deletion` and `insertion` (Petsiuk et al., "RISE", BMVC 2018).

Section 4.2 defines them. Values equal those of Xplique 2.0. Each point costs a forward pass.

Models, samples, baselines, targets and errors are those of `attributions.Attribution`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_count
from nnslicer_tf._environment import staged
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import TargetLike


@dataclass(frozen=True, eq=False)
class Curve:
    """The answer as units (pixels, tokens, columns) are hidden or shown."""

    shares: np.ndarray  # share of the units, ascending from 0 to 1
    answers: np.ndarray  # probability of the class, or the explained value, at each share

    @property
    def area(self) -> float:
        """Area under the curve: the mean answer."""
        return float(np.trapezoid(self.answers, self.shares))


def curves(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    methods: Mapping[str, Any],
    steps: int = 40,
    rows: Any = None,
    features: np.ndarray | None = None,
) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Return the deletion and the insertion curves of attributions by several methods.

    Args:
        im: The model.
        x: A sample.
        baseline: Values that replace hidden units. A unit is a pixel, token or time step with all
            its channels, or an entry of a sample with one axis.
        target: What is explained.
        methods: Method → its attributions; ties are broken at random, with a fixed seed.
        steps: Number of points after the first, at least 1.
        rows: Background rows, a batch; each replaces hidden units, and answers are means.
        features: Index of each unit's feature, `(units,)`; units of one are hidden together.
    """
    check_count("steps", steps)
    baselines = [baseline] if rows is None else [rows[i] for i in range(len(rows))]
    problems = [Problem(im, x, one, target) for one in baselines]
    features = np.arange(problems[0].units) if features is None else features
    units = int(features.max()) + 1
    shuffled = np.random.default_rng(0).permutation(units)  # breaks ties
    counts = np.linspace(0, units, steps + 1).astype(int)
    shares = np.linspace(0, 1, steps + 1)
    masks = []
    for values in methods.values():
        of_units = np.bincount(features, weights=problems[0].of_units(values))
        ranks = np.empty(units, int)
        ranks[shuffled[np.argsort(-of_units[shuffled], kind="stable")]] = np.arange(units)
        is_first = (ranks < counts[:, None])[:, features]
        masks += [is_first, ~is_first]
    hidden = np.concatenate(masks)
    of_rows = staged(problems, "row", len(problems))
    answers = np.mean([one.answers(one.hidden(hidden)) for one in of_rows], axis=0)
    found = [Curve(shares, of_masks) for of_masks in answers.reshape(len(masks), -1)]
    return dict(zip(methods, found[::2], strict=True)), dict(zip(methods, found[1::2], strict=True))


def deletion(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, values: Any, steps: int = 40
) -> Curve:
    """Return the answer as the units of largest `values` are hidden; smaller areas are better."""
    return curves(im, x, baseline, target, {"": values}, steps)[0][""]


def insertion(
    im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike, values: Any, steps: int = 40
) -> Curve:
    """Return the answer as the units of largest `values` are shown; larger areas are better."""
    return curves(im, x, baseline, target, {"": values}, steps)[1][""]
