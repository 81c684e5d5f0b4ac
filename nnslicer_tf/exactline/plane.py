"""`PlaneWalker`: cuts a polygon into the regions on which a network is affine.

The polygon is a mesh of convex faces whose vertices carry the values of the operations. Affine
operations are computed at the vertices; any other cuts the faces where it bends (see `bends`), and
interpolates the values at the new vertices. Time is linear in the number of regions. Memory is
bounded, except for the result: a tile of faces with more than 8 MB of values (or 128 vertices, if
larger) is split, and one half finished first.
"""

import os
from contextlib import closing

import numpy as np

from nnslicer_tf._checks import check_count
from nnslicer_tf._environment import one_thread_a_product
from nnslicer_tf._files import digest
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.exactline.bends import BendingTransformer
from nnslicer_tf.exactline.mesh import MAX_TAPS
from nnslicer_tf.exactline.planar_partition import PlanarPartition, Plane
from nnslicer_tf.exactline.program import LineProgram, program_of
from nnslicer_tf.exactline.tiles import FinishedTiles, walk_plane
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike


def exact_plane(
    im: ModelLike,
    polygon: np.ndarray,
    *,
    max_regions: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
) -> PlanarPartition:
    """Partition a polygon so that the network is affine on every region.

    Calls on one model share a walker until its weights change.

    Args:
        im: An instrumented or Keras model. A final softmax or sigmoid is ignored.
        polygon: `(corners, *input shape)`, three or more corners of a convex polygon in one
            plane, in order; the last may repeat the first. See `rectangle`.
        max_regions: Stop with an error if there are more regions.
        checkpoint: Folder for finished parts, from which an interrupted run resumes.
        progress: Show a progress bar.

    Returns the partition: a region for each combination of the operations' affine pieces.

    Raises UnsupportedLayerError if an operation, named in the message, is not piecewise linear;
    InputShapeError if the corners do not have the model's input shape; InvalidArgumentError if they
    are not those of a convex polygon with an area; NonFiniteActivationError if they or the
    network's outputs are NaN or infinite; TooManyRegionsError, with the progress, if there are more
    than `max_regions`; ProfileMismatchError if the checkpoint is of another model or polygon.
    """
    im = instrumented(im)
    polygon = im.points(polygon, "polygon", 1)
    walker = im.prepared(PlaneWalker, lambda: PlaneWalker(im))
    return walker.plane(polygon, max_regions=max_regions, checkpoint=checkpoint, progress=progress)


def rectangle(centre: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the corners `(4, *shape)` centre ± first ± second, in order; all of one shape."""
    centre, first, second = (np.asarray(x, np.float64) for x in (centre, first, second))
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return np.stack([centre + a * first + b * second for a, b in signs])


class PlaneWalker:
    """A model prepared for exact planes; later changes of its weights have no effect.

    Args:
        im: An instrumented or Keras model.
        workers: Number of threads; 0 for one per core. The regions do not depend on it.

    Attributes:
        program: The steps from the input to the logits.

    Raises UnsupportedLayerError if an operation is not piecewise linear, or a maximum of over 64.
    """

    def __init__(self, im: ModelLike, *, workers: int = 0) -> None:
        self._im = im = instrumented(im)
        self.program = program_of(im)
        self._workers = workers
        self._identity = {"model": f"{im.fingerprint} {im.own_code}".strip()}
        for step in self.program.steps:
            if isinstance(step.transformer, BendingTransformer):
                taps, floors = step.transformer.bends
                values = taps + int(np.isfinite(floors).any())
                if values > MAX_TAPS:
                    raise UnsupportedLayerError(
                        f"Operation '{step.name}' is a maximum of {values} values. Planes support "
                        f"at most {MAX_TAPS}."
                    )

    def plane(
        self,
        polygon: np.ndarray,
        *,
        max_regions: int | None = None,
        checkpoint: str | os.PathLike | None = None,
        progress: bool = False,
    ) -> PlanarPartition:
        """Partition one polygon; see `exact_plane`."""
        if max_regions is not None:
            check_count("max_regions", max_regions)
        polygon = self._im.points(polygon, "polygon", 1)
        plane = Plane.through(polygon, self.program.input_shape)
        store = None
        if checkpoint is not None:
            corners = digest([plane.at(plane.corners)])
            store = Store(checkpoint, {**self._identity, "polygon": corners, "keys": "2"}, "plane")
        with one_thread_a_product():
            return partition(self.program, plane, max_regions, self._workers, store, progress)


def partition(
    program: LineProgram,
    plane: Plane,
    most: int | None,
    workers: int,
    store: Store | None = None,
    progress: bool = False,
) -> PlanarPartition:
    """Partition a polygon of up to `most` regions; `workers` are those of `PlaneWalker`."""
    scale = np.ptp(plane.corners, axis=0)  # the mesh is as wide as it is high
    with closing(FinishedTiles(plane.total_area / scale.prod(), store, most, progress)) as finished:
        walk_plane(program, plane, finished, scale, workers)
    mesh, outputs = finished.joined()
    values = outputs.reshape(-1, *program.output_shape)
    faces = mesh.places * scale, mesh.start, mesh.loop
    return PlanarPartition(plane.origin, plane.axes, plane.corners, *faces, values)
