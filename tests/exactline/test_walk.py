import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.exactline import (
    LineWalker,
    exact_line,
    integrated_gradients,
    register_transformer,
    walk,
)
from nnslicer_tf.instrument import Elementwise, Step

from .lines import check_partition, float64_model, kinks_by_subdivision, run


class Fold(layers.Layer):
    """A user's own piecewise-linear layer: 1 at the knots -1 and 1, 0 at 0."""

    def call(self, x):
        return ops.minimum(ops.abs(x), 2 - ops.abs(x))


nns.register_layer(
    Fold, lambda layer, call: [Step("elementwise", layer.call, Elementwise("fold", (-1, 0, 1)))]
)


def sequential(shape, *stack):
    """Return a builder: layers are made when the model is, in its dtype."""
    return lambda: keras.Sequential([keras.Input(shape), *(make() for make in stack)])


def dense(units, activation=None):
    return lambda: layers.Dense(units, activation=activation)


def conv(filters, size=3, **options):
    return lambda: layers.Conv2D(filters, size, **options)


def residual():
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    y = layers.BatchNormalization()(x)
    y = layers.ReLU()(y)
    y = layers.Conv2D(4, 3, padding="same")(y)
    x = layers.Add()([x, y])
    y = layers.BatchNormalization()(x)
    y = layers.Activation("relu")(y)
    y = layers.Conv2D(6, 3, strides=2, padding="same")(y)
    x = layers.Conv2D(6, 1, strides=2)(x)
    x = layers.ReLU()(x - y)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def inception():
    inputs = keras.Input((6, 6, 2))
    branches = [
        layers.Conv2D(3, 1, activation="relu")(inputs),
        layers.Conv2D(2, 3, padding="same", activation="relu")(
            layers.Conv2D(2, 1, activation="relu")(inputs)
        ),
        layers.Conv2D(2, 1)(layers.MaxPooling2D(3, 1, padding="same")(inputs)),
        layers.AveragePooling2D(3, 1, padding="same")(inputs),
    ]
    x = layers.Concatenate()(branches)
    x = layers.GlobalMaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def extrema():
    inputs = keras.Input((5,))
    parts = [layers.Dense(6)(inputs) for _ in range(4)]
    high = layers.Maximum()(parts[:3])
    low = layers.Minimum()([layers.ReLU()(high), parts[3]])
    return keras.Model(inputs, layers.Dense(2)(low))


def odd_routing():
    inputs = keras.Input((4, 4, 3))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.Reshape((8, 8))(x)
    x = layers.Permute((2, 1))(x)
    x = layers.Conv1D(3, 2, activation="relu")(x)
    x = layers.Reshape((21,))(x)
    return keras.Model(inputs, layers.Dense(2)(x))


def shared_and_nested():
    block = keras.Sequential([keras.Input((4,)), layers.Dense(4, activation="relu")])
    inputs = keras.Input((4,))
    x = block(block(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Concatenate()([x, block(x)])))


def broadcast_sum():
    inputs = keras.Input((4, 4, 3))
    x = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    pooled = layers.GlobalMaxPooling2D(keepdims=True)(x)
    x = layers.ReLU()(layers.Subtract()([x, layers.Conv2D(3, 1)(pooled)]))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


