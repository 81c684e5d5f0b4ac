"""Disagreement of two networks: known strips, samples, and the number of classes."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from reproduction.exactline.disagreements import disagreement

from ...exactline.lines import float64_model, run
from ...exactline.planes import SQUARE, polygon, relu_of
from ...exactline.test_walk import MODELS, dense, sequential, without_softmax


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
    with pytest.raises(nns.errors.InvalidArgumentError, match="same inputs"):
        disagreement(ims[0], relu_of([[1, 0]], [0]), corners)


def test_a_polygon_takes_64_classes_and_a_line_more():
    """Classifiers that prefer the nearest of many directions; the second is turned by half a step.

    From the middle, every direction is half of the way in one sector of the second.
    """

    def sectors(classes, turn):
        angles = 2 * np.pi * (np.arange(classes) + turn) / classes
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(classes)])
        model.set_weights([np.stack([np.cos(angles), np.sin(angles)]), np.zeros(classes)])
        return model

    corners = 2 * SQUARE - 1
    found = disagreement(sectors(64, 0), sectors(64, 0.5), corners)
    assert found.share == pytest.approx(0.5, abs=0.02)
    assert (found.shares.sum(axis=1) > 0).sum() == 64
    with pytest.raises(
        nns.errors.InvalidArgumentError, match=r"up to 64 classes.*Received: 100 classes"
    ):
        disagreement(sectors(100, 0), sectors(100, 0.5), corners)
    side = corners[1:3]  # x = 1, seen from the middle: a quarter of all sectors
    on_line = disagreement(sectors(100, 0), sectors(100, 0.5), side)
    heights = np.linspace(-1, 1, 200_001)
    place = np.arctan2(heights, 1) / (2 * np.pi) * 100
    labels = np.round(place) % 100, np.round(place - 0.5) % 100
    assert on_line.share == pytest.approx((labels[0] != labels[1]).mean(), abs=1e-3)
    assert on_line.share == pytest.approx(0.5, abs=0.05)
