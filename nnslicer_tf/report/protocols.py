"""Protocols of results that can be drawn; the analyses' own types follow them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class SliceLike(Protocol):
    """Contributions by name: `nnslicer_tf.Slice`."""

    @property
    def neurons(self) -> Mapping[str, np.ndarray]:
        """Operation name → contributions of its neurons."""

    @property
    def synapses(self) -> Mapping[str, np.ndarray]:
        """Kernel name → contributions of its synapses."""


class SliceSetLike(Protocol):
    """The slices of many samples: `nnslicer_tf.SliceSet`."""

    @property
    def kernels(self) -> Mapping[str, tuple[int, ...]]:
        """Kernel name → shape."""

    def kept_share(self, kernel: str) -> np.ndarray:
        """Return the share of a kernel's synapses in each slice."""


class LineLike(Protocol):
    """A line and the outputs along it: `nnslicer_tf.exactline.LinearPartition`."""

    @property
    def ratios(self) -> np.ndarray:
        """Ends of the parts, ascending from 0 to 1."""

    @property
    def outputs(self) -> np.ndarray:
        """The outputs at the ratios, `(ratios, outputs)`."""

    @property
    def length(self) -> float:
        """Euclidean length."""

    def __len__(self) -> int:
        """Return the number of parts."""


class RegionsLike(Protocol):
    """Parts of a line with one class each: `nnslicer_tf.exactline.Regions`."""

    @property
    def ratios(self) -> np.ndarray:
        """Ends of the regions, ascending from 0 to 1."""

    @property
    def labels(self) -> Sequence[int] | np.ndarray:
        """The class of each region."""

    def __len__(self) -> int:
        """Return the number of regions."""


class CoverageLike(Protocol):
    """Coverage by a set of inputs: `nnslicer_tf.deepxplore.Coverage`."""

    def per_operation(self) -> Mapping[str, float]:
        """Return operation name → covered share."""
