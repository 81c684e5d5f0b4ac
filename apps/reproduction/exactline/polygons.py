"""Exact integrated gradients averaged over all baselines of a polygon (ours, not the paper's).

On each region of a plane the gradient is constant. A region's weight is the mean, over the
baselines b in a polygon, of the fraction of the path from b to the input x in it, times x - b. In
polar coordinates around x, the weights have a closed form.
"""

import numpy as np
from scipy.spatial import ConvexHull

from nnslicer_tf._checks import check_points, check_target
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import Attributor
from nnslicer_tf.exactline.bends import Bends
from nnslicer_tf.exactline.mesh import Mesh, Search, cut
from nnslicer_tf.exactline.planar_partition import PlanarPartition, Plane, area_of
from nnslicer_tf.exactline.plane import PlaneWalker
from nnslicer_tf.exactline.points import Points
from nnslicer_tf.instrument import InstrumentedModel

_OFF = 1e-6  # the input may be this far off the polygon's plane, relative to its size
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_BATCH = 64


def mean_integrated_gradients(
    im: InstrumentedModel, x: np.ndarray, polygon: np.ndarray, target: int
) -> np.ndarray:
    """Return the mean of a logit's integrated gradients over baselines, `input shape` float64.

    They add up to the logit at x minus its mean over the polygon `(corners, *input shape)`, the
    corners in order, convex, in one plane with x. Raises InvalidArgumentError if it is not.
    """
    x = check_points(x, "x", im.input_shape)
    check_target(target, im[im.logit_operation].size)
    plane = Plane.through(polygon, im.input_shape)
    place = plane.coordinates(x[None])[0]
    distance = np.linalg.norm(plane.at(place[None])[0] - x)
    if distance > _OFF * np.ptp(plane.corners, axis=0).max():
        raise InvalidArgumentError(
            f"x must lie in the plane of the baselines. Received: a point {distance:.3g} away from "
            "it"
        )

    # The regions of the convex hull of the polygon and x, and the weight of each.
    places = np.concatenate([plane.corners, place[None]])
    hull = plane.at(places[ConvexHull(places).vertices])
    partition = PlaneWalker(im).plane(hull)
    end = partition.coordinates(x[None])[0]
    relative = partition.coordinates(plane.at(plane.corners)) - end
    weights = _weights(partition, end, relative if area_of(relative) > 0 else relative[::-1])

    attributor = Attributor(im, _BATCH)
    used = np.flatnonzero(weights.any(axis=1))
    middles = partition.mesh.middles()
    total = np.zeros(partition.origin.shape)
    for first in range(0, len(used), _BATCH):
        chosen = used[first : first + _BATCH]
        gradients = attributor.gradients(partition.at(middles[chosen]), target)
        total += (gradients * np.tensordot(weights[chosen], partition.axes, axes=1)).sum(axis=0)
    return total


def _weights(partition: PlanarPartition, x: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Return for each region the mean over baselines b of (x - b) · its share of the path.

    The polygon `(corners, 2)` is relative to x and counter-clockwise; the result is `(regions, 2)`.
    With y relative to x, s(y) = `shares` · y is the fraction of the way to a side that y covers.
    An edge from a to b adds ∫ (1/(2 s_far²) - 1/6) y dτ · (a × b) in the polygon, and
    ∫ (1/(2 s_far²) - 1/(2 s_near²)) y dτ · (a × b) before it.
    """
    # Regions are cut where rays from x change the sides at which they enter and leave the polygon.
    sides = np.roll(polygon, -1, axis=0) - polygon
    normals = np.stack([sides[:, 1], -sides[:, 0]], axis=1)  # outwards
    offsets = (normals * polygon).sum(axis=1)
    rays = np.stack([-polygon[:, 1], polygon[:, 0]], axis=1)
    mesh = partition.mesh
    steps = mesh.places - x
    mesh = cut_by_lines(mesh, np.hstack([steps @ rays.T, steps @ normals.T - offsets]))

    # The sides at which the ray through each face leaves and enters.
    middles = mesh.middles()
    along = (middles - x) @ normals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        share = offsets / along
    leaves = np.where(along > 0, share, np.inf)
    enters = np.where(along < 0, share, -np.inf)
    last, first = leaves.min(axis=1), enters.max(axis=1)
    far, near = leaves.argmin(axis=1), enters.argmax(axis=1)
    on_path = (last >= 1) & (last > np.maximum(first, 0))
    before = on_path & (first > 1)  # else in the polygon

    # The integrals over the faces' edges.
    face = np.repeat(np.arange(mesh.faces), np.diff(mesh.start))
    a, b = mesh.places[mesh.loop] - x, mesh.places[mesh.loop[mesh.following()]] - x
    cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    # An edge on a ray contributes nothing; at x itself its integral is not finite.
    turns = (np.abs(cross) > 1e-15 * np.abs(a).max() ** 2) & on_path[face]
    ahead, inside = turns & before[face], turns & ~before[face]
    # A side whose line goes through x is neither far nor near.
    shares = normals / np.where(offsets == 0, 1, offsets)[:, None]
    edges = np.zeros_like(a)
    edges[turns] = _over_square(a[turns], b[turns], shares[far[face[turns]]]) / 2
    edges[inside] -= (a[inside] + b[inside]) / 12
    edges[ahead] -= _over_square(a[ahead], b[ahead], shares[near[face[ahead]]]) / 2
    of_faces = np.add.reduceat(edges * cross[:, None], mesh.start[:-1])

    total = np.zeros((len(partition), 2))
    np.add.at(total, partition.locate(middles), of_faces / -area_of(polygon))
    return total


def cut_by_lines(mesh: Mesh, values: np.ndarray) -> Mesh:
    """Return a mesh cut where affine functions are zero, given at its vertices `(vertices, n)`."""
    tolerance = 1e-12 * float(np.abs(values).max())
    window = Points(len(values), np.ascontiguousarray(values))
    search = Search.of(window, Bends(1, np.zeros(1)), tolerance)
    while len(search.waiting):
        mesh, search, *_ = cut(mesh, search, 1 << 20)
    return mesh


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
