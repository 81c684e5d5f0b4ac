"""Effective paths against their definition, spelled out for single neurons."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from reproduction.nnslicer.effective_path import EffectivePathRanker, effective_paths
from support import transformers


def smallest_set(contributions: np.ndarray, goal: float) -> set[int]:
    """By trying all sets of positive contributions; largest sum among the smallest sets."""
    positive = [i for i, v in enumerate(contributions) if v > 0]
    for size in range(len(positive) + 1):
        sets = [s for s in itertools.combinations(positive, size)]
        best = max(sets, key=lambda s: sum(contributions[i] for i in s))
        if sum(contributions[i] for i in best) >= goal:
            return set(best)
    return set(positive)


def dense_net(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    x = layers.Dense(5, activation="relu", bias_initializer="normal", name="hidden")(inputs)
    return keras.Model(inputs, layers.Dense(3, bias_initializer="normal", name="logits")(x))


@pytest.mark.parametrize("theta", [0.3, 0.5, 0.9, 1.0])
def test_a_dense_net_against_all_subsets(theta):
    some = 0
    for seed in range(3):
        model = dense_net(seed)
        im = nns.InstrumentedModel(model)
        x = np.random.default_rng(seed).normal(size=(8, 6)).astype(np.float32)
        matrix = effective_paths(im, x, theta, progress=False).toarray()
        (w1, b1), (w2, b2) = (model.get_layer(n).get_weights() for n in ("hidden", "logits"))
        for row, sample in zip(matrix, x, strict=True):
            hidden = np.maximum(sample @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            top = logits.argmax()
            expected1, expected2 = np.zeros((6, 5)), np.zeros((5, 3))
            for h in smallest_set(hidden * w2[:, top], theta * logits[top]):
                expected2[h, top] = 1
                for i in smallest_set(sample * w1[:, h], theta * hidden[h]):
                    expected1[i, h] = 1
            assert np.array_equal(row, np.concatenate([expected1.ravel(), expected2.ravel()]))
            some += row.sum()
    assert some > 30


def test_a_convolution_collects_over_its_positions():
    # A 1×2 window over (3, 1, 2), both weights 1, then a sum over the two positions.
    inputs = keras.Input((1, 3, 1))
    convolution = layers.Conv2D(1, (1, 2), use_bias=False, name="conv")
    flat = layers.Flatten()(convolution(inputs))
    dense = layers.Dense(2, use_bias=False, name="logits")
    model = keras.Model(inputs, dense(flat))
    convolution.set_weights([np.ones((1, 2, 1, 1), np.float32)])
    dense.set_weights([np.array([[1.0, 0], [1.0, 0]], np.float32)])
    im = nns.InstrumentedModel(model)
    x = np.array([3.0, 1.0, 2.0], np.float32).reshape(1, 1, 3, 1)
    # Sums 4 and 3, logit 7. At 0.5 the 4 is enough, and of it the 3, by the first weight;
    # at 0.6 both are needed: 3 ≥ 2.4 by the first weight, 2 ≥ 1.8 by the second.
    for theta, expected in ((0.5, [1, 0, 1, 0, 0, 0]), (0.6, [1, 1, 1, 0, 1, 0])):
        assert effective_paths(im, x, theta, progress=False).toarray()[0].tolist() == expected


def test_a_residual_net_with_normalisation_and_pooling():
    # A scale folds into the sum before it: the same path as of the folded network.
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 6, 2))
    first = layers.Conv2D(4, 3, padding="same", use_bias=False, name="first")
    normal = layers.BatchNormalization(name="normal")
    stem = layers.ReLU()(normal(first(inputs)))
    second = layers.Conv2D(4, 3, padding="same", name="second")
    pooled = layers.MaxPooling2D()(layers.Add()([stem, second(stem)]))
    last = layers.Dense(3, name="logits")(layers.GlobalAveragePooling2D()(pooled))
    model = keras.Model(inputs, last)
    rng = np.random.default_rng(0)
    gamma, beta, mean, variance = (rng.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(4))
    normal.set_weights([gamma, beta, mean, variance])

    folded_first = layers.Conv2D(4, 3, padding="same", name="first")
    stem = layers.ReLU()(folded_first(inputs))
    pooled = layers.MaxPooling2D()(layers.Add()([stem, second(stem)]))
    logits = model.get_layer("logits")(layers.GlobalAveragePooling2D()(pooled))
    folded = keras.Model(inputs, logits)
    factor = gamma / np.sqrt(variance + normal.epsilon)
    folded_first.set_weights([first.get_weights()[0] * factor, beta - mean * factor])

    x = rng.normal(size=(8, 6, 6, 2)).astype(np.float32)
    one = effective_paths(nns.InstrumentedModel(model), x, 0.5, progress=False).toarray()
    two = effective_paths(nns.InstrumentedModel(folded), x, 0.5, progress=False).toarray()
    assert np.array_equal(one, two)
    assert 0.02 < one.mean() < 0.9


def test_paths_grow_with_theta_and_depend_on_no_other_sample():
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    x = datasets.load("digits", "test[:6]").x
    sizes = [effective_paths(im, x, t, progress=False).sum() for t in (0.1, 0.5, 0.9)]
    assert sizes[0] < sizes[1] < sizes[2]
    alone = effective_paths(im, x[2:3], 0.5, progress=False).toarray()
    assert np.array_equal(effective_paths(im, x, 0.5, progress=False).toarray()[2:3], alone)


def test_bad_arguments():
    im = nns.InstrumentedModel(dense_net(0))
    x = np.zeros((1, 6), np.float32)
    for theta in (0, 1.5, "half"):
        with pytest.raises(InvalidArgumentError, match=r"theta must be .*in \(0, 1\]"):
            effective_paths(im, x, theta)
    with pytest.raises(InvalidArgumentError, match=r"Unknown kernel 'hiden'.*hidden"):
        effective_paths(im, x, kernels=["hiden"])


def test_scores_count_the_paths():
    im, train = nns.InstrumentedModel(zoo.load("digits_cnn")), datasets.load("digits", "train[:60]")
    found = pruning.scores(im, EffectivePathRanker(progress=False), train.x, train.y, [1])
    right = (im.logits(train.x).argmax(axis=1) == train.y) & (train.y == 1)
    paths = effective_paths(im, train.x[right], progress=False).toarray().sum(axis=0)
    np.testing.assert_array_equal(np.concatenate([s.ravel() for s in found.values()]), paths)


@pytest.mark.parametrize("build", [transformers.classifier, transformers.decoder])
def test_transformers_are_refused_by_the_name_of_an_operation(build):
    im = nns.InstrumentedModel(build())
    x = np.ones((2, transformers.LENGTH), int)
    with pytest.raises(UnsupportedLayerError, match=r"context|scores|mask"):
        effective_paths(im, x)
