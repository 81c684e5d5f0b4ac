import pickle

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.exactline import (
    Attributor,
    LineWalker,
    PlanarBoundary,
    PlanarPartition,
    PlaneWalker,
    _plane_walk,
    disagreement,
    exact_boundary,
    exact_line,
    exact_plane,
    exact_planes,
    mean_integrated_gradients,
    rectangle,
    register_transformer,
)
from nnslicer_tf.instrument import Step

from .lines import float64_model, run
from .planes import RationalPlane, check_plane, check_tiling, crossings
from .test_walk import MODELS, dense, sequential, without_softmax


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


@pytest.mark.parametrize("name", MODELS)
def test_regions_tile_the_polygon_and_the_network_is_affine_on_each(name):
    model = float64_model(MODELS[name], seed=2)
    partition = exact_plane(nns.InstrumentedModel(model), polygon(model))
    check_plane(partition, without_softmax(model))
    assert (len(partition) > 1) == (name != "affine")


@pytest.mark.parametrize("name", ["residual", "overlapping pool", "dense", "own operation"])
def test_lines_in_the_plane_cross_the_edges_where_exact_line_bends(name):
    model = float64_model(MODELS[name], seed=2)
    im = nns.InstrumentedModel(model)
    partition = exact_plane(im, polygon(model, 5))
    walker = LineWalker(im, every_crossing=True)
    rng = np.random.default_rng(3)
    places = rng.dirichlet(np.ones(5), (10, 2)) @ partition.corners
    for a, b in places:
        line = walker.line(*partition.at(np.stack([a, b])))
        np.testing.assert_allclose(crossings(partition, a, b), line.ratios[1:-1], atol=1e-9)
        ratios = np.linspace(0, 1, 23)[:, None]
        on_plane = partition.outputs(a + ratios * (b - a))
        np.testing.assert_allclose(on_plane, line.evaluate(ratios[:, 0]), atol=1e-10)


def test_every_bend_of_a_line_is_an_edge_where_equal_values_compete():
    """Overlapping windows hold the same values twice; a line may cross between equal ones."""
    model = float64_model(MODELS["inception"], seed=2)
    im = nns.InstrumentedModel(model)
    partition = exact_plane(im, polygon(model))
    a, b = np.random.default_rng(3).dirichlet(np.ones(3), 2) @ partition.corners
    line = exact_line(im, *partition.at(np.stack([a, b])))
    edges = crossings(partition, a, b)
    nearest = np.abs(line.ratios[1:-1, None] - edges).min(axis=1)
    assert len(line) > 10 and nearest.max() < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_counts_and_areas_equal_rational_arithmetic(seed):
    model = relu_network((7, 6, 5), seed)
    corners = np.array([[-2.0, -1.5], [2.5, -1.0], [1.0, 2.0], [-1.5, 1.75]])
    partition = exact_plane(nns.InstrumentedModel(model), corners)
    weights = [layer.get_weights() for layer in model.layers]
    expected = RationalPlane(weights).areas(corners)
    assert len(partition) == len(expected) > 10
    np.testing.assert_allclose(np.sort(partition.areas), np.sort([float(a) for a in expected]))


def test_vertices_satisfy_the_bends():
    """Every inner vertex is on two bends: two pre-activations are 0 there, in float64."""
    model = relu_network((12, 12))
    partition = exact_plane(nns.InstrumentedModel(model), 6 * (SQUARE - 0.5))
    inner = np.ones(len(partition.vertices), bool)
    inner[partition.edges.vertices[partition.edges.regions[:, 1] < 0]] = False
    x = partition.at(partition.vertices)
    kernels = [layer.get_weights() for layer in model.layers]
    first = x @ kernels[0][0] + kernels[0][1]
    second = np.maximum(first, 0) @ kernels[1][0] + kernels[1][1]
    sizes = np.hstack([np.abs(v) / np.abs(v).max() for v in (first, second)])
    sizes.sort(axis=1)
    assert inner.sum() > 10 and sizes[inner, 1].max() < 1e-12
    on_border = np.sort(sizes[~inner, 0])
    assert on_border[:-4].max() < 1e-12 and len(on_border) > 10  # all but the corners


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


SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])


@pytest.mark.parametrize(
    ("weights", "biases", "expected"),
    [
        ([[1, 0]], [2], [1]),  # no bend
        ([[1, 0]], [-0.5], [0.5, 0.5]),
        ([[1, 0], [2, 0], [-4, 0]], [-0.5, -1, 2], [0.5, 0.5]),  # the same bend three times
        ([[1, 0], [1, 0]], [-0.25, -0.75], [0.25, 0.25, 0.5]),  # parallel
        ([[1, -1]], [0], [0.5, 0.5]),  # through two corners
        ([[1, -2]], [0], [0.25, 0.75]),  # through one corner
        ([[1, 1]], [0], [1]),  # touches a corner
        ([[1, 0]], [0], [1]),  # along an edge
        ([[1, 0], [0, 1], [1, -1], [1, 1]], [-0.5, -0.5, 0, -1], [0.125] * 8),  # all in one point
        ([[0, 0], [1, 0]], [0, -0.5], [0.5, 0.5]),  # 0 everywhere
        ([[1, 0], [1, 2**-20]], [-0.5, -0.5], [2**-21, 0.5 - 2**-21, 0.5]),  # a very small angle
    ],
)
def test_degenerate_bends(weights, biases, expected):
    partition = exact_plane(relu_of(weights, biases), SQUARE)
    check_tiling(partition)
    np.testing.assert_allclose(np.sort(partition.areas), np.sort(expected), atol=1e-12)