MODELS = {
    "dense": sequential((4,), dense(12, "relu"), dense(12, "relu"), dense(3)),
    "affine": sequential((4,), dense(5), dense(3)),
    "single output": sequential((4,), dense(9, "relu"), dense(1, "sigmoid")),
    "relu then pool": sequential(
        (9, 9, 1), conv(4, activation="relu"), layers.MaxPooling2D, layers.Flatten, dense(3)
    ),
    "pool then relu": sequential(
        (9, 9, 1), conv(4), layers.MaxPooling2D, layers.ReLU, layers.Flatten, dense(3)
    ),
    "overlapping pool": sequential(
        (8, 8, 2),
        conv(3, activation="relu"),
        lambda: layers.MaxPooling2D(3, 2, padding="same"),
        conv(4, 2, activation="relu"),
        layers.GlobalMaxPooling2D,
        dense(3),
    ),
    "relu6 then pool": sequential(
        (8, 8, 1), conv(3), lambda: layers.ReLU(6.0), layers.MaxPooling2D, layers.Flatten, dense(2)
    ),
    "clipped": sequential((4,), dense(9), lambda: layers.ReLU(0.75), dense(3)),
    "leaky": sequential((4,), dense(9), lambda: layers.LeakyReLU(0.2), dense(3)),
    "prelu": sequential((3, 3, 2), conv(4, 2), layers.PReLU, layers.Flatten, dense(3)),
    "hard tanh": sequential((4,), dense(9, "hard_tanh"), dense(3)),
    "hard sigmoid": sequential((4,), dense(9, "hard_sigmoid"), dense(3)),
    "own operation": sequential((4,), dense(9), Fold, dense(6), Fold, dense(3)),
    "strided, dilated": sequential(
        (9, 9, 2),
        conv(4, 3, strides=2, padding="same", activation="relu"),
        conv(4, 2, dilation_rate=2, activation="relu"),
        layers.Flatten,
        dense(3),
    ),
    "grouped, depthwise, separable": sequential(
        (7, 7, 4),
        conv(6, 3, groups=2, activation="relu"),
        lambda: layers.DepthwiseConv2D(2, depth_multiplier=2, activation="relu"),
        lambda: layers.SeparableConv2D(3, 2, activation="relu"),
        layers.Flatten,
        dense(3),
    ),
    "grouped, of one pixel": sequential(
        (4, 4, 4),
        conv(6, 1, groups=2, activation="relu"),
        conv(4, 2, activation="relu"),
        layers.Flatten,
        dense(3),
    ),
    "transposed": sequential(
        (3, 3, 2),
        lambda: layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D,
        dense(3),
    ),
    "one dimension": sequential(
        (12, 2),
        lambda: layers.Conv1D(4, 3, padding="causal", activation="relu"),
        lambda: layers.MaxPooling1D(2),
        layers.Flatten,
        dense(2),
    ),
    "three dimensions": sequential(
        (4, 4, 4, 1),
        lambda: layers.Conv3D(3, 2, activation="relu"),
        lambda: layers.ZeroPadding3D(1),
        lambda: layers.Conv3D(2, 2, strides=2, activation="relu"),
        layers.Flatten,
        dense(2),
    ),
    "padding, cropping, upsampling": sequential(
        (4, 4, 2),
        lambda: layers.ZeroPadding2D(1),
        conv(3, activation="relu"),
        lambda: layers.UpSampling2D(2),
        lambda: layers.Cropping2D(1),
        lambda: layers.Dropout(0.5),
        conv(2, activation="relu"),
        layers.Flatten,
        dense(3),
    ),
    "rescaled": sequential(
        (4,), lambda: layers.Rescaling(0.5, -0.125), dense(8, "relu"), dense(3, "softmax")
    ),
    "norm after relu": sequential(
        (6, 6, 1),
        conv(4, activation="relu"),
        layers.BatchNormalization,
        layers.MaxPooling2D,
        layers.Flatten,
        dense(3),
    ),
    "residual": residual,
    "inception": inception,
    "maximum and minimum": extrema,
    "odd routing": odd_routing,
    "shared and nested": shared_and_nested,
    "broadcast sum": broadcast_sum,
}


def without_softmax(model):
    """Return the model up to its logits."""
    last = model.layers[-1]
    if getattr(last, "activation", None) in (
        keras.activations.softmax,
        keras.activations.sigmoid,
    ):
        last.activation = keras.activations.linear
    return model


def ends(model, lines=1, scale=3.0, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, lines, *model.input_shape[1:])) * scale


@pytest.mark.parametrize("name", MODELS)
def test_network_is_affine_on_parts_that_differ(name):
    model = float64_model(MODELS[name])
    im = nns.InstrumentedModel(model)
    partitions = LineWalker(im).lines(*ends(model, lines=4))
    for partition in partitions:
        check_partition(partition, without_softmax(model))
    assert (sum(map(len, partitions)) > 8) == (name != "affine")


