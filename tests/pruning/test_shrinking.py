"""`shrink`: the smaller model computes what it should, costs what it says, and is plain Keras."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.pruning.costs import Costs


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", "train"), datasets.load("digits", "test")


@pytest.fixture(scope="module")
def shrunk(digits):
    train, test = digits
    return pruning.shrink(
        zoo.load("digits_cnn"), train, classes=[5, 3], by="channel", test=test, progress=False
    )


def test_a_quarter_of_the_parameters_tells_two_classes_apart(shrunk, digits):
    model, (_, test) = zoo.load("digits_cnn"), digits
    assert shrunk.classes == (3, 5) and shrunk.model.output_shape == (None, 2)
    assert shrunk.model.count_params() <= 0.25 * model.count_params()
    table = shrunk.to_frame().set_index("what")
    assert table.loc["parameters", "after"] == shrunk.model.count_params()
    chosen = np.isin(test.y, [3, 5])
    whole = model.predict(test.x[chosen], verbose=0)[:, [3, 5]].argmax(1)
    small = shrunk.model.predict(test.x[chosen], verbose=0).argmax(1)
    truth = (test.y[chosen] == 5).astype(int)
    assert shrunk.accuracy == pytest.approx(((whole == truth).mean(), (small == truth).mean()))
    assert shrunk.accuracy[1] > shrunk.accuracy[0] - 0.02


def test_multiply_adds_are_those_of_the_layers():
    """3×3 over 8×8 positions from 1 to 16 and so on, as the layers' shapes say."""
    expected = 8 * 8 * 9 * 1 * 16
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.Flatten(),
            layers.Dense(5),
        ]
    )
    expected += 8 * 8 * 9 * 16 + 8 * 8 * 16 * 5
    assert Costs(model, np.zeros(model.input_shape[1:])).multiply_adds == expected


def test_costs_of_a_model_that_cannot_be_converted(tmp_path, capfd):
    """TensorFlow's converter does not take this LSTM: there is no LiteRT, and nothing is lost."""
    keras.utils.set_random_seed(0)
    stack = [layers.LSTM(4), layers.Dense(64, "relu"), layers.Dense(64, "relu"), layers.Dense(3)]
    model = keras.Sequential([keras.Input((10, 4)), *stack])
    x = np.random.default_rng(0).normal(size=(60, 10, 4)).astype(np.float32)
    y = np.arange(60) % 3
    found = pruning.shrink(model, x, y, classes=[0, 1], ratio=0.5, by="channel", progress=False)
    assert found.after.parameters <= 0.5 * found.before.parameters
    for costs in (found.before, found.after):
        assert np.isnan(costs.litert_ms) and costs.file_bytes == 0 and costs.keras_ms > 0
    with pytest.raises(UnsupportedLayerError, match="TensorFlow cannot convert"):
        found.save(tmp_path / "small.tflite")
    assert not (tmp_path / "small.tflite").exists()
    assert "error" not in capfd.readouterr().err  # of the converter, for the measured costs


