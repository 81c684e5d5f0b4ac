"""Occlusion (Zeiler and Fergus, ECCV 2014) and RISE (Petsiuk et al., BMVC 2018).

Both hide parts of the input and need only outputs. Cost: a forward pass per window (at most about
200 for an image, one per column or token), or per random mask.
"""

from typing import Any

import numpy as np
import scipy.linalg

from nnslicer_tf._checks import as_generator, check_count
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import TargetLike

_PLACES = 14  # positions of the window along an axis of an image
_CELLS = 7  # of a random mask along an axis of an image


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
            starts = range(1 - step, length, step) if step > 1 else range(length)
            place = np.arange(length)
            sides.append(np.array([(place >= s) & (place < s + 2 * step) for s in starts]))
        blocks.append(np.kron(*sides))
    hidden = scipy.linalg.block_diag(*blocks).astype(bool)
    whole = problem.scores(problem.hidden(np.zeros((1, problem.units))))
    falls = whole - problem.scores(problem.hidden(hidden))
    return problem.from_units((falls @ hidden) / np.maximum(hidden.sum(axis=0), 1))


def rise(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    samples: int = 1000,
    rng: int | np.random.Generator = 0,
) -> Any:
    """Return how much higher the mean score is over the masks that show a feature than over others.

    RISE's value is the first mean; the difference keeps the order and gives the sign a meaning.
    Each of the `samples` random masks hides half of the input; on images they are coarse grids,
    enlarged and shifted at random.
    """
    import cv2

    check_count("samples", samples)
    problem = Problem(im, x, baseline, target)
    random = as_generator(rng)
    blocks: list[np.ndarray] = []  # of masks from 0 to 1, where 1 shows a unit
    for shape in problem.unit_shapes.values():
        if len(shape) != 2 or min(shape) < _CELLS:
            blocks.append(random.random((samples, int(np.prod(shape)))) < 0.5)
            continue
        height, width = shape
        cells = [-(-length // _CELLS) for length in shape]
        grids = (random.random((samples, _CELLS, _CELLS)) < 0.5).astype(np.float32)
        tops, lefts = (random.integers(0, cell, samples) for cell in cells)
        masks = np.empty((samples, height, width))
        size = (width + cells[1], height + cells[0])
        for i, (grid, top, left) in enumerate(zip(grids, tops, lefts, strict=True)):
            large = cv2.resize(grid, size, interpolation=cv2.INTER_LINEAR)
            masks[i] = large[top : top + height, left : left + width]
        blocks.append(masks.reshape(samples, -1))
    shown = np.concatenate(blocks, axis=1).astype(np.float64)
    scores = problem.scores(problem.hidden(1 - shown))
    with_it = (scores @ shown) / np.maximum(shown.sum(axis=0), 1e-9)
    without = (scores @ (1 - shown)) / np.maximum((1 - shown).sum(axis=0), 1e-9)
    return problem.from_units(with_it - without)
