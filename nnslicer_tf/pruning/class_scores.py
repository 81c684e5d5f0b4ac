"""Target classes: scores by class, which sum to those of any set of classes, and accuracies."""

import os
from collections.abc import Iterable

import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_array, check_labels, counted, is_int
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.outputs import check_classifier

Scores = dict[str, np.ndarray]

_FORMAT = "nnslicer_tf class scores 1"


class ClassScores(ShownAsTable, dict[int, Scores]):
    """The scores of each class: class → kernel name → array of the kernel's shape."""

    def total(self, classes: Iterable[int] | None = None) -> Scores:
        """Return the sum of the scores of a set of target classes.

        Args:
            classes: The target classes; all by default.

        Raises:
            InvalidArgumentError: if the set is empty, or contains a class without scores.
        """
        targets = list(self) if classes is None else sorted(set(classes))
        if not targets:
            raise InvalidArgumentError("The set of target classes is empty: name at least one.")
        for target in targets:
            if target not in self:
                raise InvalidArgumentError(
                    f"There are no scores for class {target!r}; there are some for "
                    f"{', '.join(map(str, self))}."
                )
        return {
            name: sum((self[c][name] for c in targets), np.zeros_like(score))
            for name, score in self[targets[0]].items()
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the number of synapses with a score, for each class and kernel."""
        rows = [
            (target, name, int(np.count_nonzero(score)), score.size)
            for target, scores in self.items()
            for name, score in scores.items()
        ]
        return pd.DataFrame(rows, columns=["class", "kernel", "scored", "synapses"])

    def save(self, path: str | os.PathLike) -> None:
        """Write the scores to an .npz file; an older file is replaced only by a complete one."""
        kernels = list(next(iter(self.values()), {}))
        header = {"classes": [int(target) for target in self], "kernels": kernels}
        arrays = {f"{c}/{i}": self[c][name] for c in self for i, name in enumerate(kernels)}
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ClassScores":
        """Read scores; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "file of class scores") as file:
            classes, kernels = file.value("classes", list), file.names("kernels")
            scores = {
                int(c): {n: file.array(f"{c}/{i}", np.number) for i, n in enumerate(kernels)}
                for c in classes
            }
            shapes = [[score.shape for score in of_class.values()] for of_class in scores.values()]
            file.check(shapes[1:] == shapes[:-1], "its classes have scores of different shapes")
            return cls(scores)

    def __repr__(self) -> str:
        synapses = sum(score.size for score in next(iter(self.values()), {}).values())
        return f"ClassScores({counted(len(self), 'class')}, {counted(synapses, 'synapse')})"


def check_classes(
    im: InstrumentedModel, y: np.ndarray, classes: Iterable[int] | None = None
) -> list[int]:
    """Return the target classes in order, by default all of `y`; reject unknown and unseen ones."""
    count = check_classifier(im)
    present = np.unique(check_labels(y, len(as_array(y)), count))
    targets = present.tolist() if classes is None else sorted(set(classes))
    if not targets:
        raise InvalidArgumentError("The set of target classes is empty: name at least one.")
    for target in targets:
        if not is_int(target) or not 0 <= target < count:
            raise InvalidArgumentError(
                f"The model has no class {target!r}: its classes are 0 … {count - 1}."
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