def test_a_model_of_no_fixed_size_is_shrunk_for_a_given_one():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, None, 1))
    x = layers.Conv2D(8, 3, activation="relu")(inputs)
    x = layers.Conv2D(8, 3, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    x = np.random.default_rng(0).uniform(size=(30, 9, 9, 1)).astype(np.float32)
    im = nns.InstrumentedModel(model, (9, 9, 1))
    found = pruning.shrink(
        im, x, np.arange(30) % 3, classes=[0, 2], ratio=0.4, by="channel", progress=False
    )
    assert found.model.count_params() <= 0.6 * model.count_params()
    assert found.before.multiply_adds == 7 * 7 * 9 * 8 + 5 * 5 * 9 * 64 + 8 * 3
    assert found.model.predict(x[:2], verbose=0).shape == (2, 2)


def test_files_load_without_this_package(shrunk, digits, tmp_path):
    x = digits[1].x[:4]
    expected = shrunk.model.predict(x, verbose=0)
    shrunk.save(tmp_path / "small.keras")
    shrunk.save(tmp_path / "small.tflite")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, keras, numpy as np; m = keras.models.load_model('small.keras');"
        "assert 'nnslicer_tf' not in sys.modules;"
        "np.save('y.npy', m.predict(np.load('x.npy'), verbose=0))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5, atol=1e-5)
    size = (tmp_path / "small.tflite").stat().st_size
    assert size == shrunk.after.file_bytes < shrunk.before.file_bytes
    with pytest.raises(InvalidArgumentError, match=r"\.keras"):
        shrunk.save(tmp_path / "small.zip")


@pytest.mark.parametrize("name", ["pipe", "pipe.keras", "pipe.tflite", "file", "folder.keras"])
def test_a_model_is_not_saved_over_what_is_no_model(shrunk, tmp_path, name):
    path = tmp_path / name
    {"pipe": os.mkfifo, "file": Path.touch, "folder": Path.mkdir}[path.stem](path)
    before = path.lstat()
    with pytest.raises(InvalidArgumentError, match=f"^Cannot write to '{path}': it is"):
        shrunk.save(path)
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)


def test_a_model_is_saved_through_a_link(shrunk, tmp_path):
    (tmp_path / "small.keras").symlink_to("stored")  # Keras needs the ending .keras
    shrunk.save(tmp_path / "small.keras")
    assert (tmp_path / "small.keras").is_symlink() and (tmp_path / "stored").stat().st_size > 1000
    shrunk.save(tmp_path / "folder")
    assert (tmp_path / "folder" / "saved_model.pb").is_file()


def test_a_network_with_a_spare_unit_is_fitted_exactly():
    """Two of four hidden units are copies of the others: half of them give the same outputs."""
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="relu")])
    model.add(layers.Dense(2))
    kernel, head = rng.normal(size=(6, 2)), rng.normal(size=(2, 2))
    model.set_weights([np.repeat(kernel, 2, 1), np.zeros(4), np.repeat(head, 2, 0), np.ones(2)])
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = model.predict(x, verbose=0).argmax(1)

    class Chosen(pruning.Ranker):
        """The first and the third unit matter."""

        def scores(self, im, x=None, y=None, classes=None):
            first, second = im.kernels
            columns = np.array([2.0, 1, 2, 1])
            return {first: np.tile(columns, (6, 1)), second: np.ones((4, 2))}

    found = pruning.shrink(model, x, y, classes=[0, 1], ratio=0.4, by=Chosen(), progress=False)
    assert found.model.layers[0].units == 2
    got, expected = found.model.predict(x, verbose=0), model.predict(x, verbose=0)
    # The fit is damped, so that it is not quite exact; unfitted, half of each sum is missing.
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_residual_networks_and_a_softmax_shrink():
    keras.utils.set_random_seed(0)
    base = zoo.build("resnet10", (16, 16, 3), 5)
    model = keras.Model(base.inputs, layers.Softmax()(base.outputs[0]))
    x = np.random.default_rng(0).uniform(size=(60, 16, 16, 3)).astype(np.float32)
    y = np.arange(60) % 5
    found = pruning.shrink(model, x, y, classes=[1, 2, 4], by="weight", progress=False)
    assert found.after.parameters <= 0.25 * found.before.parameters
    outputs = found.model.predict(x, verbose=0)
    np.testing.assert_allclose(outputs.sum(1), 1, rtol=1e-4)
    assert outputs.shape == (60, 3)
    assert found.after.multiply_adds < found.before.multiply_adds


def test_other_classes_become_one_output(digits):
    train, test = digits
    model = zoo.load("digits_cnn")
    found = pruning.shrink(
        model,
        train,
        classes=[2, 7],
        ratio=0.05,
        by="channel",
        other=True,
        test=test,
        progress=False,
    )
    outputs = found.model.predict(test.x, verbose=0)
    assert outputs.shape == (len(test), 3)
    np.testing.assert_allclose(outputs.sum(1), 1, rtol=1e-4)
    place = np.select([test.y == 2, test.y == 7], [0, 1], 2)
    assert found.accuracy[1] == pytest.approx((outputs.argmax(1) == place).mean())
    assert found.accuracy[1] > 0.95
    nns.InstrumentedModel(found.model)  # it can be sliced again


