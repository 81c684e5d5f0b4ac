import pickle

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.exactline import (
    LineWalker,
    PlanarPartition,
    PlaneWalker,
    exact_line,
    exact_plane,
    register_transformer,
    tiles,
)
from nnslicer_tf.exactline.plane import rectangle
from nnslicer_tf.instrument import Step

from .lines import float64_model
from .planes import (
    SQUARE,
    RationalPlane,
    check_plane,
    check_tiling,
    crossings,
    polygon,
    relu_network,
    relu_of,
)
from .test_walk import MODELS, dense, sequential, without_softmax


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


def one_window(taps):
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
    return PlaneWalker(nns.InstrumentedModel(model))


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
    monkeypatch.setattr(tiles, "TILE", 1)
    monkeypatch.setattr(tiles, "FEWEST", 12)
    for workers in (1, 3):
        tiled = PlaneWalker(im, workers=workers).plane(corners)
        assert len(tiled) == len(whole) and len(tiled.vertices) == len(whole.vertices)
        check_plane(tiled, without_softmax(model))
        np.testing.assert_allclose(np.sort(tiled.areas), np.sort(whole.areas), rtol=1e-6)


def test_partition_is_saved_and_loaded(tmp_path):
    model = relu_network()
    partition = exact_plane(nns.InstrumentedModel(model), SQUARE)
    partition.save(tmp_path / "plane.npz")
    loaded = PlanarPartition.load(tmp_path / "plane.npz")
    np.testing.assert_array_equal(loaded.vertices, partition.vertices)
    np.testing.assert_array_equal(loaded.values, partition.values)
    assert len(loaded) == len(partition) and loaded.classify().area(0) == partition.classify().area(
        0
    )
    (tmp_path / "plane.npz").write_bytes(b"not an archive")
    with pytest.raises(nns.errors.CorruptFileError, match="PlanarPartition"):
        PlanarPartition.load(tmp_path / "plane.npz")


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    model = float64_model(MODELS["relu then pool"], seed=2)
    im = nns.InstrumentedModel(model)
    corners = polygon(model)
    whole = PlaneWalker(im).plane(corners)
    monkeypatch.setattr(tiles, "TILE", 1)
    monkeypatch.setattr(tiles, "FEWEST", 12)
    walker = PlaneWalker(im, workers=1)
    folder = tmp_path / "checkpoint"
    with pytest.raises(nns.errors.TooManyRegionsError, match=r"were found in [\d.]+ % of its area"):
        walker.plane(corners, max_regions=100, checkpoint=folder)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    assert len(kept) > 3
    resumed = walker.plane(corners, checkpoint=folder)
    assert len(resumed) == len(whole)
    check_tiling(resumed)
    assert kept.items() <= {p: p.stat().st_mtime_ns for p in folder.glob("*.npz")}.items()
    with pytest.raises(nns.errors.ProfileMismatchError, match="polygon"):
        walker.plane(corners + 1, checkpoint=folder)


def activated(activation):
    """Two classes of ±activation(u) on the plane, with the same weights for all activations."""
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1), activation, layers.Dense(2)])
    model.set_weights([np.eye(2)[:, :1], np.zeros(1), np.array([[1.0, -1]]), np.zeros(2)])
    return nns.InstrumentedModel(model)


def test_a_checkpoint_is_of_one_network(tmp_path):
    """The mean of ReLU(u) over the square around 0 is 1/4; weights do not tell it from others."""
    corners = 2 * SQUARE - 1
    relu, leaky = activated(layers.ReLU()), activated(layers.LeakyReLU(negative_slope=0.5))
    found = exact_plane(relu, corners, checkpoint=tmp_path / "relu")
    assert found.integrate()[0] == pytest.approx(0.25)
    again = exact_plane(activated(layers.ReLU()), corners, checkpoint=tmp_path / "relu")
    assert again.integrate()[0] == pytest.approx(0.25)
    with pytest.raises(nns.errors.ProfileMismatchError, match=r"different run \(model="):
        exact_plane(leaky, corners, checkpoint=tmp_path / "relu")


def test_a_finished_checkpoint_may_have_too_many_regions(tmp_path):
    im = nns.InstrumentedModel(relu_network())
    corners = 6 * (SQUARE - 0.5)
    regions = len(exact_plane(im, corners, checkpoint=tmp_path))
    assert regions > 3
    assert len(exact_plane(im, corners, checkpoint=tmp_path, max_regions=regions)) == regions
    with pytest.raises(nns.errors.TooManyRegionsError, match="more than 2 regions"):
        exact_plane(im, corners, checkpoint=tmp_path, max_regions=2)


def test_a_walker_can_be_sent_to_another_process():
    model = float64_model(MODELS["hard tanh"], seed=2)
    im = nns.InstrumentedModel(model)
    corners = polygon(model, 4)
    walker = pickle.loads(pickle.dumps(PlaneWalker(im)))
    alone = exact_plane(im, corners)
    np.testing.assert_array_equal(walker.plane(corners).vertices, alone.vertices)


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


