"""Integrated gradients averaged exactly over a polygon of baselines.

The paths from a polygon of baselines b to an input x in the same plane fill a part of that plane.
On each region of its partition the gradient is constant, so that the mean over all baselines is a
sum over regions: the gradient, times the mean over b of how far the path from b to x runs through
the region, times its direction x - b. In polar coordinates around x these weights are integrals of
rational functions along the regions' edges, which have a closed form. There is no need to choose
a single baseline or to average over sampled ones.
"""

import numpy as np

from nnslicer_tf._checks import check_points, check_target
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline._polygon import Plane, area_of
from nnslicer_tf.exactline.gradients import Attributor
from nnslicer_tf.exactline.mesh import Mesh, cut_by_lines
from nnslicer_tf.exactline.planar_partition import PlanarPartition
from nnslicer_tf.exactline.plane import PlaneWalker
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike

_OFF = 1e-6  # the input may be this far off the polygon's plane, relative to its size
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_BATCH = 64


def mean_integrated_gradients(
    im: ModelLike,
    x: np.ndarray,
    baselines: np.ndarray,
    target: int,
    *,
    max_regions: int | None = None,
    progress: bool = False,
) -> np.ndarray:
    """Return the exact mean of integrated gradients over a polygon of baselines, float64.

    They add up to the logit at x minus its mean over the polygon.

    Args:
        im: A piecewise-linear model; a Keras model also works. A final softmax is ignored.
        x: The input, of the model's input shape, in the plane of the baselines.
        baselines: `(corners, *input shape)` corners of a convex polygon, in order.
        target: Index of the logit.
        max_regions: Stop with an error if there are more regions.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if x is not in the plane of the baselines, these are not the corners
            of a convex polygon, or there is no such logit.
        UnsupportedLayerError, InputShapeError, NonFiniteActivationError, TooManyRegionsError: as
            `exact_plane`.
    """
    im = instrumented(im)
    x = check_points(x, "x", im.input_shape)
    check_target(target, im[im.logit_operation].size)
    own = Plane.through(baselines, im.input_shape)
    place = own.coordinates(x[None])[0]
    distance = np.linalg.norm(own.at(place[None])[0] - x)
    if distance > _OFF * np.ptp(own.corners, axis=0).max():
        raise InvalidArgumentError(
            "x must lie in the plane of the baselines, so that the paths to it do. Received: a "
            f"point {distance:.3g} away from it"
        )
    hull = own.at(_hull(np.concatenate([own.corners, place[None]])))
    partition = PlaneWalker(im).plane(hull, max_regions=max_regions, progress=progress)
    polygon = partition.coordinates(own.at(own.corners)) - partition.coordinates(x[None])[0]
    if area_of(polygon) < 0:
        polygon = polygon[::-1]
    weights = _weights(partition, partition.coordinates(x[None])[0], polygon)
    return _summed(Attributor(im, _BATCH), partition, weights, target)


def _hull(places: np.ndarray) -> np.ndarray:
    """Return the convex hull of places `(n, 2)`, counter-clockwise."""
    from scipy.spatial import ConvexHull

    return places[ConvexHull(places).vertices]


