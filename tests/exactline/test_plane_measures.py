"""Measures of planes: classes, areas, boundaries, margins, means."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.exactline import (
    Attributor,
    exact_line,
    exact_plane,
    integrated_gradients,
)

from .lines import float64_model, run
from .planes import SQUARE, polygon, relu_network
from .test_walk import MODELS, dense, sequential, without_softmax


def test_classes_areas_and_boundaries_are_exact():
    """Three affine logits: the classes are the cells of their upper envelope."""
    model = float64_model(sequential((2,), dense(3)))
    model.set_weights([np.array([[1.0, -1, 0], [0, 0, 1]]), np.zeros(3)])
    corners = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    partition = exact_plane(nns.InstrumentedModel(model), corners)
    assert len(partition) == 1 and len(partition.classify()) == 3
    places = partition.coordinates(np.array([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5]]))
    assert partition.classify().label_at(places).tolist() == [0, 1, 2]
    assert [partition.classify().area(label) for label in range(3)] == pytest.approx(
        [0.375, 0.375, 0.25]
    )
    lengths = [
        np.linalg.norm(np.diff(partition.classify().boundary(a, b), axis=1), axis=-1).sum()
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
    classes = partition.classify()
    assert (classes.label_at(places) == labels).mean() > 0.9999
    for label in range(outputs.shape[1]):
        share = (labels == label).mean()
        assert classes.area(label) == pytest.approx(share, abs=4 / np.sqrt(len(labels)))
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


def test_keras_models_are_taken_as_they_are():
    model = float64_model(sequential((2,), dense(6, "relu"), dense(3)))
    im = nns.InstrumentedModel(model)
    q, r = SQUARE[0], SQUARE[2]

    def measures(model):
        yield exact_plane(model, SQUARE).integrate()
        yield integrated_gradients(model, r, q, 1)
        yield Attributor(model).path(r, q, 1).exact()

    for found, expected in zip(measures(model), measures(im), strict=True):
        np.testing.assert_allclose(found, expected)


def test_a_polygon_may_be_closed():
    """The first corner once more at the end, as geographers write polygons, changes nothing."""
    im = nns.InstrumentedModel(relu_network((8, 8), inputs=4))
    origin, *axes = np.random.default_rng(1).normal(size=(3, 4)) * 2
    corners = origin + SQUARE[:3] @ np.stack(axes)
    closed = np.concatenate([corners, corners[:1]])
    plane, same = exact_plane(im, corners), exact_plane(im, closed)
    np.testing.assert_array_equal(same.at(same.vertices), plane.at(plane.vertices))
    np.testing.assert_array_equal(same.integrate(), plane.integrate())
