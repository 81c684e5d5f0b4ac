"""Fingerprints: equal for the same model, different for any other."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument.fingerprint import (
    fixed_models,
    model_fingerprint,
    weights_checksum,
)


def build(activation="relu", strides=1, swapped=False, epsilon=1e-3):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 2))
    a = layers.Conv2D(3, 3, strides=strides, activation=activation)(inputs)
    b = layers.BatchNormalization(epsilon=epsilon)(a)
    x = layers.Subtract()([b, a] if swapped else [a, b])
    inner = keras.Sequential([layers.Flatten(), layers.Dense(4)])
    return keras.Model(inputs, inner(x))


def fingerprint(model):
    return nns.InstrumentedModel(model).fingerprint


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_saving_and_loading_keeps_it(tmp_path, suffix):
    model = build()
    path = tmp_path / f"model.{suffix}"
    model.save(path)
    assert fingerprint(keras.models.load_model(path, compile=False)) == fingerprint(model)


def test_the_names_that_keras_counts_up_do_not_matter():
    assert fingerprint(build()) == fingerprint(build())


def of_operations(combine):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    a, b = layers.Dense(3)(inputs), layers.Dense(3)(inputs)
    return keras.Model(inputs, keras.ops.relu(combine(a, b)) + a)


def test_operations_without_a_layer_count_by_what_they_do():
    found = fingerprint(of_operations(lambda a, b: a * b))
    assert found == fingerprint(of_operations(lambda a, b: a * b))
    assert found != fingerprint(of_operations(lambda a, b: a + b))
    assert found != fingerprint(of_operations(lambda a, b: a * (b * 2.0)))


def test_compiling_and_freezing_do_not_matter():
    model = build()
    before = fingerprint(model)
    model.compile(optimizer="sgd", loss="mse")
    model.trainable = False
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    "other",
    [
        {"activation": "tanh"},
        {"strides": 2},
        {"swapped": True},
        {"epsilon": 1e-5},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_architecture_has_another(other):
    assert fingerprint(build(**other)) != fingerprint(build())


@pytest.mark.parametrize("index", range(8))
def test_one_changed_weight_changes_it(index):
    model = build()
    before = fingerprint(model)
    assert len(model.weights) == 8
    value = np.array(model.weights[index])
    value.flat[0] = np.nextafter(value.flat[0], np.float32(9))
    model.weights[index].assign(value)
    assert fingerprint(model) != before


def test_it_follows_the_weights_of_an_instrumented_model():
    model = build()
    im = nns.InstrumentedModel(model)
    before = im.fingerprint
    model.weights[0].assign(model.weights[0] * 2)
    assert im.fingerprint != before
    model.weights[0].assign(model.weights[0] / 2)
    assert im.fingerprint == before


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(x)


class Rectified(Subclassed):
    def call(self, x):
        return keras.ops.relu(self.dense(x))


def test_a_subclassed_model_has_one():
    model = Subclassed()
    model(np.zeros((1, 3), "float32"))
    before = fingerprint(model)
    assert len(before) == 64
    model.dense.kernel.assign(model.dense.kernel + 1)
    assert fingerprint(model) != before


def test_subclassed_models_that_differ_in_their_call_alone():
    found = []
    for model in (Subclassed(), Subclassed(), Rectified()):
        model(np.zeros((1, 3), "float32"))
        model.dense.kernel.assign(np.ones((3, 2), "float32"))
        found.append(fingerprint(model))
    assert found[0] == found[1] != found[2]


class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)
        self.scale = self.add_weight(shape=(2,), initializer="ones", name="scale")

    def call(self, x):
        return self.dense(x) * self.scale


def test_a_weight_of_the_subclassed_model_itself_counts():
    model = Scaled()
    model(np.zeros((1, 3), "float32"))
    before = fingerprint(model)
    model.scale.assign([1.0, 2.0])
    assert fingerprint(model) != before


def relu(x):
    return 2 * keras.ops.maximum(x, 0) + 1


def same_as_keras(x):
    return keras.ops.maximum(x, 0)


same_as_keras.__name__ = "relu"


def test_an_own_function_with_a_name_of_keras_has_another(tmp_path):
    of_keras, own, same = (fingerprint(build(f)) for f in ("relu", relu, same_as_keras))
    assert own != of_keras
    assert same == of_keras
    # Keras saves the name alone, and loads its own function: profiles do not fit that model.
    model = build(relu)
    x = np.random.default_rng(0).normal(size=(9, 6, 6, 2)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    model.save(tmp_path / "model.keras")
    profile.save(tmp_path / "profile.npz")
    other = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(nns.errors.ProfileMismatchError, match="different model"):
        nns.Slicer(other, nns.Profile.load(tmp_path / "profile.npz"))
    assert nns.Profile.load(tmp_path / "profile.npz").fingerprint == own


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda f: layers.Activation(f),
        lambda f: layers.TimeDistributed(layers.Dense(3, activation=f)),
        lambda f: layers.SimpleRNN(3, activation=f),
        lambda f: layers.GRU(3, activation=f),
    ],
)
def test_own_functions_are_found_inside_layers(wrapped):
    found = []
    for function in ("relu", relu, relu):
        keras.utils.set_random_seed(0)
        found.append(fingerprint(keras.Sequential([keras.Input((4, 3)), wrapped(function)])))
    assert found[0] != found[1] == found[2]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("wrap", [lambda f: f, layers.TimeDistributed])
def test_mixed_precision_is_another_model(policy, wrap):
    """The weights are float32 in both."""
    found = []
    for dtype in ("float32", policy, policy):
        keras.utils.set_random_seed(0)
        dense = wrap(layers.Dense(3, dtype=dtype))
        found.append(fingerprint(keras.Sequential([keras.Input((4, 3)), dense])))
    assert found[0] != found[1] == found[2]


def test_fixed_models_are_hashed_once():
    """Within the block a change is not seen; after it, and in the next block, it is."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    hashes = model_fingerprint, weights_checksum
    with fixed_models():
        before = [f(model) for f in hashes]
        model.layers[0].kernel.assign(np.ones((3, 2)))
        with fixed_models():
            assert [f(model) for f in hashes] == before
        other = keras.models.clone_model(model)
        assert weights_checksum(other) != before[1]
    after = [f(model) for f in hashes]
    assert after[0] != before[0] and after[1] != before[1]
    with fixed_models():
        assert [f(model) for f in hashes] == after


@pytest.mark.parametrize("call", ["decisive", "explain"])
def test_long_calls_see_changed_weights(call):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, "relu"), layers.Dense(2)])
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    getattr(slicer, call)(x[:1])
    model.layers[0].kernel.assign_add(np.full((3, 4), 0.5))
    with pytest.raises(nns.errors.ProfileMismatchError):
        getattr(slicer, call)(x[:1])