@pytest.mark.parametrize(
    "name", ["dense", "relu then pool", "own operation", "residual", "inception", "hard tanh"]
)
def test_equals_subdivision(name):
    model = float64_model(MODELS[name], seed=3)
    (q,), (r,) = ends(model)
    partition = exact_line(nns.InstrumentedModel(model), q, r)
    kinks = kinks_by_subdivision(lambda t: run(without_softmax(model), partition.at(t)))
    assert len(kinks) > 3
    np.testing.assert_allclose(partition.ratios[1:-1], kinks, rtol=0, atol=1e-8)


def relu_and_pool(merged):
    """ReLU and max pooling over one window of four values; a layer between keeps them apart."""
    between = [] if merged else [layers.Rescaling(1.0)]
    steps = [keras.Input((2, 2, 1)), layers.ReLU(), *between, layers.MaxPooling2D()]
    return nns.InstrumentedModel(keras.Sequential(steps))


@pytest.mark.parametrize(("merged", "parts"), [(True, 1), (False, 2)])
def test_merging_leaves_out_crossings_below_the_maximum(merged, parts):
    """The first value stays the largest; the second passes 0."""
    q, r = np.reshape((3, 1, -9, -9), (2, 2, 1)), np.reshape((2, -1, -9, -9), (2, 2, 1))
    assert len(LineWalker(relu_and_pool(merged), every_crossing=True).line(q, r)) == parts
    assert len(exact_line(relu_and_pool(merged), q, r)) == 1


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ((1, 0.1, -9, -9), (-1, -0.5, -9, -9), [0.5]),  # zero before the others overtake
        ((-1, -2, -9, -9), (-0.5, 2, -9, -9), [0.5]),  # rises from zero
        ((1, 0, -9, -9), (0, 1, -9, -9), [0.5]),  # overtaken above zero
        ((1, 1, 1, 1), (2, 2, 2, 2), []),  # a tie all the way
        ((1, 1, 0, 0), (1, 3, 0, 0), []),  # a tie at the start only
        ((1, 2, 0, 0), (3, 3, 0, 0), []),  # a tie at the end only
        ((-1, -1, -1, -1), (-2, -3, -4, -5), []),  # dead
        ((0, 0, 0, 0), (1, -1, 1, 0), []),  # all at zero, then one rises
        ((0, 0, 0, 0), (-1, -2, -3, -4), []),
        ((1, -3, -9, -9), (-3, 1, -9, -9), [0.25, 0.75]),  # down to zero and up again
        ((2, 1, 0.5, -9), (-2, 1, 2.5, -9), [0.25]),  # three of them meet at 0.25
        ((4, 0, -4, -9), (-4, 1, 3, -9), [0.44444444444444, 0.66666666666667]),
    ],
)
def test_one_window(start, end, expected, merged):
    q, r = np.reshape(start, (2, 2, 1)), np.reshape(end, (2, 2, 1))
    partition = exact_line(relu_and_pool(merged), q, r)
    np.testing.assert_allclose(partition.ratios, [0, *expected, 1], rtol=0, atol=1e-12)
    t = np.linspace(0, 1, 101)
    maxima = np.maximum(partition.at(t).reshape(101, 4).max(axis=1), 0)
    np.testing.assert_allclose(partition.evaluate(t).ravel(), maxima, rtol=0, atol=1e-12)


def relu_of(weights, biases):
    """Σ ReLU(w t + b) on the line from 0 to 1."""
    model = keras.Sequential([keras.Input((1,)), layers.Dense(len(weights), "relu")])
    model.set_weights([np.array([weights], np.float32), np.array(biases, np.float32)])
    return nns.InstrumentedModel(model)


@pytest.mark.parametrize(
    ("weights", "biases", "expected"),
    [
        ([1, 2, -4, 8], [-0.5, -1, 2, -4], [0.5]),  # many neurons cross at once
        ([1, 1], [0, -1], []),  # exactly 0 at an end
        ([0, 0], [0, -1], []),  # 0 or dead all along
        ([-1, 1], [0, -0.25], [0.25]),
        ([1, 1], [-0.25, -0.25 - 2**-20], [0.25, 0.25 + 2**-20]),  # close, yet apart
    ],
)
def test_degenerate_crossings(weights, biases, expected):
    walker = LineWalker(relu_of(weights, biases), every_crossing=True)
    partition = walker.line(np.zeros(1), np.ones(1))
    np.testing.assert_allclose(partition.ratios, [0, *expected, 1], rtol=0, atol=1e-15)


