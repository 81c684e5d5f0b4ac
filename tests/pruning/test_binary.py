"""Classifiers with one sigmoid, and independent labels, where classifiers with logits are taken."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import protection, pruning, semantic

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0.3).astype(int)


@pytest.fixture(scope="module")
def twins():
    """A trained classifier with one sigmoid, and its twin with two outputs, softmax of (0, z)."""
    keras.utils.set_random_seed(1)
    stack = [layers.Dense(16, activation="relu"), layers.Dense(8, activation="relu")]
    model = keras.Sequential([keras.Input((6,)), *stack, layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    model.fit(X, Y, epochs=20, verbose=0)
    twin = keras.Sequential([keras.Input((6,)), *stack, layers.Dense(2, activation="softmax")])
    kernel, bias = model.layers[-1].get_weights()
    twin.layers[-1].set_weights([np.hstack([0 * kernel, kernel]), np.append(0, bias)])
    return model, twin


def test_scores_of_class_1_are_those_of_two_outputs(twins):
    ranker = pruning.NNSlicerRanker(progress=False)
    one, two = (pruning.scores(model, ranker, X, Y, classes=[1]) for model in twins)
    hidden = [name for name in one if name in two]
    assert len(hidden) == 2
    for name in hidden:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("wanted", [0, 1])
def test_the_first_output_is_the_class_that_is_wanted(twins, wanted):
    """`other` of one sigmoid: its outputs are 1 − p and p, in the order of the classes."""
    small = pruning.shrink(twins[0], X, Y, classes=[wanted], other=True, ratio=0.3, progress=False)
    outputs = small.model.predict(X, verbose=0)
    np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-5)
    accuracy = ((outputs[:, 0] > 0.5) == (wanted == Y)).mean()
    assert accuracy > 0.85
    assert small.accuracy[1] == pytest.approx(accuracy)
    p = twins[0].predict(X, verbose=0)[:, 0]
    assert small.accuracy[0] == pytest.approx(((p > 0.5) == Y).mean())


def test_scores_of_a_class_of_one_sigmoid_are_those_of_two_classes():
    """Input 0 decides class 0, and input 1 opposes it: by hand, and as with two outputs."""
    one = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid", name="out")])
    two = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax", name="out")])
    one.set_weights([np.array([[4.0], [1.0]]), np.zeros(1)])
    two.set_weights([np.array([[-2, 2], [-0.5, 0.5]]), np.zeros(2)])
    x, y = np.array([[-1, 1], [-1, 1], [1, -1], [1, -1]], np.float32), np.array([0, 0, 1, 1])
    for label in (0, 1):
        found, expected = (
            pruning.scores(m, "nnslicer", x, y, classes=[label], progress=False)["out"]
            for m in (one, two)
        )
        assert found.ravel().tolist() == expected[:, label].tolist() == [2, -2]


def test_both_classes_keep_one_sigmoid(twins):
    small = pruning.shrink(twins[0], X, Y, classes=[0, 1], ratio=0.3, progress=False)
    assert small.model.output_shape == (None, 1)
    p = small.model.predict(X, verbose=0)[:, 0]
    assert small.accuracy[1] == pytest.approx(((p > 0.5) == Y).mean())
    assert small.accuracy[1] > 0.85


@pytest.mark.parametrize("metric", ["avg", "deeplift", "taylor", "taylor_weights"])
def test_metrics_are_those_of_two_outputs(twins, metric):
    """DeepLIFT's score of class 0 is −z of one sigmoid and 0 of the twin."""
    rows = Y == 1 if metric == "deeplift" else slice(None)
    one, two = (
        semantic.contributions(nns.InstrumentedModel(m), X[rows], metric, Y[rows]) for m in twins
    )
    for name, values in one.items():
        np.testing.assert_allclose(values, two[name], rtol=1e-3, atol=1e-6)


def test_semantic_slices_are_restructured_and_trained(twins):
    model = twins[0]
    im = nns.InstrumentedModel(model)
    critical = semantic.SemanticSlicer(im, X, Y).global_slice(0.5)
    small = semantic.restructure(model, critical)
    masked = semantic.masked(model, critical)
    np.testing.assert_allclose(small(X[:9]), masked(X[:9]), rtol=1e-5, atol=1e-6)
    noisy = X + RNG.normal(0, 0.1, X.shape).astype(np.float32)
    trained = semantic.readapt(model, critical, X, Y, noisy, epochs=1)
    assert not np.array_equal(trained.get_weights()[0], model.get_weights()[0])
    with pytest.raises(nns.errors.InvalidArgumentError, match="one sigmoid"):
        semantic.develop(model, critical, X, Y, learned=[0])


def test_thieves_are_measured_by_both_classes(twins):
    hidden = protection.select(pruning.scores(twins[0], "weight"), 0.1)
    found = protection.simulate_attacks(twins[0], hidden, (X, Y), (X, Y), [1], budgets=[200])
    assert 0.3 < found["all"][0] <= 1


def test_independent_labels_lose_those_that_are_not_wanted():
    stack = [layers.Dense(12, activation="relu"), layers.Dense(4, activation="sigmoid")]
    model = keras.Sequential([keras.Input((6,)), *stack])
    y = RNG.integers(0, 4, len(X))
    small = pruning.shrink(model, X, y, classes=[1, 3], ratio=0.3, progress=False)
    assert small.model.output_shape == (None, 2)
    with pytest.raises(nns.errors.InvalidArgumentError, match="exclude each other"):
        pruning.shrink(model, X, y, classes=[1], other=True, progress=False)


def test_a_number_is_no_class():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, "relu"), layers.Dense(1)])
    for use in (
        lambda: pruning.shrink(model, X, Y, classes=[0, 1], progress=False),
        lambda: pruning.scores(model, "nnslicer", X, Y, [1]),
        lambda: semantic.SemanticSlicer(nns.InstrumentedModel(model), X, Y),
    ):
        with pytest.raises(nns.errors.InvalidArgumentError, match="end the model with a sigmoid"):
            use()