def test_training_goes_on_after_the_fit(digits):
    train, test = digits
    options = {"classes": [3, 8], "ratio": 0.9, "by": "random", "test": test, "progress": False}
    model = zoo.load("digits_cnn")
    plain = pruning.shrink(model, train, **options)
    trained = pruning.shrink(model, train, epochs=3, **options)
    assert trained.after.parameters == plain.after.parameters
    assert trained.accuracy[1] >= plain.accuracy[1] - 0.02
    again = pruning.shrink(model, train, epochs=3, **options)
    for a, b in zip(trained.model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 1.0}, r"ratio must be in \(0, 1\)"),
        ({"ratio": 0.9999}, "Cannot remove that many"),
        ({"classes": [3]}, "needs two classes"),
        ({"classes": [3, 10]}, "classes are 0 … 9"),
        ({"by": "weights"}, "Did you mean 'weight'"),
    ],
)
def test_wrong_arguments_are_named(digits, options, message):
    given = {"classes": [3, 5], "by": "weight", "progress": False, **options}
    with pytest.raises(InvalidArgumentError, match=message):
        pruning.shrink(zoo.load("digits_cnn"), digits[0], **given)


def test_a_layer_of_a_class_that_is_left_out_is_named():
    """Each class has a layer of its own; the third one's would have no unit."""
    x = keras.Input((4,))
    hidden = layers.Dense(8, activation="relu")(x)
    heads = [layers.Dense(1, "sigmoid", name=f"is_{name}")(hidden) for name in "abc"]
    model = keras.Model(x, layers.Concatenate()(heads))
    samples, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3
    with pytest.raises(UnsupportedLayerError, match="'is_c' computes only classes"):
        pruning.shrink(model, samples, y, classes=[0, 1], progress=False)


def test_a_model_without_hidden_units_cannot_shrink(digits):
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(10)])
    with pytest.raises(UnsupportedLayerError, match="No unit"):
        pruning.shrink(model, digits[0], classes=[3, 5], by="weight", progress=False)


@pytest.mark.parametrize("classes", ["0,1", 0, [True, False], [0.0, 1.0]])
def test_classes_that_are_none(classes):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5, "relu"), layers.Dense(3)])
    x, y = np.zeros((6, 4), np.float32), np.arange(6) % 3
    with pytest.raises(nns.errors.InvalidArgumentError, match="must be integers"):
        pruning.shrink(model, x, y, classes=classes)


class Block(layers.Layer):
    """An own layer whose code says how many units its layers have."""

    def __init__(self, width, **options):
        super().__init__(**options)
        self.wide, self.narrow = layers.Dense(4 * width, "relu"), layers.Dense(width)

    def call(self, x):
        return x + self.narrow(self.wide(x))


def test_units_outside_own_layers_are_removed_and_the_others_named():
    x = keras.Input((6,))
    h = layers.Dense(16, "relu", name="outside")(Block(6, name="block")(x))
    model = keras.Model(x, layers.Dense(3)(h))
    data = np.random.default_rng(0).normal(size=(60, 6)).astype("f4")
    y = model.predict(data, verbose=0).argmax(1)
    options = {"classes": sorted(set(y)), "progress": False}
    small = pruning.shrink(model, data, y, ratio=0.2, **options).model
    assert small.get_layer("outside").units < 16
    assert small.get_layer("block").wide.units == 24
    message = r"inside 'block' keep all their units.*as a Keras model.*Use a smaller ratio"
    with pytest.raises(InvalidArgumentError, match=message):
        pruning.shrink(model, data, y, ratio=0.9, **options)
