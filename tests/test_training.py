"""The training that all packages share: equal to Keras's own, and nothing of it is left behind."""

import gc

import keras
import numpy as np
import pytest

from nnslicer_tf import datasets, pruning, semantic
from nnslicer_tf._training import compile_loss
from nnslicer_tf.pruning.fine_tuning import imitate


def _dense(seed, activation=None):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, "relu", name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3, activation)(hidden))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 4)).astype(np.float32)
    return datasets.Dataset(x, rng.integers(0, 3, 128), "made", "", "none", 3)


def _by_labels(data):
    pruning.fine_tune(_dense(0), data.x, data.y, progress=False)


def _by_a_teacher(data):
    imitate(_dense(0), _dense(9), data.x, progress=False)


def _some_neurons(data):
    chosen = {"hidden": np.array([True, False, True, False, True])}
    semantic.train_neurons(_dense(0), chosen, data.x, data.y, epochs=1)


@pytest.mark.parametrize("train", [_by_labels, _by_a_teacher, _some_neurons])
def test_training_leaves_no_graphs(data, train):
    def graphs():
        gc.collect()
        return sum(type(found).__name__ == "FuncGraph" for found in gc.get_objects())

    counts = []
    for _ in range(3):
        train(data)
        counts.append(graphs())
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("frozen", [False, True])
def test_steps_are_those_of_keras(data, frozen):
    """The gradients are not summed over replicas, which changes nothing with a single one."""
    ours, theirs = _dense(0), _dense(0)
    for model in (ours, theirs):
        model.get_layer("hidden").trainable = not frozen
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compile_loss(ours, keras.optimizers.Adam(0.01), loss)
    theirs.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    start = ours.get_weights()
    for model in (ours, theirs):
        for _ in range(5):
            model.train_on_batch(data.x, data.y)
    for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7)
    moved = [
        bool(np.abs(a - b).max() > 1e-3) for a, b in zip(start, ours.get_weights(), strict=True)
    ]
    assert moved == [not frozen, not frozen, True, True]