def test_a_line_that_is_a_point():
    model = float64_model(MODELS["relu then pool"])
    (q,), _ = ends(model)
    partition = exact_line(nns.InstrumentedModel(model), q, q)
    assert partition.ratios.tolist() == [0, 1] and partition.length == 0
    np.testing.assert_allclose(partition.outputs, run(model, np.stack([q, q])), atol=1e-12)


@pytest.mark.parametrize("name", ["relu then pool", "residual"])
def test_theorem_3_parts_of_a_line_compose(name):
    """Walking the pieces of a line gives the pieces of the walk."""
    model = float64_model(MODELS[name])
    walker = LineWalker(nns.InstrumentedModel(model))
    (q,), (r,) = ends(model)
    whole = walker.line(q, r)
    cuts = np.array([0, 0.21, 0.5, 0.77, 1])
    vertices = whole.at(cuts)
    parts = walker.lines(vertices[:-1], vertices[1:])
    joined = [a + part.ratios[1:-1] * (b - a) for a, b, part in zip(cuts, cuts[1:], parts)]
    np.testing.assert_allclose(np.concatenate(joined), whole.ratios[1:-1], rtol=0, atol=1e-9)


def test_theorem_3_layers_compose():
    """P(h ∘ g) is P(g), with P(h) on the image of every part of it."""
    model = float64_model(MODELS["dense"])
    (q,), (r,) = ends(model)
    inner = keras.Model(model.inputs, model.layers[0].output)
    outer = keras.Sequential([keras.Input((12,), dtype="float64"), *model.layers[1:]])
    first = LineWalker(nns.InstrumentedModel(inner), every_crossing=True).line(q, r)
    walker = LineWalker(nns.InstrumentedModel(outer), every_crossing=True)
    ratios = [first.ratios[:1]]
    for a, b, x, y in zip(
        first.ratios, first.ratios[1:], first.outputs, first.outputs[1:], strict=False
    ):
        ratios.append(a + walker.line(x, y).ratios[1:] * (b - a))
    whole = LineWalker(nns.InstrumentedModel(model), every_crossing=True).line(q, r)
    np.testing.assert_allclose(whole.ratios, np.concatenate(ratios), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["relu then pool", "residual", "odd routing", "dense"])
def test_batches_and_chunks_change_nothing(name, monkeypatch):
    model = float64_model(MODELS[name])
    im = nns.InstrumentedModel(model)
    q, r = ends(model, lines=7)
    alone = [exact_line(im, *pair) for pair in zip(q, r, strict=True)]
    together = LineWalker(im).lines(q, r)
    monkeypatch.setattr(walk, "CHUNK", 200)
    in_chunks = [LineWalker(im, workers=workers).lines(q, r) for workers in (1, 3)]
    for one, *others in zip(alone, together, *in_chunks, strict=True):
        for partition in others:
            np.testing.assert_allclose(one.ratios, partition.ratios, rtol=0, atol=1e-10)
            np.testing.assert_allclose(one.outputs, partition.outputs, rtol=0, atol=1e-10)
        assert len(one) > 3


def test_float32_model_is_walked_in_float64():
    model = sequential((6,), dense(20, "relu"), dense(20, "relu"), dense(3))()
    exact = float64_model(sequential((6,), dense(20, "relu"), dense(20, "relu"), dense(3)))
    exact.set_weights(model.get_weights())
    (q,), (r,) = ends(model)
    check_partition(exact_line(nns.InstrumentedModel(model), q, r), exact, atol=1e-13)


