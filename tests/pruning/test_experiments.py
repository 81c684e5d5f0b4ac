"""What the experiments on target classes stand on."""

from math import comb

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf.pruning.experiments import (
    ABLATED,
    Cells,
    draw_subsets,
    kept_rankings,
    subset_figures,
)


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def test_figures_of_a_subset():
    y = np.array([0, 0, 1, 2, 2])
    logits = np.array([[3, 1, 2], [1, 2, 3], [1, 0, 2], [0, 1, 2], [2, 1, 0]], float)
    found = subset_figures(logits, y, [2, 0])
    assert found == {"targets": 0.5, "others": 0.0, "all": 0.4, "among_targets": 0.5}
    # Among 0 and 1 alone: 0; 1; then 0, which is wrong.
    assert subset_figures(logits, y, [0, 1])["among_targets"] == pytest.approx(1 / 3)
    assert np.isnan(subset_figures(logits, y, [0, 1, 2])["others"])


def test_subsets():
    assert len(draw_subsets(10, 4)) == comb(10, 4) == 210
    assert draw_subsets(3, 2) == [(0, 1), (0, 2), (1, 2)]
    drawn = draw_subsets(10, 4, 7, rng=1)
    assert drawn == draw_subsets(10, 4, 7, rng=1) != draw_subsets(10, 4, 7, rng=2)
    assert len(set(drawn)) == 7 and drawn == sorted(drawn)
    with pytest.raises(nns.InvalidArgumentError, match="no sets of 5 among 4"):
        draw_subsets(4, 5)


def test_cells_are_kept(tmp_path):
    path = tmp_path / "cells.csv"
    cells = Cells(path, ["method", "ratio"])
    assert {"method": "weight", "ratio": 0.5} not in cells
    cells.add([{"method": "weight", "ratio": 0.5, "accuracy": 0.25}])
    cells.add([{"method": "weight", "ratio": 0.1, "accuracy": 1 / 3}])
    again = Cells(path, ["method", "ratio"])
    assert {"method": "weight", "ratio": 0.5} in again
    assert {"method": "weight", "ratio": 0.6} not in again
    asked = [{"method": "weight", "ratio": ratio} for ratio in (0.1, 0.5)]
    assert list(again.to_frame(asked)["accuracy"]) == [1 / 3, 0.25]
    assert list(again.to_frame(asked[1:])["accuracy"]) == [0.25]
    again.add([{"method": "random", "ratio": 0.1, "accuracy": 0.0}])
    assert len(Cells(path, ["method", "ratio"])) == 3
    path.write_text("")
    with pytest.raises(nns.CorruptFileError, match="does not hold the cells"):
        Cells(path, ["method", "ratio"])


def normalised_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, name="conv"),
            layers.BatchNormalization(epsilon=1e-3, name="norm"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(3, name="logits"),
        ]
    )
    rng = np.random.default_rng(3)
    norm = model.get_layer("norm")
    norm.set_weights([rng.uniform(0.5, 1, w.shape) for w in norm.get_weights()])
    return model


def test_rankings_are_made_once(tmp_path):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    train = datasets.load("digits", "train[:300]")
    found = kept_rankings(im, train, 2, 50, tmp_path)
    x = np.concatenate([train.x[train.y == c][:2] for c in range(10)])
    y = np.repeat(np.arange(10), 2)
    profile = nns.Profile.from_data(im, train.x[:50])
    expected = pruning.NNSlicerRanker(profile=profile).by_class(im, x, y)
    for name, scores in expected.total([3, 5]).items():
        np.testing.assert_array_equal(found["slices"].total([3, 5])[name], scores)
    kernels = {kind: scores.total([3])["conv2"] for kind, scores in found.items()}
    for kind in ("magnitudes", "paths"):
        assert np.any(kernels[kind] != kernels["slices"])
    others = datasets.load("digits", "train[300:400]")  # not looked at: the files are there
    again = kept_rankings(im, others, 2, 50, tmp_path)
    for name, scores in expected.total([3]).items():
        np.testing.assert_array_equal(again["slices"].total([3])[name], scores)


def test_ablated_rankings_change_one_thing_of_the_papers(tmp_path):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    train = datasets.load("digits", "train[:300]")
    found = kept_rankings(im, train, 2, 50, tmp_path, ABLATED)
    profile = nns.Profile.load(tmp_path / "profile.npz")
    threes = train.x[train.y == 3][:2]
    for name, theta, granularity in (
        ("slices", 0.3, "activation"),
        ("theta0", 0.0, "activation"),
        ("theta1", 1.0, "activation"),
        ("channels", 0.3, "channel"),
    ):
        slicer = nns.Slicer(im, profile, theta, granularity, workers=0)
        expected = slicer.slice(threes, outputs=[3]).synapses["conv2"]
        np.testing.assert_array_equal(found[name].total([3])["conv2"], expected)
    assert set(found) == {*ABLATED} >= {"magnitudes", "all-samples"}


def test_normalisations_get_the_statistics_of_the_samples():
    model = normalised_model()
    x = np.random.default_rng(4).normal(size=(40, 6, 6, 2)).astype(np.float32)
    sums = nns.InstrumentedModel(model).capture(x, of=["conv"])["conv"]
    found = pruning.renormalise(model, x).get_layer("norm")
    np.testing.assert_allclose(found.moving_mean, sums.mean(axis=(0, 1, 2)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.moving_variance, sums.var(axis=(0, 1, 2)), rtol=1e-4)
    assert found.momentum == model.get_layer("norm").momentum == 0.99
    with pytest.raises(nns.InvalidArgumentError, match="two samples at least"):
        pruning.renormalise(model, x[:1])


def test_a_predictor_gives_what_pruned_models_give():
    model = normalised_model()
    im = nns.InstrumentedModel(model)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 6, 6, 2)).astype(np.float32)
    predictor = pruning.MaskedPredictor(im)
    for seed in range(3):
        keep = pruning.keep_masks(pruning.RandomRanker(seed).scores(im), 0.6)
        keep["conv"][..., seed] = False
        pruned = pruning.apply_masks(model, keep)
        np.testing.assert_allclose(predictor.logits(keep, x), outputs(pruned, x), rtol=1e-5)
        again = pruning.renormalise(pruned, x[:20])
        found = predictor.logits(keep, x, renormalise_on=x[:20])
        np.testing.assert_allclose(found, outputs(again, x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(predictor.logits({}, x), outputs(model, x), rtol=1e-6)


def test_fine_tuning_keeps_the_masks_and_brings_accuracy_back():
    model = zoo.load("digits_cnn")
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    im = nns.InstrumentedModel(model)
    pruned = pruning.prune(model, pruning.scores(im, "weight"), 0.85)
    before = zoo.accuracy(pruned, test)
    tuned = pruning.fine_tune(pruned, train.x, train.y, 4, batch_size=32, rng=1, progress=False)
    assert tuned is pruned
    assert zoo.accuracy(tuned, test) > max(0.8, before + 0.15)
    for name, mask in pruning.masks(tuned).items():
        assert not nns.InstrumentedModel(tuned).kernels[name].kernel()[~mask].any()
    with pytest.raises(nns.InvalidArgumentError, match="each of 3 samples"):
        pruning.fine_tune(tuned, train.x[:3], train.y[:2])