def _weights(partition: PlanarPartition, x: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Return for each region the mean over baselines of (x - b) · its share of the path.

    Args:
        partition: The regions.
        x: `(2,)` place of the input.
        polygon: `(corners, 2)` the baselines' corners, relative to x.

    Returns:
        `(regions, 2)`.
    """
    sides = np.roll(polygon, -1, axis=0) - polygon
    normals = np.stack([sides[:, 1], -sides[:, 0]], axis=1)  # outwards
    offsets = (normals * polygon).sum(axis=1)
    rays = np.stack([-polygon[:, 1], polygon[:, 0]], axis=1)
    mesh = partition.mesh()
    steps = mesh.places - x
    mesh = cut_by_lines(mesh, np.hstack([steps @ rays.T, steps @ normals.T - offsets]))
    starts = mesh.start[:-1]
    middles = np.add.reduceat(mesh.places[mesh.loop], starts) / np.diff(mesh.start)[:, None]
    far, near, zone = _sides(middles - x, normals, offsets)
    # A side whose line goes through x is neither far nor near.
    shares = normals / np.where(offsets == 0, 1, offsets)[:, None]
    own = _face_weights(mesh, x, shares, far, near, zone)
    total = np.zeros((len(partition), 2))
    np.add.at(total, partition.locate(middles), own / -area_of(polygon))
    return total


def _sides(
    steps: np.ndarray, normals: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where rays from x leave the polygon and where they enter it.

    Args:
        steps: `(faces, 2)` points of the rays.
        normals: `(sides, 2)` outward normals of the polygon.
        offsets: `(sides,)` their products with its points.

    Returns:
        `(faces,)` each: the side where the ray leaves; the one where it enters; and 2 for points
        in the polygon, 1 for points before it, 0 for points on no path.
    """
    along = steps @ normals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        share = offsets / along
    leaves = np.where(along > 0, share, np.inf)
    enters = np.where(along < 0, share, -np.inf)
    last, first = leaves.min(axis=1), enters.max(axis=1)
    zone = np.where(first > 1, 1, 2)
    zone[(last < 1) | (last <= np.maximum(first, 0))] = 0
    return leaves.argmin(axis=1), enters.argmax(axis=1), zone


def _face_weights(
    mesh: Mesh,
    x: np.ndarray,
    shares: np.ndarray,
    far: np.ndarray,
    near: np.ndarray,
    zone: np.ndarray,
) -> np.ndarray:
    """Return the integrals over the faces' edges, `(faces, 2)`.

    With y relative to x, s(y) = `shares` · y is the fraction of the way to a side that y covers.
    An edge from a to b adds ∫ (1/(2 s_far²) - 1/6) y dτ · (a × b) in the polygon, and
    ∫ (1/(2 s_far²) - 1/(2 s_near²)) y dτ · (a × b) before it.
    """
    face = np.repeat(np.arange(len(mesh)), np.diff(mesh.start))
    after = np.arange(1, len(mesh.loop) + 1)
    after[mesh.start[1:] - 1] = mesh.start[:-1]
    a, b = mesh.places[mesh.loop] - x, mesh.places[mesh.loop[after]] - x
    cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    total = np.zeros_like(a)
    # An edge on a ray contributes nothing; at x itself its integral is not finite.
    turns = np.abs(cross) > 1e-15 * np.abs(a).max() ** 2
    inside, before = turns & (zone[face] == 2), turns & (zone[face] == 1)
    on_path = inside | before
    total[on_path] = _over_square(a[on_path], b[on_path], shares[far[face[on_path]]]) / 2
    total[inside] -= (a[inside] + b[inside]) / 12
    total[before] -= _over_square(a[before], b[before], shares[near[face[before]]]) / 2
    return np.add.reduceat(total * cross[:, None], mesh.start[:-1])


def _over_square(a: np.ndarray, b: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return ∫ y / (shares · y)² dτ on the way y = a + τ (b - a), `(edges, 2)`."""
    first, last = (a * shares).sum(axis=1), (b * shares).sum(axis=1)
    out = np.zeros_like(a)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = last / first
        rise = (last - first)[:, None]
        slope = (b - a) / rise
        base = a - first[:, None] * slope
        closed = base / (first * last)[:, None] + slope / rise * np.log(quotient)[:, None]
    even = (quotient > 0.5) & (quotient < 2)
    out[~even] = closed[~even]
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):  # exact to rounding for such a change
        t = (node + 1) / 2
        y = a[even] + t * (b[even] - a[even])
        s = first[even] + t * (last[even] - first[even])
        out[even] += weight / 2 * y / (s**2)[:, None]
    return out


def _summed(
    attributor: Attributor, partition: PlanarPartition, weights: np.ndarray, target: int
) -> np.ndarray:
    """Return the sum over regions of the gradient times the weight."""
    used = np.flatnonzero(weights.any(axis=1))
    starts = partition.start[:-1]
    lengths = np.diff(partition.start)[:, None]
    middles = np.add.reduceat(partition.vertices[partition.loop], starts) / lengths
    total = np.zeros(partition.origin.shape)
    for first in range(0, len(used), _BATCH):
        chosen = used[first : first + _BATCH]
        gradients = attributor.gradients(partition.at(middles[chosen]), target)
        directions = np.tensordot(weights[chosen], partition.axes, axes=1)
        total += (gradients * directions).sum(axis=0)
    return total
