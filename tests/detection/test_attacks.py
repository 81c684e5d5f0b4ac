"""The table of attacks, and adversarial examples for Keras models."""

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import attacks
from nnslicer_tf.detection.attacks import AttackSpec, generate, generation
from nnslicer_tf.detection.attacks.generation import logits_function
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    PlausibilityWarning,
)

COUNT = 10


@pytest.fixture(scope="module")
def model():
    return zoo.load("digits_cnn")


@pytest.fixture(scope="module")
def data():
    return datasets.load("digits", f"test[:{COUNT}]")


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_every_attack_on_a_real_model(model, data, name):
    spec = attacks.MNIST_ATTACKS[name]
    if name in ("CWL2", "Boundary"):
        spec = dataclasses.replace(spec, parameters={**spec.parameters, "steps": 30})
    result = generate(model, spec, data.x, data.y, batch_size=8, progress=False)
    assert result.x.shape == data.x.shape
    assert (result.x.min() >= 0) and (result.x.max() <= 1)
    before = model(data.x).numpy().argmax(axis=1)
    after = model(result.x).numpy().argmax(axis=1)
    assert np.array_equal(result.success, (before == data.y) & (after != data.y))
    assert np.array_equal(result.predicted, after)
    assert result.success.any() or name in ("FGSM_2", "RPGD_2")
    if spec.epsilon is not None:
        assert np.abs(result.x - data.x).max() <= spec.epsilon + 1e-6
    wrong = before != data.y
    assert np.array_equal(result.x[wrong], data.x[wrong])


def test_fgsm_on_a_linear_model_in_closed_form():
    # FGSM moves every value by ε; a linear model's margin falls by ε · ‖w₀ - w₁‖₁.
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(16, 2)).astype(np.float32)
    inputs = keras.Input((4, 4, 1))
    dense = layers.Dense(2)
    linear = keras.Model(inputs, dense(layers.Flatten()(inputs)))
    dense.set_weights([weights, -0.5 * weights.sum(axis=0)])
    x = rng.uniform(0.3, 0.7, (80, 4, 4, 1)).astype(np.float32)
    scores = (x.reshape(80, 16) - 0.5) @ (weights[:, 1] - weights[:, 0])
    y = (scores > 0).astype(int)
    spec = dataclasses.replace(attacks.ATTACKS["FGSM_8"], epsilon=0.05)
    result = generate(linear, spec, x, y, progress=False)
    expected = np.abs(scores) < 0.05 * np.abs(weights[:, 1] - weights[:, 0]).sum()
    assert np.array_equal(result.success, expected)
    assert 5 < expected.sum() < 75


def test_a_standardised_model_is_attacked_in_its_own_scale(model, data):
    # The same network behind another normalisation of its input: equal results.
    scale = datasets.normalisation("digits", "standard")
    inputs = keras.Input((8, 8, 1))
    shifted = layers.Rescaling(
        (scale.std / scale.maximum).item(), (scale.mean / scale.maximum).item()
    )(inputs)
    standard = keras.Model(inputs, model(shifted))
    spec = attacks.MNIST_ATTACKS["FGSM_4"]
    one = generate(model, spec, data.x, data.y, progress=False)
    two = generate(standard, spec, data.x, data.y, normalise=scale, progress=False)
    np.testing.assert_allclose(one.x, two.x, atol=1e-5)
    assert np.array_equal(one.success, two.success)


def test_models_with_a_softmax_are_attacked_on_their_logits(model, data):
    inputs = keras.Input((8, 8, 1))
    probabilities = keras.Model(inputs, layers.Softmax()(model(inputs)))
    spec = attacks.MNIST_ATTACKS["RPGD_4"]
    one = generate(model, spec, data.x, data.y, progress=False)
    two = generate(probabilities, spec, data.x, data.y, progress=False)
    np.testing.assert_allclose(one.x, two.x, atol=1e-5)


# --- cache and random numbers ----------------------------------------------------------


