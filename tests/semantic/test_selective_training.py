"""Selective training: what is frozen is bit-identical afterwards, what is free is trained."""

import keras
import numpy as np
import pytest
from keras import optimizers

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.semantic import develop, masked, parameter_share, readapt, train_neurons
from nnslicer_tf.semantic.neurons import neuron_layers
from nnslicer_tf.semantic.selective_training import parameter_masks, selective_optimizer
from support.classifiers import MODELS, make, samples

OPTIMIZERS = {
    "momentum and decay": lambda: optimizers.SGD(0.1, 0.9, nesterov=True, weight_decay=0.05),
    "adam with decay": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.1),
    "lion": lambda: optimizers.Lion(0.01, weight_decay=0.1),
    "clipped": lambda: optimizers.Adam(0.01, global_clipnorm=0.1, weight_decay=0.1),
    "schedule": lambda: optimizers.Nadam(
        optimizers.schedules.CosineDecay(0.1, 9), weight_decay=0.1
    ),
}


def half(model):
    """Every second neuron of every layer, and the first class."""
    im = nns.InstrumentedModel(model)
    *hidden, (name, last) = neuron_layers(im, classes=True).items()
    chosen = {k: np.arange(v.units) % 2 == 0 for k, v in hidden}
    return {**chosen, name: np.arange(last.units) == 0}


def check_frozen(model, trained, neurons):
    """Frozen parameters and all statistics have the same bits; the free ones moved."""
    masks = parameter_masks(nns.InstrumentedModel(model), neurons)
    moved = free = 0
    for before, after in zip(model.weights, trained.weights, strict=True):
        old, new = np.asarray(before), np.asarray(after)
        mask = masks.get(id(before), np.zeros(old.shape, bool))
        np.testing.assert_array_equal(old[~mask].view(np.uint32), new[~mask].view(np.uint32))
        moved += int((old[mask] != new[mask]).sum())
        free += int(mask.sum())
    return moved / free


@pytest.mark.parametrize("name", MODELS)
def test_frozen_parameters_are_bit_identical(name):
    model = make(name)
    x, y = samples(model, 20)
    trained = train_neurons(
        model, half(model), x, y, optimizer=OPTIMIZERS["adam with decay"](), epochs=2, batch_size=10
    )
    assert check_frozen(model, trained, half(model)) > 0.8


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_optimizer_moves_frozen_parameters(kind):
    model = make("convolutional")
    x, y = samples(model, 20)
    trained = train_neurons(model, half(model), x, y, optimizer=OPTIMIZERS[kind](), epochs=2)
    assert check_frozen(model, trained, half(model)) > 0.5


def test_ordinary_training_moves_all_of_it():
    """The check above can fail: the same optimisers, unmasked, move what was frozen."""
    model, trained = make("convolutional"), make("convolutional")
    x, y = samples(model, 20)
    trained.compile(OPTIMIZERS["adam with decay"](), "sparse_categorical_crossentropy")
    trained.train_on_batch(x, y)
    with pytest.raises(AssertionError):
        check_frozen(model, trained, half(model))


