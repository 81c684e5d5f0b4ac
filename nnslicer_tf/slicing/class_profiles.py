"""Profiles by class: each sample is compared with the mean of its predicted class.

The paper's program does this, with 1,000 correctly classified training images of each class; the
paper itself uses one mean over the whole data set (NNSlicer, section 4.2).
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf._checks import check_labels
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.slicing.criterion import PREDICTED, Criterion, Outputs
from nnslicer_tf.slicing.profile import Profile
from nnslicer_tf.slicing.slice import Slice
from nnslicer_tf.slicing.slice_set import SliceSet
from nnslicer_tf.slicing.slicer import Slicer


class ClassProfiles(Mapping[int, Profile]):
    """The profile of each class: class → mean activations of the samples of that class.

    Args:
        by_class: The profiles by class.
    """

    def __init__(self, by_class: Mapping[int, Profile]) -> None:
        self._by_class = dict(by_class)

    def __getitem__(self, target: int) -> Profile:
        if target not in self._by_class:
            raise InvalidArgumentError(
                f"There is no profile of class {target!r}; there are some of "
                f"{', '.join(map(str, self))}. Profile samples that the model gives that class."
            )
        return self._by_class[target]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_class)

    def __len__(self) -> int:
        return len(self._by_class)

    @classmethod
    def from_data(
        cls,
        im: ModelLike,
        x: np.ndarray,
        y: np.ndarray | None = None,
        batch_size: int = 256,
        progress: bool = True,
    ) -> "ClassProfiles":
        """Profile a model separately for each class that it predicts.

        Args:
            im: The model; a Keras model is instrumented.
            x: Samples `(samples, *input_shape)`.
            y: Their classes `(samples,)`. If given, misclassified samples are left out, as in
                the paper's program.
            batch_size: Samples in one forward pass.
            progress: Show a progress bar.

        Raises:
            InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad data.
        """
        im = instrumented(im)
        x = im.check(x)
        predicted = im.classes.from_logits(im.logits(x, batch_size))
        used = np.ones(len(x), bool) if y is None else predicted == check_labels(y, len(x))
        return cls(
            {
                int(c): Profile.from_data(im, x[used & (predicted == c)], batch_size, progress)
                for c in np.unique(predicted[used])
            }
        )

    def __repr__(self) -> str:
        return f"ClassProfiles({len(self)} classes)"


class ClassSlicer:
    """Computes slices of samples, using the profile of the class predicted for each.

    Args:
        im: The model; a Keras model is instrumented.
        profiles: The model's profiles by class.
        options: Further arguments of `Slicer`, by name.

    Raises:
        InvalidArgumentError, ProfileMismatchError, UnsupportedLayerError: as in `Slicer`.
    """

    def __init__(self, im: ModelLike, profiles: ClassProfiles, **options: Any) -> None:
        im = instrumented(im)
        self.im = im
        self.profiles = profiles
        self._slicers = {c: Slicer(im, profile, **options) for c, profile in profiles.items()}

    def __getitem__(self, target: int) -> Slicer:
        """Return the slicer with the profile of one class.

        Raises:
            InvalidArgumentError: if there is no profile of the class.
        """
        self.profiles[target]  # raises an error for unknown classes
        return self._slicers[target]

    def slice(self, x: np.ndarray, outputs: Outputs | Criterion = PREDICTED) -> Slice:
        """Return the slice for all samples together; see `Slicer.slice`.

        Raises:
            InvalidArgumentError: if a predicted class has no profile.
        """
        x, groups = self._grouped(x)
        first, *others = [self[c].slice(x[rows], outputs) for c, rows in groups]
        for other in others:
            first = first + other
        return first

    def slice_each(
        self,
        x: np.ndarray,
        outputs: Outputs | Criterion = PREDICTED,
        kernels: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        folder: str | os.PathLike | None = None,
    ) -> SliceSet:
        """Return one slice for each sample, in their order; see `Slicer.slice_each`.

        Args:
            x: Samples `(samples, *input_shape)`.
            outputs: The neurons O.
            kernels: Names of the kernels whose synapses are kept; all by default.
            operations: Names of the operations whose neurons are kept; all by default.
            folder: Folder for the rows, from which an interrupted run resumes.

        Raises:
            InvalidArgumentError: if a predicted class has no profile.
        """
        x, groups = self._grouped(x)
        chosen = {
            "kernels": None if kernels is None else list(kernels),
            "operations": None if operations is None else list(operations),
        }
        sets = []
        for c, rows in groups:
            part = None if folder is None else os.path.join(folder, f"class{c}")
            sets.append(self[c].slice_each(x[rows], outputs, **chosen, folder=part))
        back = np.argsort(np.concatenate([rows for _, rows in groups]))
        has_neurons = sets[0].neuron_matrix is not None
        neurons = sp.vstack([s.neuron_matrix for s in sets], "csr")[back] if has_neurons else None
        return SliceSet(
            sp.vstack([s.matrix for s in sets], "csr")[back],
            neurons,
            sets[0].kernels,
            sets[0].operations,
            np.concatenate([s.predicted for s in sets])[back],
            sets[0].info,
        )

    def _grouped(self, x: np.ndarray) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
        """Return checked samples, and each predicted class with the indices of its samples."""
        x = self.im.check(x)
        predicted = self.im.classes.from_logits(self.im.logits(x))
        groups = [(int(c), np.flatnonzero(predicted == c)) for c in np.unique(predicted)]
        for c, _ in groups:
            self.profiles[c]  # raises an error for unknown classes before long work
        return x, groups
