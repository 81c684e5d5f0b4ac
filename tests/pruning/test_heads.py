"""Heads of attention: removed where they are dead, or where few parameters may stay."""

import keras
import numpy as np
import pytest
from keras import layers

from nnslicer_tf import pruning
from nnslicer_tf.errors import InvalidArgumentError


def network(wrap=lambda layer: layer):
    """Two layers of attention over masked words, with random weights."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 16, mask_zero=True, name="embedding")(inputs)
    for i in (1, 2):
        attention = layers.MultiHeadAttention(4, 5, value_dim=3, name=f"attention{i}")
        x = layers.Add(name=f"add{i}")([x, wrap(attention)(x, x)])
        x = layers.LayerNormalization(name=f"norm{i}")(x)
        inner = layers.Dense(24, activation="relu", name=f"inner{i}")(x)
        x = layers.Add(name=f"sum{i}")([x, layers.Dense(16, name=f"outer{i}")(inner)])
    x = layers.GlobalAveragePooling1D(name="average")(x)
    model = keras.Model(inputs, layers.Dense(4, name="logits")(x))
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:  # biases, too
        variable.assign(rng.normal(scale=0.3, size=variable.shape))
    return model


def kill(layer, head):
    """Let nothing read a head."""
    values = layer.output_dense.kernel.numpy()
    values[head] = 0
    layer.output_dense.kernel.assign(values)


@pytest.fixture(scope="module")
def words():
    rng = np.random.default_rng(1)
    x = rng.integers(1, 12, (120, 6))
    return np.where(np.arange(6) < rng.integers(2, 7, (120, 1)), x, 0)


def test_dead_heads_are_removed(words):
    model = network()
    kill(model.get_layer("attention1"), 2)
    kill(model.get_layer("attention2"), 0)
    kill(model.get_layer("attention2"), 3)
    small = pruning.compact(model)
    heads = [small.get_layer(f"attention{i}").num_heads for i in (1, 2)]
    assert heads == [3, 2]
    assert small.get_layer("attention1").query_dense.kernel.shape == (16, 3, 5)
    assert small.get_layer("attention2").output_dense.kernel.shape == (2, 3, 16)
    expected = model(words).numpy()
    np.testing.assert_allclose(small(words).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_shrinking_takes_heads(words):
    model = network()
    y = np.arange(len(words)) % 4
    found = pruning.shrink(model, words, y, classes=[1, 3], ratio=0.4, progress=False)
    heads = [found.model.get_layer(f"attention{i}").num_heads for i in (1, 2)]
    assert all(2 <= count < 4 for count in heads)
    assert found.after.parameters <= 0.6 * found.before.parameters
    assert found.model.count_params() == found.after.parameters
    assert found.model(words).numpy().shape == (120, 2)


def test_a_layer_that_is_called_twice_keeps_its_heads(words):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 16, name="embedding")(inputs)
    attention = layers.MultiHeadAttention(4, 5, name="attention")
    x = attention(attention(x, x), x)
    logits = layers.Dense(4)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, logits)
    kill(attention, 2)
    small = pruning.compact(model)
    assert small.get_layer("attention").num_heads == 4
    expected = model(words).numpy()
    np.testing.assert_allclose(small(words).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_masked_layers_keep_their_heads(words):
    model = network()
    ones = pruning.scores(model, "weight")
    masks = {name: np.ones(values.shape, bool) for name, values in ones.items()}
    masks["attention1/output"][1] = False
    masked = pruning.apply_masks(model, masks)
    small = pruning.compact(masked)
    assert small.get_layer("attention1").num_heads == 4
    expected = masked(words).numpy()
    np.testing.assert_allclose(small(words).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_of_every_layer_two_heads_stay(words):
    with pytest.raises(InvalidArgumentError, match="Cannot remove that many parameters"):
        pruning.shrink(
            network(), words, np.arange(120) % 4, classes=[0, 1], ratio=0.95, progress=False
        )
