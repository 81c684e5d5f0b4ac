"""Files that tf-keras writes, loaded here: equal predictions, or a refusal by name."""

import importlib.util
import shutil
import warnings

import keras
import numpy as np
import pytest
from gauntlet import old_files
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument.loading import load_model

needs_oracle = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None, reason="tf-keras, the oracle, is not installed"
)
EQUAL = [
    ("hard_sigmoid", "h5"),
    ("LSTM hard_sigmoid", "2.2"),
    ("Bidirectional hard_sigmoid", "keras"),
    ("TimeDistributed", "2.2"),
    ("Softmax of two axes", "h5"),
    ("Normalization", "h5"),
    ("separable", "keras"),
    ("attention", "keras"),
    ("nested models of both kinds", "h5"),
    ("operators of TensorFlow", "keras"),
]
MORE = [
    ("GRU", "keras"),
    ("LayerNormalization", "2.2"),
    ("mixed float16", "h5"),
    ("LSTM states", "2.2"),
    ("indices of tensors", "h5"),
    ("Embedding with a mask", "2.2"),
    ("ThresholdedReLU", "h5"),
    ("ConvLSTM2D", "h5"),
]
REFUSED = {
    "LSTM time_major": r"'lstm' \(LSTM\) has time_major=True.*tf-keras",
    "BatchNormalization of two axes": r"'batch_normalization'.*axis=\[2, 3\].*tf-keras",
    "Lambda of Python code": r"'lambda' \(Lambda\).*load_weights",
    "LocallyConnected2D": r"'locally_connected2d' is a LocallyConnected2D.*tf-keras",
    "RandomCrop": r"'random_crop'.*resize the samples",
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of tf-keras
        yield


@needs_oracle
@pytest.mark.parametrize(("case", "form"), EQUAL)
def test_predictions_are_those_of_keras_2(case, form, tmp_path):
    row = old_files.compare(case, form, tmp_path)
    assert row["outcome"] == "equal", row


@needs_oracle
@pytest.mark.parametrize(("case", "form"), MORE)
def test_more_predictions_are_those_of_keras_2(case, form, tmp_path):
    test_predictions_are_those_of_keras_2(case, form, tmp_path)


@needs_oracle
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_counterpart_is_refused_by_name(case, tmp_path):
    model, _ = old_files.build(case)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=REFUSED[case]):
        load_model(old_files.write(model, tmp_path, "h5"))


@needs_oracle
def test_an_old_lstm_is_wrapped_and_saved_again(tmp_path):
    model, x = old_files.build("LSTM hard_sigmoid")
    loaded = load_model(old_files.write(model, tmp_path, "h5"))
    expected = old_files.predictions(model, x)[0]
    np.testing.assert_allclose(nns.InstrumentedModel(loaded).predict(x[0]), expected, atol=1e-5)
    loaded.save(tmp_path / "again.keras")
    again = load_model(tmp_path / "again.keras")
    np.testing.assert_allclose(again.predict(x[0], verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["model.keras", "model.hdf5", "model", "model.bin"])
@pytest.mark.parametrize("written", ["a.h5", "b.keras"])
def test_the_first_bytes_say_the_format(name, written, tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.save(tmp_path / written)
    shutil.copyfile(tmp_path / written, tmp_path / name)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(load_model(tmp_path / name)(x), model(x))


def test_adapted_statistics_are_read_from_h5(tmp_path):
    """Keras itself computes with the old ones."""
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(3.0, 2.0, (50, 4)).astype("f4"))
    model = keras.Sequential([keras.Input((4,)), layer, layers.Dense(2)])
    model.save(tmp_path / "model.h5")
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(load_model(tmp_path / "model.h5")(x), model(x), rtol=1e-6)


def test_weights_that_are_not_finite_are_reported(tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dense(2, name="bad")])
    model.layers[1].kernel.assign(np.full((2, 2), np.nan))
    model.save(tmp_path / "model.keras")
    warnings.simplefilter("error")
    with pytest.warns(UserWarning, match="1 layer.*'bad'.*not finite|not finite.*'bad'"):
        load_model(tmp_path / "model.keras")