def test_polyline_is_its_segments():
    model = float64_model(MODELS["dense"])
    im = nns.InstrumentedModel(model)
    vertices = np.random.default_rng(0).normal(size=(4, 4))
    for i, partition in enumerate(LineWalker(im).lines(vertices[:-1], vertices[1:])):
        segment = exact_line(im, vertices[i], vertices[i + 1])
        np.testing.assert_allclose(partition.ratios, segment.ratios, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (lambda: layers.Activation("sigmoid", name="bad"), "sigmoid"),
        (lambda: layers.Activation("tanh", name="bad"), "tanh"),
        (lambda: layers.Activation("gelu", name="bad"), "gelu"),
        (lambda: layers.Softmax(name="bad"), "softmax"),
        (lambda: layers.LayerNormalization(name="bad"), "LayerNormalization"),
    ],
)
def test_operation_that_is_not_piecewise_linear_is_named(layer, what):
    model = sequential((4,), dense(5), layer, dense(3))()
    with pytest.raises(nns.errors.UnsupportedLayerError, match=rf"'bad' \({what}\)"):
        exact_line(nns.InstrumentedModel(model), np.zeros(4), np.ones(4))


def test_product_of_tensors_is_refused():
    inputs = keras.Input((4,))
    product = layers.Multiply(name="gate")([layers.Dense(4)(inputs), inputs])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'gate'"):
        LineWalker(nns.InstrumentedModel(keras.Model(inputs, product)))


class WronglyKnotted(layers.Layer):
    def call(self, x):
        return ops.maximum(x, 0.5)


def test_wrong_knots_are_found():
    nns.register_layer(
        WronglyKnotted,
        lambda layer, call: [Step("elementwise", layer.call, Elementwise("wrong", (0.0,)))],
    )
    model = sequential((4,), WronglyKnotted, dense(3))()
    with pytest.raises(nns.errors.InvalidArgumentError, match="not continuous and linear between"):
        LineWalker(nns.InstrumentedModel(model))


def test_a_walker_is_kept_until_weights_change(monkeypatch):
    made = []
    init = LineWalker.__init__
    monkeypatch.setattr(LineWalker, "__init__", lambda self, im: made.append(im) or init(self, im))
    model = float64_model(sequential((4,), dense(4), dense(4)))
    im = nns.InstrumentedModel(model)
    q, r = np.zeros(4), np.full(4, 2.0)
    first = exact_line(im, q, r)
    np.testing.assert_array_equal(exact_line(im, q, r).outputs, first.outputs)
    assert len(made) == 1
    model.set_weights([2 * weight for weight in model.get_weights()])
    fresh = exact_line(nns.InstrumentedModel(model), q, r)
    np.testing.assert_array_equal(exact_line(im, q, r).outputs, fresh.outputs)
    assert len(made) == 3 and (fresh.outputs[-1] != first.outputs[-1]).all()


class Doubling(layers.Layer):
    def call(self, x):
        return 2 * x


def test_registered_transformer_is_used():
    nns.register_layer(Doubling, lambda layer, call: [Step("doubling", layer.call)])
    im = nns.InstrumentedModel(sequential((4,), Doubling)())
    with pytest.raises(nns.errors.UnsupportedLayerError, match="not piecewise linear"):
        exact_line(im, np.zeros(4), np.ones(4))
    register_transformer("doubling", lambda operation: lambda x: x.with_values(2 * x.values))
    partition = exact_line(im, np.zeros(4), np.full(4, 2.0))
    np.testing.assert_array_equal(partition.outputs, [[0.0] * 4, [4.0] * 4])


@pytest.mark.parametrize(
    ("q", "r", "error", "message"),
    [
        (np.zeros(3), np.ones(4), nns.errors.InputShapeError, r"start must have .* \(4,\).*\(3,\)"),
        (np.zeros(4), np.ones((1, 4)), nns.errors.InputShapeError, r"end must have"),
        (
            np.zeros(4),
            np.array(["a"] * 4),
            nns.errors.InputShapeError,
            "end must be an array of numbers",
        ),
        (
            np.array([0, np.nan, 0, 0]),
            np.ones(4),
            nns.errors.NonFiniteActivationError,
            r"start .*\(1,\)",
        ),
        (
            np.zeros(4),
            np.array([0, 0, np.inf, 0]),
            nns.errors.NonFiniteActivationError,
            r"end .*\(2,\)",
        ),
    ],
)
def test_bad_points_are_refused(q, r, error, message):
    im = nns.InstrumentedModel(MODELS["affine"]())
    with pytest.raises(error, match=message):
        exact_line(im, q, r)