@pytest.mark.parametrize("name", ["RPGD_4", "Boundary", "Pointwise"])
def test_batches_are_made_once_and_resumed(model, data, tmp_path, monkeypatch, name):
    spec = attacks.MNIST_ATTACKS[name]
    if name == "Boundary":
        spec = dataclasses.replace(spec, parameters={"steps": 50})

    def run(**options):
        return generate(model, spec, data.x, data.y, batch_size=4, progress=False, **options)

    whole = run()
    make, calls = AttackSpec.__call__, []

    def counted(self, rng=0):
        calls.append(self.name)
        if calls.count(name) == limit:
            raise KeyboardInterrupt
        return make(self, rng)

    monkeypatch.setattr(AttackSpec, "__call__", counted)
    limit = 3
    with pytest.raises(KeyboardInterrupt):
        run(cache=tmp_path)
    assert len(list(tmp_path.glob("*/batch*.npz"))) == 2
    limit = None
    assert np.array_equal(run(cache=tmp_path).x, whole.x)
    calls.clear()
    assert np.array_equal(run(cache=tmp_path).x, whole.x)
    assert not calls  # all is cached


class _Right:
    """A network that is always right."""

    def __init__(self, *_):
        pass

    def logits(self, x):
        return np.eye(10)[np.zeros(len(x), int)] * 5

    def predict(self, x, _):
        return np.zeros(len(x), int)


def test_the_cache_tells_runs_apart(model, data, tmp_path, monkeypatch):
    other = zoo.load("digits_cnn")
    other.layers[-1].bias.assign_add(np.arange(10) * 0.01)
    spec = attacks.MNIST_ATTACKS["RPGD_2"]
    stronger = dataclasses.replace(spec, epsilon=0.15)
    shorter = dataclasses.replace(spec, parameters={**spec.parameters, "steps": 5})

    def run(network=model, attack=spec, x=data.x, rng=0):
        generate(network, attack, x, data.y, rng=rng, cache=tmp_path, progress=False)
        return len(list(tmp_path.iterdir()))

    assert run() == run() == 1
    assert run(rng=1) == 2
    assert run(attack=stronger) == 3
    assert run(attack=shorter) == 4
    assert run(network=other) == 5
    assert run(x=data.x * 0.5) == 6
    records = [json.loads(p.read_text()) for p in tmp_path.glob("*/identity.json")]
    assert {record["attack"]["epsilon"] for record in records} == {0.1, 0.15}
    # Other backends draw other random numbers.
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(generation, "_attacked", lambda network, spec, x, *_: x)
    monkeypatch.setattr(generation, "_Network", _Right)
    assert run() == run() == 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NumPy's file
def test_a_damaged_batch_is_named(model, data, tmp_path):
    generate(model, "FGSM_8", data.x, data.y, cache=tmp_path, progress=False)
    (path,) = tmp_path.glob("*/batch*.npz")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptFileError, match=str(path)):
        generate(model, "FGSM_8", data.x, data.y, cache=tmp_path, progress=False)


def test_seeds_decide_and_numpys_global_state_is_kept(model, data):
    spec = attacks.MNIST_ATTACKS["Pointwise"]
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    one = generate(model, spec, data.x, data.y, rng=1, progress=False)
    assert np.random.random() == expected  # noqa: NPY002
    again = generate(model, spec, data.x, data.y, rng=1, progress=False)
    other = generate(model, spec, data.x, data.y, rng=2, progress=False)
    assert np.array_equal(one.x, again.x)
    assert not np.array_equal(one.x, other.x)


@pytest.mark.parametrize("name", ["RPGD_8", "Pointwise"])
def test_attacks_in_threads_are_those_alone(model, data, tmp_path, name):
    """Two threads drew from one stream, and the cache kept what came out."""

    def attacked(seed, cache=None):
        spec = attacks.MNIST_ATTACKS[name]
        args = {"rng": seed, "cache": cache, "batch_size": 3, "progress": False}
        return generate(model, spec, data.x, data.y, **args).x

    alone = [attacked(seed) for seed in range(3)]
    assert not np.array_equal(alone[0], alone[1])
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(attacked, range(3), [tmp_path] * 3))
    for seed, one in enumerate(alone):
        assert np.array_equal(together[seed], one)
        assert np.array_equal(attacked(seed, tmp_path), one)


