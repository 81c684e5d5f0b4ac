"""Conclusions from an inspection: the best units for each hypothesis."""

import pandas as pd

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError


def best_units(frame: pd.DataFrame, count: int = 3, measure: str = "correlation") -> pd.DataFrame:
    """Return, for each model and hypothesis, the units with the largest |score|.

    Args:
        frame: The result of `inspect`.
        count: Units per hypothesis.
        measure: A measure with a score for every unit.

    Raises:
        InvalidArgumentError: if the frame has no such scores.
    """
    scores = unit_scores(frame, measure)
    order = scores["score"].abs().sort_values(ascending=False, kind="stable").index
    best = scores.loc[order].groupby(["model", "hypothesis"], sort=False).head(count)
    return best.sort_values(["model", "hypothesis"], kind="stable").reset_index(drop=True)


def unit_scores(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return the rows of a frame with a measure's scores of single units."""
    check_name("measure", measure, frame["measure"].unique())
    scores = frame[(frame["measure"] == measure) & frame["unit"].notna()]
    if scores.empty:
        raise InvalidArgumentError(f"The frame has no {measure!r} scores of single units.")
    return scores.reset_index(drop=True)  # concatenated frames have repeated indices
