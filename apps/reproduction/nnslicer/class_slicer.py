"""Slices of samples with the profile of the class predicted for each, as in the paper's program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import ClassProfiles, Criterion, Slice, Slicer, SliceSet


class ClassSlicer:
    """Computes slices of samples, using the profile of the class predicted for each.

    `options` are further arguments of `Slicer`.
    """

    def __init__(self, im: InstrumentedModel, profiles: ClassProfiles, **options: Any) -> None:
        self.im = im
        self.profiles = profiles
        self._slicers = {c: Slicer(im, profile, **options) for c, profile in profiles.items()}

    def __getitem__(self, target: int) -> Slicer:
        """Return the slicer with the profile of one class."""
        self.profiles[target]  # raises an error for unknown classes
        return self._slicers[target]

    def slice(self, x: np.ndarray, outputs: Any | Criterion = "predicted") -> Slice:
        """Return the slice for all samples together; see `Slicer.slice`."""
        x, groups = self._grouped(x)
        first, *others = [self[c].slice(x[rows], outputs) for c, rows in groups]
        for other in others:
            first = first + other
        return first

    def slice_each(
        self,
        x: np.ndarray,
        outputs: Any | Criterion = "predicted",
        kernels: Sequence[str] | None = None,
        operations: Sequence[str] | None = None,
    ) -> SliceSet:
        """Return one slice for each sample, in their order; see `Slicer.slice_each`."""
        x, groups = self._grouped(x)
        sets = [self[c].slice_each(x[rows], outputs, kernels, operations) for c, rows in groups]
        back = np.argsort(np.concatenate([rows for _, rows in groups]))
        has_neurons = sets[0].neuron_matrix is not None
        return SliceSet(
            sp.vstack([s.matrix for s in sets], "csr")[back],
            sp.vstack([s.neuron_matrix for s in sets], "csr")[back] if has_neurons else None,
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