@pytest.mark.parametrize("seed", [None, 5])
def test_the_backends_sequence_goes_on_after_an_attack(model, data, seed):
    """TensorFlow's global seed stayed that of the attack."""
    tf.random.set_seed(seed)
    draws = [tf.random.uniform((4,)).numpy() for _ in range(3)]
    found = []
    for _ in range(2):
        tf.random.set_seed(seed)
        found.append(tf.random.uniform((4,)).numpy())
        generate(model, "RPGD_8", data.x, data.y, rng=1, progress=False)
        found[-1] = [found[-1], *(tf.random.uniform((4,)).numpy() for _ in range(2))]
    tf.random.set_seed(None)
    assert np.array_equal(found[0], draws) == (seed is not None)
    assert np.array_equal(*found) == (seed is not None)


def test_what_the_start_attack_cannot_mislead_is_left_alone(data):
    # The model says 3, whatever it sees.
    inputs = keras.Input((8, 8, 1))
    dense = layers.Dense(10, kernel_initializer="zeros")
    stubborn = keras.Model(inputs, dense(layers.Flatten()(inputs)))
    dense.bias.assign(5 * np.eye(10)[3])
    y = np.full(COUNT, 3)
    for name in ("Boundary", "Pointwise"):
        result = generate(stubborn, name, data.x, y, progress=False)
        assert not result.success.any()
        assert np.array_equal(result.x, data.x)


# --- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FGSM_3", "Did you mean 'FGSM_8' or 'FGSM_4' or 'FGSM_2'"),
        ("deepfooll2", "Did you mean 'DeepFoolL2'"),
        ("zebra", "Unknown attack 'zebra'. Expected one of: 'FGSM_2"),
    ],
)
def test_unknown_attacks_are_answered_by_near_names(model, data, name, message):
    with pytest.raises(InvalidArgumentError, match=message):
        generate(model, name, data.x, data.y)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": lambda d: d.x * 16}, InvalidArgumentError, "values from 0 to 16"),
        ({"x": lambda d: d.x - 0.5}, InvalidArgumentError, "values from -0.5"),
        ({"x": lambda d: d.x * np.nan}, InvalidArgumentError, "values from nan"),
        ({"x": lambda d: d.x[:, :4]}, InputShapeError, r"\(None, 8, 8, 1\)"),
        ({"x": lambda d: d.x[0]}, InputShapeError, r"\(None, 8, 8, 1\)"),
        ({"x": lambda d: d.x[:0]}, InvalidArgumentError, "empty"),
        ({"y": lambda d: d.y[:3]}, InvalidArgumentError, "one class index"),
        ({"y": lambda d: d.y / 2}, InvalidArgumentError, "one class index"),
        ({"y": lambda d: d.y + 7}, InvalidArgumentError, "in 0 … 9"),
    ],
)
def test_wrong_data_is_refused(model, data, change, error, message):
    arguments = {"x": data.x, "y": data.y} | {k: f(data) for k, f in change.items()}
    with pytest.raises(error, match=message):
        generate(model, "FGSM_8", **arguments)


def test_models_with_two_inputs_are_refused(data):
    inputs = [keras.Input((8, 8, 1)), keras.Input((8, 8, 1))]
    model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(layers.Add()(inputs))))
    with pytest.raises(InvalidArgumentError, match="has 2"):
        generate(model, "FGSM_8", data.x, data.y)


def test_subclassed_models_are_attacked(model, data):
    class Wrapped(keras.Model):
        def call(self, x):
            return model(x)

    spec = attacks.MNIST_ATTACKS["FGSM_8"]
    one = generate(model, spec, data.x, data.y, progress=False)
    two = generate(Wrapped(), spec, data.x, data.y, progress=False)
    np.testing.assert_allclose(one.x, two.x, atol=1e-6)


