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


@pytest.fixture
def grouped():
    """Six query heads that share three heads of keys and values; the keys are another input."""
    keras.utils.set_random_seed(0)
    one, other = keras.Input((5, 8)), keras.Input((4, 8))
    x = layers.GroupQueryAttention(4, 6, 3, name="attention")(one, other)
    x = layers.Dense(7, activation="relu", name="inner")(layers.Flatten()(x))
    model = keras.Model([one, other], layers.Dense(3, name="logits")(x))
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.4, size=variable.shape))
    return model, [rng.normal(size=(9, 5, 8)), rng.normal(size=(9, 4, 8))]


def test_a_group_of_dead_heads_is_removed_as_a_whole(grouped):
    model, x = grouped
    kernel = model.get_layer("attention")._output_dense.kernel
    alive = kernel.numpy()
    alive[[0, 2, 3]] = 0  # a head of the first group, and both of the second
    kernel.assign(alive)
    small = pruning.compact(model)
    attention = small.get_layer("attention")
    assert (attention.num_query_heads, attention.num_key_value_heads) == (4, 2)
    assert attention._key_dense.kernel.shape == (8, 2, 4)
    np.testing.assert_allclose(small(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)


def test_named_groups_are_removed(grouped):
    """The same as reading nothing of their query heads."""
    model, x = grouped
    small = pruning.remove_units(model, {"attention": np.array([True, True, False])})
    kernel = model.get_layer("attention")._output_dense.kernel
    kernel.assign(kernel.numpy() * np.repeat([1, 1, 0], 2)[:, None, None])
    assert small.get_layer("attention").num_query_heads == 4
    np.testing.assert_allclose(small(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)


def test_shrinking_takes_groups(words):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 16, name="embedding")(inputs)
    x = layers.Add()([x, layers.GroupQueryAttention(8, 8, 4, name="attention")(x, x)])
    logits = layers.Dense(4)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))
    model, y = keras.Model(inputs, logits), np.arange(len(words)) % 4
    found = pruning.shrink(model, words, y, classes=[1, 3], ratio=0.3, progress=False)
    attention = found.model.get_layer("attention")
    assert attention.num_query_heads == 2 * attention.num_key_value_heads < 8
    assert found.model.count_params() <= 0.7 * model.count_params()
