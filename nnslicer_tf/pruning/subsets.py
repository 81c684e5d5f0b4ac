"""Sets of target classes, and a model's accuracy on them."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from nnslicer_tf._checks import as_generator, check_labels
from nnslicer_tf.errors import InvalidArgumentError


def draw_subsets(
    classes: int, size: int, count: int | None = None, rng: int | np.random.Generator = 0
) -> list[tuple[int, ...]]:
    """Return sets of target classes in lexicographic order: all of a given size, or random ones.

    Args:
        classes: Number of classes of the model.
        size: Number of classes in a set.
        count: Number of sets to draw; all by default.
        rng: Draws the sets.

    Raises:
        InvalidArgumentError: if sets of this size do not exist.
    """
    if not 1 <= size <= classes:
        raise InvalidArgumentError(f"There are no sets of {size} among {classes} classes.")
    every = list(combinations(range(classes), size))
    if count is None or count >= len(every):
        return every
    chosen = as_generator(rng).choice(len(every), count, replace=False)
    return [every[i] for i in sorted(chosen)]


def subset_figures(logits: np.ndarray, y: np.ndarray, targets: Iterable[int]) -> dict[str, float]:
    """Return a model's accuracies on the target classes and on the others.

    Args:
        logits: `(samples, classes)`.
        y: The classes, `(samples,)` integers, or one-hot.
        targets: The target classes.

    Returns:
        "targets": accuracy on the samples of target classes; "others": on the other
        samples (NaN if there are none); "all": on all samples; "among_targets": on the samples
        of target classes, if only target classes may be predicted.
    """
    targets, y = sorted(targets), check_labels(y, len(logits))
    chosen = np.isin(y, targets)
    right = logits.argmax(axis=1) == y
    among = np.take(targets, logits[:, targets].argmax(axis=1)) == y
    return {
        "targets": float(right[chosen].mean()),
        "others": float(right[~chosen].mean()) if not chosen.all() else float("nan"),
        "all": float(right.mean()),
        "among_targets": float(among[chosen].mean()),
    }
