"""References for exact planes: fractions, and the model itself run in float64."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import keras
import numpy as np
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.exactline import PlanarPartition

from .lines import float64_model, run
from .test_walk import dense, sequential

Point = tuple[Fraction, Fraction]

SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])


def check_plane(partition: PlanarPartition, model: keras.Model, atol: float = 1e-10) -> None:
    """Assert that regions tile the polygon, and that the network is affine on each."""
    check_tiling(partition)
    values = partition.values.reshape(len(partition.vertices), -1)
    at_vertices = run(model, partition.at(partition.vertices))
    np.testing.assert_allclose(at_vertices, values, rtol=0, atol=atol)
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.ones(len(partition.corners)), 300)
    places = shares @ partition.corners
    found = partition.outputs(places).reshape(len(places), -1)
    np.testing.assert_allclose(run(model, partition.at(places)), found, rtol=0, atol=atol)
    chosen = rng.permutation(len(partition))[:100]
    inside, expected = [], []
    for i in chosen:  # points in a region, from the values at its corners
        corners = partition.loop[partition.start[i] : partition.start[i + 1]]
        weights = rng.dirichlet(np.ones(len(corners)))
        inside.append(weights @ partition.vertices[corners])
        expected.append(weights @ values[corners])
    computed = run(model, partition.at(np.array(inside)))
    np.testing.assert_allclose(computed, np.array(expected), rtol=0, atol=atol)


def check_tiling(partition: PlanarPartition) -> None:
    """Assert that areas add up, that edges have two sides, and that regions are convex."""
    assert (partition.areas > 0).all()
    np.testing.assert_allclose(partition.areas.sum(), partition.total_area, rtol=1e-12)
    edges = partition.edges
    assert len(partition.vertices) - len(edges.vertices) + len(partition) == 1  # Euler
    regions = edges.regions
    assert (regions[:, 0] >= 0).all() and (regions[:, 1] >= -1).all()
    assert (regions[:, 0] != regions[:, 1]).all()
    ends = partition.vertices[edges.vertices[regions[:, 1] < 0]]
    for a, b in zip(partition.corners, np.roll(partition.corners, -1, axis=0), strict=True):
        side = b - a
        off = np.abs((ends - a) @ np.array([-side[1], side[0]])) / (side @ side)
        on = (off < 1e-12).all(axis=1)
        lengths = np.linalg.norm(ends[on, 1] - ends[on, 0], axis=1)
        np.testing.assert_allclose(lengths.sum(), np.linalg.norm(side), rtol=1e-12)
        ends = ends[~on]
    assert not len(ends)  # every edge with one side is on the border
    for i in range(min(len(partition), 200)):
        corners = partition.vertices[partition.loop[partition.start[i] : partition.start[i + 1]]]
        steps = np.roll(corners, -1, axis=0) - corners
        after = np.roll(steps, -1, axis=0)
        turns = steps[:, 0] * after[:, 1] - steps[:, 1] * after[:, 0]
        assert (turns > -1e-12 * np.abs(steps).max() ** 2).all()


def crossings(partition: PlanarPartition, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the ratios at which the segment between two places crosses edges, ascending."""
    step = b - a
    off = (partition.vertices - a) @ np.array([-step[1], step[0]])
    ends = partition.edges.vertices
    ends = ends[(off[ends[:, 0]] < 0) != (off[ends[:, 1]] < 0)]
    share = off[ends[:, 0]] / (off[ends[:, 0]] - off[ends[:, 1]])
    span = partition.vertices[ends[:, 1]] - partition.vertices[ends[:, 0]]
    places = partition.vertices[ends[:, 0]] + share[:, None] * span
    ratios = (places - a) @ step / (step @ step)
    return np.sort(ratios[(ratios > 0) & (ratios < 1)])


class RationalPlane:
    """Dense ReLU layers on a polygon in the plane, in rational arithmetic, region by region.

    Nothing is shared with the library: every region is cut by one neuron after the other, and its
    corners are exact fractions.
    """

    def __init__(self, layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        self._layers = [
            (
                [[Fraction(float(w)) for w in row] for row in kernel.T],
                [Fraction(float(b)) for b in bias],
            )
            for kernel, bias in layers
        ]

    def areas(self, polygon: Sequence[Sequence[float]]) -> list[Fraction]:
        """Return the areas of the regions; the last layer is affine."""
        corners = [tuple(Fraction(float(v)) for v in corner) for corner in polygon]
        # A region: its corners, and the affine functions that arrive there (a, b, c): a x + b y + c
        start = [(Fraction(1), Fraction(0), Fraction(0)), (Fraction(0), Fraction(1), Fraction(0))]
        regions = [(corners, start)]
        for kernel, bias in self._layers[:-1]:
            regions = [part for region in regions for part in self._cut(*region, kernel, bias)]
        return [abs(_area(corners)) for corners, _ in regions]

    def _cut(self, corners, functions, kernel, bias):
        parts = [(corners, [])]
        for row, constant in zip(kernel, bias, strict=True):
            total = [
                sum((w * f[i] for w, f in zip(row, functions, strict=True)), Fraction(0))
                for i in range(3)
            ]
            total[2] += constant
            finer = []
            for own, outputs in parts:
                values = [total[0] * x + total[1] * y + total[2] for x, y in own]
                positive, negative = any(v > 0 for v in values), any(v < 0 for v in values)
                zero = (Fraction(0),) * 3
                if positive and negative:
                    finer.append((_half(own, values, 1), [*outputs, tuple(total)]))
                    finer.append((_half(own, values, -1), [*outputs, zero]))
                else:
                    finer.append((own, [*outputs, tuple(total) if positive else zero]))
            parts = finer
        return parts


def _half(corners: list[Point], values: list[Fraction], sign: int) -> list[Point]:
    kept = []
    for i, (corner, value) in enumerate(zip(corners, values, strict=True)):
        following, after = corners[(i + 1) % len(corners)], values[(i + 1) % len(corners)]
        if sign * value >= 0:
            kept.append(corner)
        if value * after < 0:
            t = value / (value - after)
            kept.append(tuple(a + t * (b - a) for a, b in zip(corner, following, strict=True)))
    return kept


def _area(corners: list[Point]) -> Fraction:
    total = Fraction(0)
    for (x, y), (u, v) in zip(corners, corners[1:] + corners[:1], strict=True):
        total += x * v - u * y
    return total / 2


def grouped(values: np.ndarray, labels: np.ndarray) -> dict[int, float]:
    """Return the sum of the values of each label."""
    sums: dict[int, float] = defaultdict(float)
    for value, label in zip(values, labels, strict=True):
        sums[int(label)] += float(value)
    return dict(sums)


def polygon(model, corners=3, scale=1.5, seed=1):
    """Return corners around a circle in a random plane."""
    rng = np.random.default_rng(seed)
    centre, *directions = rng.normal(size=(3, *model.input_shape[1:])) * scale
    angles = 2 * np.pi * np.arange(corners) / corners
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return centre + np.tensordot(circle, np.stack(directions), axes=1)


def relu_network(widths=(6, 5), seed=0, inputs=2):
    model = sequential((inputs,), *(dense(n, "relu") for n in widths), dense(3))
    return float64_model(model, seed)


def relu_of(weights, biases):
    """Σ ReLU(w · x + b) on the plane."""
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(len(weights), "relu"), layers.Dense(1)]
    )
    model.set_weights(
        [
            np.array(weights, np.float32).T,
            np.array(biases, np.float32),
            np.ones((len(weights), 1), np.float32),
            np.zeros(1, np.float32),
        ]
    )
    return nns.InstrumentedModel(model)