def test_bad_batches_are_refused():
    im = nns.InstrumentedModel(MODELS["affine"]())
    with pytest.raises(nns.errors.InputShapeError, match="same number of points"):
        LineWalker(im).lines(np.zeros((2, 4)), np.zeros((3, 4)))
    assert LineWalker(im).lines(np.zeros((0, 4)), np.zeros((0, 4))) == []


@pytest.mark.parametrize(
    ("file", "step", "least"),
    [("lenet1.h5", 1.0, 200), ("resnet.h5", 2e-3, 100)],
)
def test_real_network(shared, file, step, least):
    """The points and middles of the parts have the values of Keras's own layers in float64."""
    model = keras.models.load_model(shared / "models" / "diffchaser" / file, compile=False)
    im = nns.InstrumentedModel(model)
    rng = np.random.default_rng(0)
    q = rng.uniform(0, 1, im.input_shape)
    partition = exact_line(im, q, q + step * rng.normal(size=im.input_shape))
    ratios = np.sort(np.concatenate([partition.ratios, partition.midpoints]))[::7]
    x = keras.ops.convert_to_tensor(partition.at(ratios), dtype="float64")
    expected = keras.ops.convert_to_numpy(im.graph.run(x, [im.logit_operation])[im.logit_operation])
    assert len(partition) > least and expected.dtype == np.float64
    np.testing.assert_allclose(partition.evaluate(ratios), expected, rtol=0, atol=1e-10)


def test_a_line_of_too_many_parts_is_refused():
    model = float64_model(MODELS["dense"])
    im = nns.InstrumentedModel(model)
    (start,), (end,) = ends(model)
    parts = len(LineWalker(im, every_crossing=True).line(start, end))
    assert len(exact_line(im, start, end, max_parts=parts)) <= parts
    with pytest.raises(
        nns.errors.TooManyRegionsError, match=f"more than {parts - 1} parts: {parts} "
    ):
        exact_line(im, start, end, max_parts=parts - 1)
    with pytest.raises(nns.errors.TooManyRegionsError, match="more than 1 parts"):
        integrated_gradients(im, end, start, 0, max_parts=1)
    with pytest.raises(nns.errors.InvalidArgumentError, match="max_parts"):
        exact_line(im, start, end, max_parts=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ops.sort(x, -1),
        lambda x: ops.stack([ops.maximum(x[:, 0], x[:, 1]), x[:, 2]], axis=1),
        lambda x: ops.expand_dims(ops.relu(ops.sum(x, axis=-1)), -1),
    ],
)
def test_operations_of_a_single_value(function):
    inputs = keras.Input((4,), dtype="float64")
    model = float64_model(lambda: keras.Model(inputs, layers.Dense(3)(function(inputs))))
    start, end = np.random.default_rng(3).normal(size=(2, 4)) * 3
    line = exact_line(nns.InstrumentedModel(model), start, end)
    check_partition(line, model)
    change = line.outputs[-1, 0] - line.outputs[0, 0]
    assert integrated_gradients(model, end, start, 0).sum() == pytest.approx(change)


@pytest.mark.parametrize("bound", [0.3, -1 / 3, 30.3, 1e-3])
@pytest.mark.parametrize("name", ["maximum", "minimum", "turned", "clip"])
def test_bounds_that_no_float32_has(bound, name):
    """Exact lines compute in float64, in which 0.3 is another number than in the model."""
    functions = {
        "maximum": lambda h: ops.maximum(h, bound),
        "minimum": lambda h: ops.minimum(h, bound),
        "turned": lambda h: ops.maximum(bound, h),
        "clip": lambda h: ops.clip(h, bound, bound + 0.7),
    }
    keras.utils.set_random_seed(7)
    inputs = keras.Input((4,))
    bent = functions[name](10 * layers.Dense(12)(inputs))
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(3)(bent)))
    start, end = np.random.default_rng(0).normal(size=(2, 4)) * 2
    line = exact_line(im, start, end, progress=False)
    places = np.linspace(0, 1, 200)
    expected = im.logits(line.at(places).astype(np.float32))
    np.testing.assert_allclose(line.evaluate(places), expected, atol=2e-4)
