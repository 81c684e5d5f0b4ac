"""Training: it learns, resumes exactly, and augments as it says."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from keras import layers

from nnslicer_tf import datasets, zoo
from nnslicer_tf.datasets import texts
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, ProfileMismatchError
from reproduction.zoo import recipes

# Keras saves TensorFlow variables by a call that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RECIPE = recipes.Recipe("sgd", 0.1, epochs=3, batch_size=16, weight_decay=1e-3, augment="flip_crop")


@pytest.fixture
def data():
    return datasets.load("digits", "train[:60]")


def _model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(10)(x), name="tiny")


def _train(data, folder, **changes):
    model = _model()
    recipe = dataclasses.replace(RECIPE, **changes)
    history = recipes.train(
        model, data, recipe, rng=1, folder=folder, validation=data, progress=False
    )
    return model, history


def _pooled():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    x = layers.ReLU()(layers.Conv2D(4, 3, padding="same")(inputs))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)), name="pooled")


class Interrupting:
    """Validation images; they are read after an epoch, which here stops the training."""

    def __init__(self, data, epochs):
        self.y, self._x, self._left = data.y, data.x, epochs

    def __len__(self):
        return len(self.y)

    @property
    def x(self):
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._x


@pytest.mark.parametrize(
    "changes", [{"optimizer": "sgd"}, {"optimizer": "adam"}, {"precision": "mixed_bfloat16"}]
)
def test_an_interrupted_run_resumes_exactly(data, tmp_path, changes):
    whole, history = _train(data, tmp_path / "whole", **changes)

    recipe = dataclasses.replace(RECIPE, **changes)
    with pytest.raises(KeyboardInterrupt):
        recipes.train(
            _model(),
            data,
            recipe,
            rng=1,
            folder=tmp_path / "parts",
            validation=Interrupting(data, 2),
            progress=False,
        )
    resumed, resumed_history = _train(data, tmp_path / "parts", **changes)

    assert [row["epoch"] for row in resumed_history] == [1, 2, 3]
    assert resumed_history[2]["mean_loss"] == pytest.approx(history[2]["mean_loss"], rel=1e-5)
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_finished_run_is_not_trained_again(data, tmp_path):
    first, _ = _train(data, tmp_path)
    second, history = _train(data, tmp_path)
    assert len(history) == 3
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        assert np.array_equal(a, b)


def test_a_run_that_stops_early_goes_on_by_the_same_schedule(data, tmp_path):
    whole, history = _train(data, tmp_path / "whole")
    model = _model()
    first = recipes.train(
        model, data, RECIPE, rng=1, folder=tmp_path / "parts", progress=False, stop=1
    )
    assert [row["epoch"] for row in first] == [1]
    rest, rest_history = _train(data, tmp_path / "parts")
    assert rest_history[-1]["mean_loss"] == pytest.approx(history[-1]["mean_loss"], rel=1e-5)
    for a, b in zip(whole.get_weights(), rest.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_checkpoint_of_another_run_is_refused(data, tmp_path):
    _train(data, tmp_path)
    with pytest.raises(ProfileMismatchError, match=r"a different run \(recipe="):
        _train(data, tmp_path, learning_rate=0.05)
    others = datasets.load("digits", "train[60:120]")
    with pytest.raises(ProfileMismatchError, match=r"a different run \(data="):
        _train(others, tmp_path)


@pytest.mark.parametrize("name", ["identity.json", "epoch0003.npz"])
def test_a_damaged_checkpoint_is_refused(data, tmp_path, name):
    _train(data, tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
    with pytest.raises(CorruptFileError, match=name):
        _train(data, tmp_path)


def test_the_checkpoint_of_another_architecture_is_refused(data, tmp_path):
    _train(data, tmp_path)
    inputs = keras.Input((8, 8, 1))
    other = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(inputs)), name="tiny")
    with pytest.raises(ProfileMismatchError, match="initial weights="):
        recipes.train(other, data, RECIPE, rng=1, folder=tmp_path, progress=False)


def test_a_checkpoint_from_before_a_field_was_added_is_read(data, tmp_path):
    first, _ = _train(data, tmp_path)
    recipe = json.loads((tmp_path / "identity.json").read_text())["recipe"]
    assert recipe == {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "epochs": 3,
        "batch_size": 16,
        "weight_decay": 1e-3,
        "augment": "flip_crop",
    }  # no field that has its default
    second, _ = _train(data, tmp_path)
    assert all(map(np.array_equal, first.get_weights(), second.get_weights()))


def test_training_in_bfloat16_leaves_a_float32_model_near_that_of_float32(data, tmp_path):
    trained = {}
    for precision in ("float32", "mixed_bfloat16"):
        model = _model()
        model.layers[-2].rate = 0.0  # dropout draws other numbers in another precision
        recipe = dataclasses.replace(RECIPE, epochs=1, precision=precision)
        recipes.train(model, data, recipe, rng=1, folder=tmp_path / precision, progress=False)
        trained[precision] = model
    mixed, before = trained["mixed_bfloat16"], _model()
    assert {layer.compute_dtype for layer in mixed.layers} == {"float32"}
    weights = [model.get_weights() for model in (trained["float32"], mixed, before)]
    for exact, near, start in zip(*weights, strict=True):
        assert 0 < np.abs(exact - near).max() <= 0.1 * np.abs(exact - start).max()
    before.set_weights(mixed.get_weights())
    np.testing.assert_allclose(mixed.predict_on_batch(data.x), before(data.x), rtol=1e-5, atol=1e-5)


def test_a_model_in_another_precision_keeps_its_weights(data):
    model = _model()
    mixed = recipes.in_precision(model, "mixed_bfloat16")
    assert [layer.compute_dtype for layer in mixed.layers[-2:]] == ["bfloat16", "float32"]
    assert all(map(np.array_equal, model.get_weights(), mixed.get_weights()))
    expected, found = model.predict_on_batch(data.x), mixed.predict_on_batch(data.x)
    assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert recipes.in_precision(model, "float32") is model


@pytest.mark.parametrize(
    "change", [{"optimizer": "lbfgs"}, {"augment": "mixup"}, {"precision": "float8"}]
)
def test_wrong_recipes_are_refused_before_anything_is_loaded(change):
    with pytest.raises(InvalidArgumentError, match=next(iter(change.values()))):
        dataclasses.replace(RECIPE, **change)


def test_training_learns_the_digits(tmp_path):
    keras.utils.set_random_seed(0)
    model = zoo.build("digits_cnn")
    recipe = dataclasses.replace(recipes.RECIPES["digits_cnn"], epochs=6)
    train = datasets.load("digits", "train")
    recipes.train(model, train, recipe, rng=0, folder=tmp_path, progress=False)
    assert zoo.accuracy(model, datasets.load("digits", "test")) >= 0.95


def test_accuracy_is_the_share_of_hits():
    inputs = keras.Input((1, 1, 3))
    model = keras.Model(inputs, layers.Flatten()(inputs))
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]].reshape(4, 1, 1, 3)
    data = datasets.Dataset(x, np.array([0, 1, 0, 2]), "", "", "none", 3)
    assert zoo.accuracy(model, data, batch_size=3) == 0.75


def test_the_learning_rate_rises_for_one_epoch_and_falls_to_zero():
    schedule = recipes.learning_rates(RECIPE, steps=10)
    rates = [float(schedule(step)) for step in range(31)]
    assert rates[0] == 0
    assert rates[10] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(0.1)
    assert rates[20] == pytest.approx(0.05)
    assert rates[30] == pytest.approx(0, abs=1e-8)


def test_shifts_move_images_and_fill_with_zeros():
    x = np.random.default_rng(0).random((40, 5, 6, 2)).astype(np.float32)
    shifted = recipes.augment(x, "shift", np.random.default_rng(1))
    moves = set()
    for before, after in zip(x, shifted, strict=True):
        found = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if np.array_equal(_moved(before, dy, dx), after)
        ]
        assert len(found) == 1
        moves.update(found)
    assert len(moves) > 10


def test_flips_mirror_about_half_of_the_images():
    x = np.zeros((200, 20, 20, 1), np.float32)
    x[:, 10, 8:12, 0] = (1, 2, 3, 4)  # far from the border, so that no shift loses them
    flipped = recipes.augment(x, "flip_crop", np.random.default_rng(1))
    rows = [image[image > 0].tolist() for image in flipped]
    assert all(row in ([1, 2, 3, 4], [4, 3, 2, 1]) for row in rows)
    assert 70 <= rows.count([4, 3, 2, 1]) <= 130


def _moved(image, dy, dx):
    moved = np.zeros_like(image)
    height, width, _ = image.shape
    for row in range(height):
        for column in range(width):
            if 0 <= row - dy < height and 0 <= column - dx < width:
                moved[row, column] = image[row - dy, column - dx]
    return moved


def test_some_words_become_unknown():
    x = np.tile(np.array([5, 6, 7, 8, 9, 2, 3, 4, 0, 0], np.int32), (2_000, 1))
    hidden = recipes.augment(x, "unknown_words", np.random.default_rng(1))
    assert hidden.dtype == np.int32
    changed = hidden != x
    assert set(hidden[changed]) == {texts.UNKNOWN}
    assert not changed[:, 8:].any()  # padding
    np.testing.assert_allclose(changed[:, :8].mean(axis=0), 0.15, atol=0.03)
    assert (x[0] == [5, 6, 7, 8, 9, 2, 3, 4, 0, 0]).all()


def test_the_first_epochs_train_on_smaller_images(data, tmp_path, monkeypatch):
    shapes = []
    monkeypatch.setattr(
        recipes, "augment", lambda x, *_: shapes.append(x.shape) or x
    )  # sees whole images in all epochs
    resized = recipes.resized
    sides = []
    monkeypatch.setattr(recipes, "resized", lambda x, side: sides.append(side) or resized(x, side))
    recipe = recipes.Recipe("sgd", 0.1, 4, 30, sizes=((2, 4), (1, 6)))
    model = _pooled()
    before = model.get_weights()

    history = recipes.train(model, data, recipe, rng=1, folder=tmp_path, progress=False)

    assert sides == [4] * 4 + [6] * 2  # two batches each
    assert shapes == [(30, 8, 8, 1)] * 8
    assert len(history) == 4
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    assert model.input_shape == (None, 8, 8, 1)


def test_sizes_go_on_after_an_interruption(data, tmp_path):
    recipe = recipes.Recipe("sgd", 0.1, 3, 30, 0.0, "flip_crop", "mixed_bfloat16", sizes=((2, 4),))
    whole, parts, resumed = _pooled(), _pooled(), _pooled()
    recipes.train(whole, data, recipe, rng=1, folder=tmp_path / "whole", progress=False)
    recipes.train(parts, data, recipe, rng=1, folder=tmp_path / "parts", progress=False, stop=1)
    recipes.train(resumed, data, recipe, rng=1, folder=tmp_path / "parts", progress=False)
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_images_of_half_the_side_are_weighted_means():
    x = np.random.default_rng(0).random((3, 8, 8, 2)).astype(np.float32)
    # The triangle of half-width 2 around each new pixel's centre, renormalised at the border.
    centre = 2 * np.arange(4)[:, None] + 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(8) - centre) / 2)
    weights /= weights.sum(axis=1, keepdims=True)
    expected = np.einsum("ih,jw,nhwc->nijc", weights, weights, x)
    np.testing.assert_allclose(recipes.resized(x, 4), expected, rtol=1e-5)


def test_a_model_of_one_size_cannot_train_on_smaller_images(data, tmp_path):
    recipe = recipes.Recipe(sizes=((2, 4),))
    with pytest.raises(InvalidArgumentError, match=r"'tiny' takes images of \(8, 8\) only"):
        recipes.train(_model(), data, recipe, rng=1, folder=tmp_path, progress=False)
    words = keras.Sequential([keras.Input((5,)), layers.Dense(2)], name="words")
    with pytest.raises(InvalidArgumentError, match=r"images.*'words' takes \[\(None, 5\)\]"):
        recipes.train(words, data, recipe, rng=1, folder=tmp_path, progress=False)


def test_a_model_without_weights_gets_them(tmp_path):
    """A sequential model without an input has no weights for the optimiser before it is called."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Flatten(), layers.Dense(10)])
    data = datasets.load("digits", "train[:60]")
    recipe = recipes.Recipe(epochs=1, batch_size=32)
    (row,) = recipes.train(model, data, recipe, rng=0, folder=tmp_path, progress=False)
    assert np.isfinite(row["mean_loss"]) and model.get_weights()[0].shape == (64, 10)