_ON_A_BACKEND = """
import keras
import numpy as np
from keras import layers
from nnslicer_tf.detection.attacks import AttackSpec, generate

# Two logits of two pixels: the class is the brighter pixel, and FGSM moves both by epsilon.
model = keras.Sequential([layers.Input((2, 1, 1)), layers.Flatten(), layers.Dense(2)])
model.layers[-1].set_weights([3 * np.eye(2), np.zeros(2)])
x = np.array([[0.6, 0.4], [0.2, 0.8]], np.float32).reshape(2, 2, 1, 1)
spec = AttackSpec("FGSM", "gradient", "foolbox.attacks:LinfFastGradientAttack", {}, "linf", 0.125)
found = generate(model, spec, x, np.array([0, 1]), progress=False)
expected = np.array([[0.475, 0.525], [0.325, 0.675]]).reshape(x.shape)
np.testing.assert_allclose(found.x, expected, atol=1e-6)
assert found.success.tolist() == [True, False], found.success
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fgsm_in_closed_form_on_other_backends(backend, monkeypatch):
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_BACKEND], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_images_are_not_turned_on_other_backends(model, data, backend, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(InvalidArgumentError, match=f"Spatial needs .* runs on {backend}"):
        generate(model, "Spatial", data.x, data.y)


def test_foolbox_is_imported_only_when_it_is_used():
    code = "import sys, nnslicer_tf.detection.attacks; sys.exit('foolbox' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_probabilities_that_no_softmax_made_are_said(data):
    inputs = keras.Input((8, 8, 1))
    x = keras.ops.exp(layers.Dense(10)(layers.Flatten()(inputs)))
    model = keras.Model(inputs, x / keras.ops.sum(x, axis=1, keepdims=True))
    with pytest.warns(PlausibilityWarning, match="look like probabilities"):
        generate(model, "FGSM_8", data.x, data.y)


# --- logits ----------------------------------------------------------------------------


def _dense_softmax():
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="softmax")])


def _softmax_layer():
    return keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Softmax()])


def _activation_layer():
    return keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Activation("softmax")])


def _softmax_operation():
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.ops.softmax(layers.Dense(4)(inputs)))


def _nested():
    inputs = keras.Input((6,))
    return keras.Model(inputs, _dense_softmax()(layers.Dense(6, activation="relu")(inputs)))


def _mixed_precision_recipe():
    last = layers.Activation("linear", dtype="float32")
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="softmax"), last])


def _reshaped():
    end = [layers.Dense(4, activation="softmax"), layers.Reshape((2, 2)), layers.Flatten()]
    return keras.Sequential([keras.Input((6,)), *end])


@pytest.mark.parametrize(
    "build",
    [
        *(_dense_softmax, _softmax_layer, _activation_layer, _softmax_operation, _nested),
        *(_mixed_precision_recipe, _reshaped),
    ],
)
def test_logits_are_what_the_softmax_was_taken_of(build):
    model = build()
    x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    probabilities = model(x).numpy()
    logits = logits_function(model)(x).numpy()
    assert not np.allclose(logits.sum(axis=1), 1)
    np.testing.assert_allclose(keras.ops.softmax(logits), probabilities, atol=1e-6)
    assert np.array_equal(model(x).numpy(), probabilities)


def test_logits_at_the_end_are_taken_as_they_are(model):
    x = np.random.default_rng(0).uniform(size=(3, *model.input_shape[1:])).astype(np.float32)
    np.testing.assert_allclose(logits_function(model)(x), model(x), rtol=1e-5, atol=1e-6)


def test_logits_before_a_log_softmax_and_two_for_one_sigmoid():
    x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="log_softmax")])
    logits = logits_function(model)(x).numpy()
    expected = np.exp(model(x).numpy())
    np.testing.assert_allclose(keras.ops.softmax(logits), expected, atol=1e-6)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, activation="sigmoid")])
    logits = logits_function(model)(x).numpy()
    expected = model(x).numpy()
    np.testing.assert_allclose(keras.ops.softmax(logits)[:, 1:], expected, atol=1e-6)


def test_several_sigmoids_are_refused():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="sigmoid")])
    with pytest.raises(InvalidArgumentError, match="each of 4 labels"):
        logits_function(model)


def test_models_with_two_outputs_are_refused():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, [layers.Dense(4)(inputs), layers.Dense(4)(inputs)])
    with pytest.raises(InvalidArgumentError, match="has 2"):
        logits_function(model)
