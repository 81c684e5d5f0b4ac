"""Target classes: validation and accuracies."""

from collections.abc import Iterable

import numpy as np

from nnslicer_tf._checks import as_array, check_labels, is_int
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

Scores = dict[str, np.ndarray]


def check_classes(
    im: InstrumentedModel, y: np.ndarray, classes: Iterable[int] | None = None
) -> list[int]:
    """Return the target classes in order, by default all of `y`; reject unknown and unseen ones.

    Numbers have no classes: one target, 0, stands for all of them.
    """
    kind = im.classes
    present = np.unique(kind.truth(y, len(as_array(y))))
    if kind.is_number:
        if classes is not None:
            raise InvalidArgumentError(
                f"Model '{im.model.name}' predicts numbers, which have no classes: omit `classes`. "
                f"{kind.remark}"
            )
        return [0]
    targets = present.tolist() if classes is None else sorted(set(classes))
    if not targets:
        raise InvalidArgumentError("The set of target classes is empty: name at least one.")
    for target in targets:
        if not is_int(target) or not 0 <= target < kind.count:
            raise InvalidArgumentError(
                f"The model has no class {target!r}: its classes are 0 … {kind.count - 1}."
            )
        if target not in present:
            raise InvalidArgumentError(f"There are no samples of class {target}.")
    return [int(target) for target in targets]


def subset_figures(logits: np.ndarray, y: np.ndarray, targets: Iterable[int]) -> dict[str, float]:
    """Return a model's accuracies from its logits, by kind of samples.

    They are "all", "targets" (of target classes), "others" (NaN if there are none), and
    "among_targets" (those of target classes, if only target classes may be predicted).
    """
    targets, y = sorted(targets), check_labels(y, len(logits))
    in_targets = np.isin(y, targets)
    right = logits.argmax(axis=1) == y
    among = np.take(targets, logits[:, targets].argmax(axis=1)) == y
    return {
        "targets": float(right[in_targets].mean()),
        "others": float(right[~in_targets].mean()) if not in_targets.all() else float("nan"),
        "all": float(right.mean()),
        "among_targets": float(among[in_targets].mean()),
    }