def test_the_free_parameters_follow_the_plain_gradient():
    """One step of gradient descent, by hand."""
    model = make("perceptron")
    x, y = samples(model, 12)
    trained = train_neurons(
        model, half(model), x, y, optimizer=optimizers.SGD(0.1), epochs=1, batch_size=12
    )
    plain = make("perceptron")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(optimizers.SGD(0.1), loss)
    plain.train_on_batch(x, y)
    masks = parameter_masks(nns.InstrumentedModel(model), half(model))
    for before, after, free in zip(model.weights, trained.weights, plain.weights, strict=True):
        mask = masks[id(before)]
        expected = np.where(mask, free, before)
        np.testing.assert_allclose(np.asarray(after), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("average", [False, True])
def test_selective_optimizer_in_a_users_own_training(average):
    model = make("perceptron")
    before = model.get_weights()
    x, y = samples(model, 30)
    kernel = model.get_layer("b").kernel
    mask = np.zeros(kernel.shape, bool)
    mask[2] = True
    adam = optimizers.Adam(0.1, weight_decay=0.1, use_ema=average, ema_momentum=0.7)
    chosen = selective_optimizer(adam, {id(kernel): mask})
    model.compile(chosen, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, epochs=2, verbose=0)
    for variable, old in zip(model.weights, before, strict=True):
        changed = np.asarray(variable) != old
        assert (changed == (mask if variable is kernel else False)).all()


def test_training_is_reproducible_and_leaves_the_model_alone():
    model = make("convolutional")  # it has dropout
    before = model.get_weights()
    x, y = samples(model, 20)
    first, second, other = (
        train_neurons(model, half(model), x, y, rng=rng, epochs=1, batch_size=5)
        for rng in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    for a, b in zip(first.weights, second.weights, strict=True):
        if "seed" not in a.path:
            np.testing.assert_array_equal(a, b)
    assert any(
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(first.weights, other.weights, strict=True)
    )


class Backwards(keras.Model):
    """Layers declared in the opposite order to that of their calls."""

    def __init__(self):
        super().__init__()
        self.logits = keras.layers.Dense(3, name="logits")
        self.second = keras.layers.Dense(6, activation="relu", name="second")
        self.first = keras.layers.Dense(6, activation="relu", name="first")

    def call(self, x):
        return self.logits(self.second(self.first(x)))


def test_subclassed_models_are_trained():
    """One step of gradient descent, by hand, of every second unit of the second layer."""
    rng = np.random.default_rng(0)
    model, x, y = Backwards(), rng.normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3
    model(x[:1])
    before = {layer.name: layer.get_weights() for layer in model.layers}
    free = np.arange(6) % 2 == 0
    trained = train_neurons(
        model, {"second": free}, x, y, optimizer=optimizers.SGD(0.1), epochs=1, batch_size=12
    )
    plain = Backwards()
    plain(x[:1])
    for layer in plain.layers:
        layer.set_weights(before[layer.name])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(optimizers.SGD(0.1), loss)
    plain.train_on_batch(x, y)
    for name, given in before.items():
        mask = free if name == "second" else False
        weights = zip(
            given, plain.get_layer(name).get_weights(), model.get_layer(name).get_weights()
        )
        for found, (old, new, kept) in zip(trained.get_layer(name).get_weights(), weights):
            np.testing.assert_allclose(found, np.where(mask, new, old), rtol=1e-5, atol=1e-7)
            np.testing.assert_array_equal(kept, old)
    assert parameter_share(model, {"second": free}) == 3 * 7 / (2 * 6 * 7 + 7 * 3)


def test_parameter_share_counts_what_is_trained():
    model = make("perceptron")
    critical = {"a": np.arange(7) < 2, "b": np.arange(5) < 1}
    total = 7 * 7 + 8 * 5 + 6 * 3
    adapted = {**critical, "logits": np.ones(3, bool)}
    assert parameter_share(model, adapted) == (2 * 7 + 8 + 6 * 3) / total
    new = {k: ~mask for k, mask in critical.items()} | {"logits": np.arange(3) == 1}
    assert parameter_share(model, new) == (5 * 7 + 4 * 8 + 6) / total


def test_normalisation_belongs_to_its_neuron():
    model = make("convolutional")
    masks = parameter_masks(
        nns.InstrumentedModel(model), {"c1": np.array([True, False, False, True])}
    )
    norm = model.get_layer("n1")
    assert (
        masks[id(norm.gamma)].tolist()
        == masks[id(norm.beta)].tolist()
        == [True, False, False, True]
    )
    assert id(norm.moving_mean) not in masks


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", "train"), datasets.load("digits", "test")


def test_readapt_learns_adversarial_samples(digits):
    train, _ = digits
    model = zoo.load("digits_cnn")
    im = nns.InstrumentedModel(model)
    x, y = train.x[:200], train.y[:200]
    step = im.gradients(x, [int(c) for c in y])[im.input_operation]
    adversarial = np.clip(x - 0.12 * np.sign(step), 0, 1)
    critical = {k: np.arange(v.units) % 2 == 0 for k, v in neuron_layers(im).items()}
    trained = readapt(
        model, critical, x, y, adversarial, optimizer=optimizers.Adam(5e-3), epochs=40
    )
    attacked = datasets.Dataset(adversarial, y, "", "", "", 10)
    assert zoo.accuracy(trained, attacked) > zoo.accuracy(model, attacked) + 0.1
    assert zoo.accuracy(trained, datasets.Dataset(x, y, "", "", "", 10)) > 0.95
    adapted = {**critical, trained.layers[-1].name: np.ones(10, bool)}
    assert check_frozen(model, trained, adapted) > 0.5


def test_develop_learns_new_classes_and_keeps_the_critical_neurons(digits):
    train, test = digits
    keras.utils.set_random_seed(0)
    model = zoo.build("digits_cnn")
    old, new = train.y < 5, train.y >= 5
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(train.x[old], train.y[old], epochs=12, verbose=0)
    im = nns.InstrumentedModel(model)
    critical = {k: np.arange(v.units) % 2 == 0 for k, v in neuron_layers(im).items()}
    trained = develop(
        model,
        critical,
        train.x[new],
        train.y[new],
        range(5),
        optimizer=optimizers.Adam(5e-3),
        epochs=10,
        batch_size=32,
    )

    def accuracy(m, of_old):
        chosen = (test.y < 5) == of_old
        return zoo.accuracy(m, datasets.Dataset(test.x[chosen], test.y[chosen], "", "", "", 10))

    assert accuracy(model, True) > 0.9
    assert accuracy(model, False) == 0
    assert accuracy(trained, False) > 0.8
    new_classes = {trained.layers[-1].name: np.arange(10) >= 5}
    check_frozen(model, trained, {k: ~mask for k, mask in critical.items()} | new_classes)
    # What the critical neurons compute alone is not touched by the new task.
    before, after = (masked(m, critical)(test.x)[:, :5] for m in (model, trained))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x, y: train_neurons(m, {"c": np.ones(2, bool)}, x, y), "Unknown layer .*'c'"),
        (lambda m, x, y: train_neurons(m, {"a": np.ones(2, bool)}, x, y), "'a' has 7 neurons"),
        (lambda m, x, y: train_neurons(m, {"a": np.zeros(7, bool)}, x, y), "nothing to train"),
        (lambda m, x, y: train_neurons(m, {"a": np.ones(7, bool)}, x, y + 1), "labels must be"),
        (lambda m, x, y: readapt(m, {"a": np.ones(7, bool)}, x, y, x[:2]), "one adversarial"),
        (
            lambda m, x, y: readapt(m, {"logits": np.ones(3, bool)}, x, y, x),
            "Unknown layer with neurons 'logits'",
        ),
        (lambda m, x, y: develop(m, {"a": np.ones(7, bool)}, x, y, [3]), "classes 0 … 2"),
        (lambda m, x, y: develop(m, {"a": np.ones(7, bool)}, x, y, []), "needs classes 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    model = make("perceptron")
    with pytest.raises(InvalidArgumentError, match=message):
        call(model, *samples(model, 6))
