"""Protocols of results that can be drawn; the analyses' own types implement them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from nnslicer_tf.instrument import InstrumentedModel


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


class ProfileLike(Protocol):
    """The means of a model's neurons: `nnslicer_tf.Profile`."""

    @property
    def means(self) -> Mapping[str, np.ndarray]:
        """Operation name → means of its neurons."""

    def check_model(self, im: "InstrumentedModel") -> None:
        """Check that a model is the profiled one."""


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


class ClassesLike(Protocol):
    """Convex regions of a polygon with one class each: `nnslicer_tf.exactline.PlanarClasses`."""

    @property
    def corners(self) -> np.ndarray:
        """Corners of the polygon, `(corners, 2)`."""

    @property
    def vertices(self) -> np.ndarray:
        """Coordinates of the regions' corners, `(vertices, 2)`."""

    @property
    def start(self) -> np.ndarray:
        """Index in `loop` of each region's first corner, and the length of `loop`."""

    @property
    def loop(self) -> np.ndarray:
        """Vertices of the regions, one region after another."""

    @property
    def labels(self) -> np.ndarray:
        """The class of each region."""

    def area(self, label: int) -> float:
        """Return a class's share of the area."""

    def boundary(self) -> np.ndarray:
        """Return the segments between different classes, `(segments, 2, 2)`."""


class BoundaryLike(Protocol):
    """Decision boundaries in a polygon: `nnslicer_tf.exactline.PlanarBoundary`."""

    @property
    def corners(self) -> np.ndarray:
        """Corners of the polygon, `(corners, 2)`."""

    @property
    def segments(self) -> np.ndarray:
        """The boundaries, `(segments, 2, 2)`."""

    @property
    def labels(self) -> np.ndarray:
        """The classes on both sides, `(segments, 2)`."""


class CoverageLike(Protocol):
    """Coverage by a set of inputs: `nnslicer_tf.deepxplore.Coverage`."""

    def per_operation(self) -> Mapping[str, float]:
        """Return operation name → covered share."""
