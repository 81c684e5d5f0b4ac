"""Units that follow hypotheses, to prune the others."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from nnslicer_tf.deepbase.inspection import unit_scores
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike


def following_units(
    frame: pd.DataFrame,
    im: ModelLike,
    hypotheses: Iterable[str],
    at_least: float,
    measure: str = "correlation",
) -> dict[str, np.ndarray]:
    """Return the units that follow at least one of some hypotheses, for `pruning.remove_units`.

    Units that were not inspected are kept; those without a defined score, such as dead ones, follow
    nothing. Operations keep at least the unit closest to a hypothesis, and layers with several
    operations all that one of them keeps.

    Args:
        frame: The result of `inspect` for one model.
        im: The model.
        hypotheses: Names of hypotheses, for example the classes that matter.
        at_least: Smallest |score| of a unit that follows a hypothesis.
        measure: A measure with a score for every unit.

    Returns:
        Layer name → bool mask `(units,)`.

    Raises:
        InvalidArgumentError: if the frame has no such scores or several models, or a group is not
            an operation of the model.
    """
    im = instrumented(im)
    names = list(hypotheses)
    scores = unit_scores(frame, measure)
    scores = scores[scores["hypothesis"].isin(names)]
    missing = set(names) - set(scores["hypothesis"])
    if missing or scores["model"].nunique() != 1:
        raise InvalidArgumentError(
            f"The frame must have scores of one model for {names}. It has models "
            f"{list(frame['model'].unique())}, and lacks {sorted(missing)}."
        )
    masks: dict[str, np.ndarray] = {}
    for group, rows in scores.groupby("group", sort=False):
        operation = im[group]
        largest = rows["score"].abs().groupby(rows["unit"]).max().fillna(0.0)
        indices, values = largest.index.to_numpy(int), largest.to_numpy(float)
        mask = np.ones(operation.shape[-1], bool)
        mask[indices] = values >= at_least
        mask[indices[values.argmax()]] |= not mask.any()
        masks[operation.layer] = masks.get(operation.layer, False) | mask
    return masks