def one_window(taps, fuse=True):
    """ReLU and max pooling over the affine functions u, v, … of the plane."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(len(taps)),
            layers.Reshape((1, len(taps), 1)),
            layers.ReLU(),
            layers.MaxPooling2D((1, len(taps))),
            layers.Flatten(),
        ]
    )
    model.set_weights([np.array(taps, np.float32)[:, :2].T, np.array(taps, np.float32)[:, 2]])
    return PlaneWalker(nns.InstrumentedModel(model), fuse=fuse)


@pytest.mark.parametrize(
    ("taps", "expected"),
    [
        ([(1, 0, 0), (0, 1, 0)], [0.5, 0.5]),  # two
        ([(1, 0, -0.25), (0, 1, -0.25)], [0.0625, 0.46875, 0.46875]),  # with 0 in a corner
        # an island of 0 in the middle, between four others
        (
            [(8, 0, -5), (-8, 0, 3), (0, 8, -5), (0, -8, 3)],
            [0.0625, *[(1 - 0.0625) / 4] * 4],
        ),
        ([(1, 0, 1), (1, 0, 1), (0, 1, 1)], [0.5, 0.5]),  # two that are equal
        ([(1, 0, 5), (0, 1, 0)], [1]),
    ],
)
def test_one_maximum(taps, expected):
    partition = one_window(taps).plane(SQUARE)
    check_tiling(partition)
    np.testing.assert_allclose(np.sort(partition.areas), np.sort(expected), atol=1e-12)
    places = np.random.default_rng(0).random((200, 2))
    values = places @ np.array(taps)[:, :2].T + np.array(taps)[:, 2]
    maxima = np.maximum(values.max(axis=1), 0)
    np.testing.assert_allclose(partition.outputs(places)[:, 0], maxima, atol=1e-12)


@pytest.mark.parametrize("name", ["residual", "relu then pool", "overlapping pool"])
def test_tiles_and_threads_change_nothing(name, monkeypatch):
    model = float64_model(MODELS[name], seed=2)
    im = nns.InstrumentedModel(model)
    corners = polygon(model)
    whole = PlaneWalker(im, workers=1).plane(corners)
    monkeypatch.setattr(_plane_walk, "_TILE", 1)
    monkeypatch.setattr(_plane_walk, "_FEWEST", 12)
    for workers in (1, 3):
        tiled = PlaneWalker(im, workers=workers).plane(corners)
        assert len(tiled) == len(whole) and len(tiled.vertices) == len(whole.vertices)
        check_plane(tiled, without_softmax(model))
        np.testing.assert_allclose(np.sort(tiled.areas), np.sort(whole.areas), rtol=1e-6)


def test_classes_areas_and_boundaries_are_exact():
    """Three affine logits: the classes are the cells of their upper envelope."""
    model = float64_model(sequential((2,), dense(3)))
    model.set_weights([np.array([[1.0, -1, 0], [0, 0, 1]]), np.zeros(3)])
    corners = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    partition = exact_plane(nns.InstrumentedModel(model), corners)
    assert len(partition) == 1 and len(partition.classify()) == 3
    places = partition.coordinates(np.array([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5]]))
    assert partition.classify().label_at(places).tolist() == [0, 1, 2]
    assert [partition.area(label) for label in range(3)] == pytest.approx([0.375, 0.375, 0.25])
    lengths = [
        np.linalg.norm(np.diff(partition.boundary(a, b), axis=1), axis=-1).sum()
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert lengths == pytest.approx([1, np.sqrt(2), np.sqrt(2)])
    assert partition.classify(lowest=True).area(2) == pytest.approx(0.25)
    np.testing.assert_allclose(partition.integrate(), [0, 0, 0], atol=1e-15)
    margin = partition.margin(0)
    assert margin.value == -2 and margin.other == 1 and margin.point[0] == -1


def test_share_and_mean_agree_with_samples():
    model = float64_model(MODELS["relu then pool"], seed=2)
    partition = exact_plane(nns.InstrumentedModel(model), polygon(model, 4))
    rng = np.random.default_rng(0)
    low, high = partition.corners.min(axis=0), partition.corners.max(axis=0)
    places = low + rng.random((20_000, 2)) * (high - low)
    off = partition.corners - places[:, None]
    cross = off[..., 0] * np.roll(off, -1, 1)[..., 1] - off[..., 1] * np.roll(off, -1, 1)[..., 0]
    places = places[(cross > 0).all(axis=1)]
    outputs = run(without_softmax(model), partition.at(places))
    labels = outputs.argmax(axis=1)
    assert (partition.classify().label_at(places) == labels).mean() > 0.9999
    for label in range(outputs.shape[1]):
        share = (labels == label).mean()
        assert partition.area(label) == pytest.approx(share, abs=4 / np.sqrt(len(labels)))
    error = outputs.std(axis=0) / np.sqrt(len(outputs))
    assert (np.abs(partition.integrate() - outputs.mean(axis=0)) < 4.5 * error).all()
    margins = outputs[:, [1]] - np.delete(outputs, 1, axis=1)
    margin = partition.margin(1)
    assert margin.value <= margins.min()
    (at,) = run(without_softmax(model), margin.point[None])
    assert at[1] - at[margin.other] == pytest.approx(margin.value, abs=1e-10)


def test_margin_of_a_line_is_the_smallest_on_it():
    model = float64_model(MODELS["dense"], seed=4)
    im = nns.InstrumentedModel(model)
    q, r = polygon(model)[:2]
    line = exact_line(im, q, r)
    outputs = run(model, line.at(np.linspace(0, 1, 10_001)))
    gaps = outputs[:, [2]] - np.delete(outputs, 2, axis=1)
    margin = line.margin(2)
    assert margin.value == pytest.approx(gaps.min(), abs=1e-3) and margin.value <= gaps.min()
    (at,) = run(model, margin.point[None])
    assert at[2] - at[margin.other] == pytest.approx(margin.value, abs=1e-12)
    assert line.margin().label == outputs[0].argmax()


def test_slopes_are_gradients():
    model = relu_network((8, 8), inputs=4)
    partition = exact_plane(nns.InstrumentedModel(model), polygon(model))
    slopes = partition.slopes()
    largest = np.argsort(partition.areas)[-10:]
    for i in largest:
        middle = partition.region(i).mean(axis=0)
        steps = middle + 1e-6 * np.array([[0, 0], [1, 0], [0, 1]])
        base, *moved = run(model, partition.at(steps))
        np.testing.assert_allclose((np.array(moved) - base).T / 1e-6, slopes[i], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "weights", "seed", "scale"),
    [("dense", 2, 2, 6.0), ("relu then pool", 2, 3, 2.5), ("residual", 5, 1, 6.0)],
)
def test_followed_boundaries_are_those_of_the_partition(name, weights, seed, scale):
    model = float64_model(MODELS[name], seed=weights)
    im = nns.InstrumentedModel(model)
    corners = polygon(model, scale=scale, seed=seed)
    classes = exact_plane(im, corners).classify()
    boundary = exact_plane(im, corners, boundary_only=True)
    assert isinstance(boundary, PlanarBoundary)
    assert len(classes.to_frame()) == 3
    total = np.linalg.norm(np.diff(classes.boundary(), axis=1), axis=-1).sum()
    assert boundary.lengths.sum() == pytest.approx(total, rel=1e-6)
    middles = boundary.segments.mean(axis=1)
    outputs = np.sort(run(without_softmax(model), boundary.at(middles)), axis=1)
    np.testing.assert_allclose(outputs[:, -1], outputs[:, -2], atol=1e-9)
    for a, b in np.unique(boundary.labels, axis=0):
        lengths = np.linalg.norm(np.diff(classes.boundary(a, b), axis=1), axis=-1)
        own = np.linalg.norm(np.diff(boundary.between(a, b), axis=1), axis=-1)
        assert own.sum() == pytest.approx(lengths.sum(), rel=1e-6)


def test_boundary_is_saved_and_limited(tmp_path):
    model = float64_model(MODELS["dense"], seed=3)
    im = nns.InstrumentedModel(model)
    corners = polygon(model, scale=2.5)
    boundary = exact_boundary(im, corners)
    boundary.save(tmp_path / "b.npz")
    loaded = PlanarBoundary.load(tmp_path / "b.npz")
    np.testing.assert_array_equal(loaded.segments, boundary.segments)
    assert loaded.visited == boundary.visited > 0 and "segments" in repr(loaded)
    assert boundary.to_frame()["length"].sum() == pytest.approx(boundary.lengths.sum())
    with pytest.raises(nns.TooManyRegionsError, match="More than 1 regions were visited"):
        exact_boundary(im, corners, max_regions=1)
    with pytest.raises(nns.InvalidArgumentError, match="two values or more"):
        exact_boundary(relu_of([[1, 0]], [0]), SQUARE)


def test_disagreement_is_exact_on_lines_and_planes():
    """Two affine classifiers of the plane that differ in a known strip."""

    def affine(shift):
        model = float64_model(sequential((2,), dense(2)))
        model.set_weights([np.array([[1.0, 0], [0, 0]]), np.array([shift, 0.0])])
        return nns.InstrumentedModel(model)

    first, second = affine(-0.5), affine(-0.75)
    on_plane = disagreement(first, second, SQUARE)
    assert on_plane.share == pytest.approx(0.25) and on_plane.difference == pytest.approx(0.25)
    assert on_plane.shares[0, 1] == pytest.approx(0.25)
    assert 0.5 < on_plane.point[0] < 0.75
    on_line = disagreement(first, second, SQUARE[:2])
    assert on_line.share == pytest.approx(0.25) and 0.5 < on_line.point[0] < 0.75
    assert disagreement(first, first, SQUARE).share == 0
    assert on_plane.to_frame()["share"].sum() == pytest.approx(1)


def test_disagreement_of_networks_agrees_with_samples():
    build = MODELS["relu then pool"]
    models = [float64_model(build, seed=2) for _ in range(2)]
    kernel = models[1].layers[-1].kernel
    kernel.assign(np.round(np.asarray(kernel) * 2) / 2)
    ims = [nns.InstrumentedModel(model) for model in models]
    corners = polygon(models[0])
    found = disagreement(*ims, corners)
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 10_000)
    x = np.tensordot(shares, corners, axes=1)
    labels = [run(without_softmax(model), x).argmax(axis=1) for model in models]
    assert found.share == pytest.approx((labels[0] != labels[1]).mean(), abs=0.02)
    assert found.share > 0.01
    with pytest.raises(nns.InvalidArgumentError, match="same inputs"):
        disagreement(ims[0], relu_of([[1, 0]], [0]), corners)


@pytest.mark.parametrize("place", [(0.3, 0.4), (-1.0, 0.2), (0.0, 0.0), (1.5, 1.5)])
def test_mean_integrated_gradients_are_the_mean_over_baselines(place):
    """Inputs within the polygon of baselines, beside it, and at its corner."""
    model = relu_network((8, 8), inputs=4)
    im = nns.InstrumentedModel(model)
    origin, *axes = np.random.default_rng(1).normal(size=(3, 4)) * 2
    square = origin + SQUARE @ np.stack(axes)
    x = origin + np.array(place) @ np.stack(axes)
    mean = mean_integrated_gradients(im, x, square, 1)
    change = run(model, x[None])[0, 1] - exact_plane(im, square).integrate()[1]
    assert mean.sum() == pytest.approx(change, abs=1e-9)
    attributor = Attributor(im)
    grid = (np.arange(12) + 0.5) / 12  # the rule of midpoints
    places = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    each = [attributor.exact(x, origin + p @ np.stack(axes), 1) for p in places]
    np.testing.assert_allclose(np.mean(each, axis=0), mean, atol=0.01 * np.abs(mean).max())
    with pytest.raises(nns.InvalidArgumentError, match="in the plane of the baselines"):
        mean_integrated_gradients(im, x + 1, square, 1)


def test_partition_is_saved_and_loaded(tmp_path):
    model = relu_network()
    partition = exact_plane(nns.InstrumentedModel(model), SQUARE)
    partition.save(tmp_path / "plane.npz")
    loaded = PlanarPartition.load(tmp_path / "plane.npz")
    np.testing.assert_array_equal(loaded.vertices, partition.vertices)
    np.testing.assert_array_equal(loaded.values, partition.values)
    assert len(loaded) == len(partition) and loaded.area(0) == partition.area(0)
    (tmp_path / "plane.npz").write_bytes(b"not an archive")
    with pytest.raises(nns.CorruptFileError, match="PlanarPartition"):
        PlanarPartition.load(tmp_path / "plane.npz")


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    model = float64_model(MODELS["relu then pool"], seed=2)
    im = nns.InstrumentedModel(model)
    corners = polygon(model)
    whole = PlaneWalker(im).plane(corners)
    monkeypatch.setattr(_plane_walk, "_TILE", 1)
    monkeypatch.setattr(_plane_walk, "_FEWEST", 12)
    walker = PlaneWalker(im, workers=1)
    folder = tmp_path / "checkpoint"
    with pytest.raises(nns.TooManyRegionsError, match=r"were found in [\d.]+ % of its area"):
        walker.plane(corners, max_regions=100, checkpoint=folder)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    assert len(kept) > 3
    resumed = walker.plane(corners, checkpoint=folder)
    assert len(resumed) == len(whole)
    check_tiling(resumed)
    assert kept.items() <= {p: p.stat().st_mtime_ns for p in folder.glob("*.npz")}.items()
    with pytest.raises(nns.ProfileMismatchError, match="polygon"):
        walker.plane(corners + 1, checkpoint=folder)


def test_many_planes_are_those_of_single_calls():
    model = float64_model(MODELS["hard tanh"], seed=2)
    im = nns.InstrumentedModel(model)
    polygons = [polygon(model, 4, seed=seed) for seed in range(10)]
    together = exact_planes(im, polygons, workers=0, progress=False)
    for corners, partition in zip(polygons, together, strict=True):
        alone = exact_plane(im, corners)
        np.testing.assert_array_equal(alone.vertices, partition.vertices)
    walker = pickle.loads(pickle.dumps(PlaneWalker(im)))  # as Ray sends it
    assert len(walker.plane(polygons[0])) == len(together[0])


def test_float32_model_is_walked_in_float64():
    stack = (dense(20, "relu"), dense(20, "relu"), dense(3))
    model = sequential((6,), *stack)()
    exact = float64_model(sequential((6,), *stack))
    exact.set_weights(model.get_weights())
    check_plane(exact_plane(nns.InstrumentedModel(model), polygon(model)), exact, atol=1e-12)


def test_rectangle_and_coordinates():
    centre, first, second = np.zeros(4), np.array([2.0, 0, 0, 0]), np.array([0, 0, 3.0, 0])
    corners = rectangle(centre, first, second)
    model = relu_network(inputs=4)
    partition = exact_plane(nns.InstrumentedModel(model), corners)
    assert partition.total_area == pytest.approx(24)
    places = np.random.default_rng(0).random((5, 2))
    np.testing.assert_allclose(partition.coordinates(partition.at(places)), places, atol=1e-12)


@pytest.mark.parametrize(
    ("corners", "what"),
    [
        (np.zeros((3, 2)), "three different corners"),
        ([[0, 0], [1, 1]], "three different corners"),
        ([[0, 0], [1, 1], [2, 2]], "must have an area"),
        ([[0, 0], [1, 1], [1, 0], [0, 1]], "must be convex"),
        ([[0, 0], [4, 0], [1, 1], [0, 4]], "must be convex"),
    ],
)
def test_polygons_that_are_refused(corners, what):
    with pytest.raises(nns.InvalidArgumentError, match=what):
        exact_plane(relu_of([[1, 0]], [0]), np.array(corners, float))


def test_points_that_are_not_in_one_plane_or_not_inputs():
    im = nns.InstrumentedModel(relu_network(inputs=4))
    with pytest.raises(nns.InvalidArgumentError, match="one plane"):
        exact_plane(im, np.eye(4))
    with pytest.raises(nns.InputShapeError, match="polygon must have the model's input shape"):
        exact_plane(im, np.zeros((3, 5)))
    with pytest.raises(nns.NonFiniteActivationError, match="polygon"):
        exact_plane(im, np.full((3, 4), np.nan))
    with pytest.raises(nns.InvalidArgumentError, match="max_regions"):
        exact_plane(im, np.eye(4)[:3], max_regions=0)
    with pytest.raises(nns.InvalidArgumentError, match="not in the polygon"):
        exact_plane(im, np.eye(4)[:3]).outputs(np.array([[9.0, 9.0]]))


def test_sigmoid_is_refused_by_name():
    model = sequential((4,), dense(5), lambda: layers.Activation("tanh", name="bad"), dense(3))()
    with pytest.raises(nns.UnsupportedLayerError, match=r"'bad' \(tanh\)"):
        exact_plane(nns.InstrumentedModel(model), np.eye(4)[:3])


def test_maximum_of_too_many_values_is_refused_by_name():
    model = sequential((9, 9, 1), lambda: layers.GlobalMaxPooling2D(name="wide"))()
    with pytest.raises(nns.UnsupportedLayerError, match="'wide' is a maximum of 81 values"):
        PlaneWalker(nns.InstrumentedModel(model))


class Doubled(layers.Layer):
    def call(self, x):
        return 2 * x


def test_registered_transformer_serves_planes():
    nns.register_layer(Doubled, lambda layer, call: [Step("doubling here", layer.call)])
    register_transformer("doubling here", lambda operation: lambda x: x.with_values(2 * x.values))
    model = float64_model(sequential((4,), dense(9, "relu"), Doubled, dense(3)))
    check_plane(exact_plane(nns.InstrumentedModel(model), polygon(model)), model)


def test_plots_show_classes_and_boundaries():
    model = float64_model(MODELS["dense"], seed=3)
    im = nns.InstrumentedModel(model)
    corners = polygon(model, scale=2.5)
    partition = exact_plane(im, corners)
    axes = partition.plot()
    regions, edges = axes.collections
    assert len(regions.get_paths()) == len(partition.classify())
    assert len(edges.get_segments()) == len(partition.classify().boundary())
    boundary = exact_boundary(im, corners)
    drawn = sum(len(lines.get_segments()) for lines in boundary.plot().collections)
    assert drawn == len(boundary)
    assert "regions" in repr(partition) and "classes" in repr(partition.classify())
    assert partition.to_frame()["area"].sum() == pytest.approx(partition.total_area)
