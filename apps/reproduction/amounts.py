"""Contributions as amounts, for a class of each sample."""

from collections.abc import Sequence

import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile, Slicer


def amounts(
    im: InstrumentedModel,
    profile: Profile,
    x: np.ndarray,
    labels: np.ndarray,
    neurons: Sequence[str] = (),
    kernels: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return how much neurons and synapses raised a sample's class, `(samples, *shape)`, θ = 0."""
    slicer = Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
    shapes = {name: im[name].shape for name in neurons}
    shapes |= {name: im.kernels[name].shape for name in kernels}
    found = {name: np.zeros((len(x), *shape)) for name, shape in shapes.items()}
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        each = slicer.slice_each(x[rows], [int(label)], kernels, operations=neurons)
        for row, one in zip(rows, each, strict=True):
            for name, values in {**one.neurons, **one.synapses}.items():
                found[name][row] = values
    return found
