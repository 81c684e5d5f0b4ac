"""Gradients along whole lines, checked against the backend's gradient of every part."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.exactline import (
    Attributor,
    LineWalker,
    exact_line,
    register_transformer,
    trace,
    walk,
)
from nnslicer_tf.exactline.bends import BendingTransformer, pulls_gradients
from nnslicer_tf.exactline.rules.pointwise import RectifyLine
from nnslicer_tf.instrument import Step

from .lines import float64_model, run
from .test_walk import MODELS, ends, without_softmax


def gradients(model, x, target):
    """Return the gradients of one output at inputs x, by the backend, float64."""
    x = tf.constant(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = tf.reshape(model(x), (len(x), -1))[:, target]
    return tape.gradient(out, x).numpy()


def traced(model, workers=0):
    """Return a line, its trace, and the model up to its logits."""
    (q,), (r,) = ends(model)
    partition, way = LineWalker(nns.InstrumentedModel(model), workers=workers).traced(q, r)
    return partition, way, without_softmax(model)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_every_part(name):
    model = float64_model(MODELS[name])
    partition, way, logits = traced(model)
    for target in (0, model.output_shape[-1] - 1):
        expected = gradients(logits, partition.at(partition.midpoints), target)
        found = way.gradients(target)
        np.testing.assert_allclose(
            found.at(partition.midpoints).reshape(expected.shape), expected, atol=1e-10
        )
        mean = np.tensordot(np.diff(partition.ratios), expected, axes=1)
        np.testing.assert_allclose(way.mean_gradient(target).reshape(mean.shape), mean, atol=1e-10)
        np.testing.assert_allclose(found.integrals().reshape(mean.shape), mean, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_lines_are_those_of_the_walk_without_a_trace(name):
    model = float64_model(MODELS[name], seed=5)
    (q,), (r,) = ends(model)
    partition, _, _ = traced(model)
    expected = exact_line(model, q, r)
    np.testing.assert_array_equal(partition.ratios, expected.ratios)
    np.testing.assert_array_equal(partition.outputs, expected.outputs)


@pytest.mark.parametrize(
    "name", ["dense", "overlapping pool", "residual", "inception", "odd routing", "broadcast sum"]
)
@pytest.mark.parametrize("workers", [1, 3])
def test_cutting_the_line_changes_nothing(name, workers, monkeypatch):
    model = float64_model(MODELS[name])
    _, way, _ = traced(model)
    places = np.sort(np.random.default_rng(0).random(200))
    whole = way.gradients(1).at(places)
    monkeypatch.setattr(walk, "CHUNK", 100)
    monkeypatch.setattr(trace, "CHUNK", 100)
    _, way, _ = traced(model, workers)
    assert len(way.ranges(1)) > 1
    np.testing.assert_allclose(way.gradients(1).at(places), whole, atol=1e-11)
    np.testing.assert_allclose(way.mean_gradient(1), way.gradients(1).integrals(), atol=1e-11)


def test_a_pixel_has_few_of_the_network_s_pieces():
    """The gradient at a corner does not change where a far corner of the first layer bends."""
    inputs = keras.Input((16, 16, 1))
    x = layers.Conv2D(6, 3, activation="relu")(inputs)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(2)(x))
    partition, way, _ = traced(model)
    pieces = np.diff(way.gradients(0).start)
    assert len(partition) > 200
    assert pieces.max() <= 9 * 6 + 2  # nine windows of six filters, of which each bends once
    assert pieces[0] <= 6 + 2


class Doubled(layers.Layer):
    """A layer of a kind that a user registers with a transformer only."""

    def call(self, x):
        return 2 * x


def test_a_user_s_transformer_with_a_way_back_takes_part():
    class Line:
        def __call__(self, x):
            return x.with_values(2 * x.values)

        def pull(self, g):
            return [g.with_values(2 * g.values)]

    nns.register_layer(Doubled, lambda layer, call: [Step("doubled both ways", layer.call)])
    register_transformer("doubled both ways", lambda operation: Line())
    model = float64_model(
        lambda: keras.Sequential(
            [keras.Input((4,)), layers.Dense(9, "relu"), Doubled(), layers.Dense(3)]
        )
    )
    attributor = Attributor(nns.InstrumentedModel(model))
    (q,), (r,) = ends(model)
    assert attributor.walker.can_trace
    path = attributor.path(r, q, 2)
    expected = gradients(model, path.partition.at(path.partition.midpoints), 2)
    np.testing.assert_allclose(path.gradients, expected, atol=1e-10)


def test_a_bending_transformer_needs_slopes_for_the_way_back():
    class Bending(BendingTransformer):
        bends = window = finish = pull = None

    assert not pulls_gradients(Bending())
    assert pulls_gradients(RectifyLine.__new__(RectifyLine))


def test_gradients_at_places_in_any_order():
    """At the end of a part, those of the part after it; at the line's end, of the last part."""
    model = float64_model(MODELS["dense"])
    (q,), (r,) = ends(model)
    path = Attributor(nns.InstrumentedModel(model)).path(r, q, 0)
    ratios = path.partition.ratios
    places = np.array([1.0, ratios[3], 0.0, ratios[3]])
    np.testing.assert_array_equal(path.at(places), path.gradients[[-1, 3, 0, 3]])
    np.testing.assert_array_equal(path.at(ratios[2]), path.gradients[[2]])
    for wrong in (-0.1, 1.5, np.nan):
        with pytest.raises(nns.errors.InvalidArgumentError, match=r"in \[0, 1\]"):
            path.at(np.array([0.5, wrong]))