@pytest.mark.parametrize("repeated", [[0, 1, 2, 0], [0, 0, 1, 2, 0, 0], [0, 1, 1, 2]])
def test_corners_may_be_repeated(repeated):
    """The sum of ReLU(u) and ReLU(v) over a triangle in the plane is its known mean."""
    corners = np.array([[0.25, 0.5], [2.0, 0.5], [0.25, 1.0]])
    partition = exact_plane(relu_of([[1, 0], [0, 1]], [0, 0]), corners[repeated])
    np.testing.assert_array_equal(partition.at(partition.corners), corners)
    assert partition.integrate()[0] == pytest.approx(corners.sum() / 3)


@pytest.mark.parametrize(
    ("corners", "what"),
    [
        (np.zeros((3, 2)), "three different corners"),
        (np.zeros((0, 2)), "Received: 0 points"),
        ([[0, 0], [1, 1]], "three different corners"),
        ([[0, 0], [1, 1], [2, 2]], "must have an area"),
        ([[0, 0], [1, 1], [1, 0], [0, 1]], "must be convex"),
        ([[0, 0], [4, 0], [1, 1], [0, 4]], "must be convex"),
    ],
)
def test_polygons_that_are_refused(corners, what):
    with pytest.raises(nns.errors.InvalidArgumentError, match=what):
        exact_plane(relu_of([[1, 0]], [0]), np.array(corners, float))


@pytest.mark.parametrize("offset", [0, 1, 100])
@pytest.mark.parametrize("size", [2, 10, 784])
def test_float32_corners_are_exact_up_to_rounding(size, offset):
    """Points of a line, computed in float32, have no area; a corner may lie on an edge."""
    rng = np.random.default_rng(size + offset)
    plane_of = PlaneWalker(sequential((size,), dense(2))()).plane
    for _ in range(20):
        a, b, c = (rng.normal(size=(3, size)) + offset).astype(np.float32)
        share = np.float32(rng.uniform(0.1, 0.9))
        line = np.stack([a, b, a + share * (b - a)])[rng.permutation(3)]
        with pytest.raises(nns.errors.InvalidArgumentError, match="must have an area"):
            plane_of(line)
        quadrilateral = np.roll(np.stack([a, b, b + share * (c - b), c]), rng.integers(4), axis=0)
        area = plane_of(quadrilateral).total_area
        expected = plane_of(np.stack([a, b, c])).total_area
        assert area == pytest.approx(expected, rel=1e-5 * max(offset, 1))


def test_large_inputs_that_do_not_vary_are_no_rounding():
    corners = np.append(SQUARE, np.full((4, 1), 1e9), axis=1).astype(np.float32)
    assert exact_plane(relu_network(inputs=3), corners).total_area == pytest.approx(1)


def test_points_that_are_not_in_one_plane_or_not_inputs():
    im = nns.InstrumentedModel(relu_network(inputs=4))
    with pytest.raises(nns.errors.InvalidArgumentError, match="one plane"):
        exact_plane(im, np.eye(4))
    with pytest.raises(
        nns.errors.InputShapeError, match="polygon must have the model's input shape"
    ):
        exact_plane(im, np.zeros((3, 5)))
    with pytest.raises(nns.errors.NonFiniteActivationError, match="polygon"):
        exact_plane(im, np.full((3, 4), np.nan))
    with pytest.raises(nns.errors.InvalidArgumentError, match="max_regions"):
        exact_plane(im, np.eye(4)[:3], max_regions=0)
    with pytest.raises(nns.errors.InvalidArgumentError, match="not in the polygon"):
        exact_plane(im, np.eye(4)[:3]).outputs(np.array([[9.0, 9.0]]))


def test_sigmoid_is_refused_by_name():
    model = sequential((4,), dense(5), lambda: layers.Activation("tanh", name="bad"), dense(3))()
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'bad' \(tanh\)"):
        exact_plane(nns.InstrumentedModel(model), np.eye(4)[:3])


def test_maximum_of_too_many_values_is_refused_by_name():
    model = sequential((9, 9, 1), lambda: layers.GlobalMaxPooling2D(name="wide"))()
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'wide' is a maximum of 81 values"):
        PlaneWalker(nns.InstrumentedModel(model))


@pytest.mark.parametrize("seed", [55, 64, 68, 92])
def test_neighbours_that_one_maximum_divides_share_their_border_alone(seed):
    """Overlapping maxima of nine values: a face and its neighbour have cells of the same group."""
    stack = [
        dense(36),
        lambda: layers.Reshape((6, 6, 1)),
        lambda: layers.MaxPooling2D(3, strides=1),
        layers.Flatten,
        dense(2),
    ]
    model = float64_model(sequential((2,), *stack), seed)
    check_plane(exact_plane(model, 6 * SQUARE - 3), model)


def test_a_relu_before_a_maximum_of_64_values():
    """Together they would be a maximum of 65; the network is the ReLU of the largest value."""
    stack = dense(64), lambda: layers.Reshape((8, 8, 1)), layers.ReLU, layers.GlobalMaxPooling2D
    model = float64_model(sequential((3,), *stack))
    check_plane(exact_plane(model, polygon(model)), model)


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
    axes = partition.classify().plot()
    regions, edges = axes.collections
    assert len(regions.get_paths()) == len(partition.classify())
    assert len(edges.get_segments()) == len(partition.classify().boundary())
    assert "regions" in repr(partition) and "classes" in repr(partition.classify())
    assert partition.to_frame()["area"].sum() == pytest.approx(partition.total_area)
