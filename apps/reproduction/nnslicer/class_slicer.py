"""Slices of samples with the profile of the class predicted for each, as in the paper's program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Criterion, Slicer, SliceSet
from reproduction.nnslicer.class_profiles import ClassProfiles


def slice_each_by_class(
    im: InstrumentedModel,
    profiles: ClassProfiles,
    x: np.ndarray,
    outputs: Any | Criterion = "predicted",
    kernels: Sequence[str] | None = None,
    operations: Sequence[str] | None = None,
    **options: Any,
) -> SliceSet:
    """Return one slice for each sample, in their order, with the profile of its predicted class.

    See `Slicer.slice_each`; `options` are those of `Slicer`.
    """
    x = im.check(x)
    predicted = im.classes.from_logits(im.logits(x))
    # An error for unknown classes is raised before long work.
    slicers = {c: Slicer(im, profiles[c], **options) for c in np.unique(predicted).tolist()}
    groups = [np.flatnonzero(predicted == c) for c in slicers]
    pairs = zip(slicers.values(), groups, strict=True)
    sets = [one.slice_each(x[rows], outputs, kernels, operations) for one, rows in pairs]
    back = np.argsort(np.concatenate(groups))
    has_neurons = sets[0].neuron_matrix is not None
    return SliceSet(
        sp.vstack([s.matrix for s in sets], "csr")[back],
        sp.vstack([s.neuron_matrix for s in sets], "csr")[back] if has_neurons else None,
        sets[0].kernels,
        sets[0].operations,
        np.concatenate([s.predicted for s in sets])[back],
        sets[0].info,
    )