def test_bad_ends_are_named_as_the_caller_named_them():
    model = float64_model(MODELS["dense"])
    attributor = Attributor(nns.InstrumentedModel(model))
    x = np.ones(4)
    for call in (attributor.path, attributor.exact):
        with pytest.raises(nns.errors.InputShapeError, match=r"^baseline must"):
            call(x, x[:3], 0)
        with pytest.raises(nns.errors.NonFiniteActivationError, match=r"^x is NaN"):
            call(x * np.nan, x, 0)
        with pytest.raises(nns.errors.InvalidArgumentError, match="one of 3 logits"):
            call(x, x, 3)


def test_a_transformer_without_a_way_back_is_differentiated_by_the_backend():
    nns.register_layer(Doubled, lambda layer, call: [Step("doubled", layer.call)])
    register_transformer("doubled", lambda operation: lambda x: x.with_values(2 * x.values))
    model = float64_model(
        lambda: keras.Sequential(
            [keras.Input((4,)), layers.Dense(9, "relu"), Doubled(), layers.Dense(3)]
        )
    )
    attributor = Attributor(nns.InstrumentedModel(model))
    (q,), (r,) = ends(model)
    assert not attributor.walker.can_trace
    path = attributor.path(r, q, 2)
    expected = gradients(model, path.partition.at(path.partition.midpoints), 2)
    np.testing.assert_allclose(path.gradients, expected, atol=1e-10)
    change = np.diff(run(model, np.stack([q, r]))[:, 2])
    np.testing.assert_allclose(attributor.exact(r, q, 2).sum(), change, atol=1e-9)


def test_where_a_relu_is_zero_on_the_whole_line_its_gradient_is_zero():
    """As in the backend: a pixel without bias, black at both ends, has a value of exactly 0."""
    model = float64_model(
        lambda: keras.Sequential(
            [keras.Input((3,)), layers.Dense(5, "relu", use_bias=False), layers.Dense(2)]
        )
    )
    kernel = model.layers[0].kernel
    kernel.assign(kernel * np.array([[0.0], [1], [1]]))
    attributor = Attributor(nns.InstrumentedModel(model))
    np.testing.assert_array_equal(attributor.exact([3, 0, 0], [1, 0, 0], 1), np.zeros(3))
    found = attributor.path([3, 0, 0], [1, 0, 0], 1)
    np.testing.assert_array_equal(found.gradients, gradients(model, np.array([[2.0, 0, 0]]), 1))
