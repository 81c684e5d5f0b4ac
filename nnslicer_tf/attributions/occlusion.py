"""Occlusion (Zeiler and Fergus, ECCV 2014).

It hides parts of the input and needs only outputs. Cost: a forward pass per window: at most about
200 for an image, one per column or token.
"""

from typing import Any

import numpy as np
import scipy.linalg

from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import TargetLike

_PLACES = 14  # positions of the window along an axis of an image


def occlusion(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return, for each feature, the mean decrease of the score over the windows that hide it.

    Windows are squares with all channels; their side is twice the step, a fourteenth of the image.
    Columns of tables, steps of sequences and tokens are hidden one at a time.
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
