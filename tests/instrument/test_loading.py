"""Models from files of older versions of Keras, rewritten from those of this one."""

import json

import h5py
import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument.loading import load_model

X = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)


@pytest.fixture
def model():
    stack = [
        layers.Conv2D(4, 3, activation="relu", name="conv"),
        layers.MaxPooling2D(2, name="pool"),
        layers.Flatten(name="flat"),
        layers.Dropout(0.5, name="drop"),
        layers.Dense(3, activation="softmax", name="probabilities"),
    ]
    return keras.Sequential([keras.Input((8, 8, 3)), *stack])


def written_by(model, path, config, version):
    """Save a model as if an older version had written its config."""
    model.save(path)
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = json.dumps(config).encode()
        file.attrs["keras_version"] = version.encode()
    return path


def old_layers(model):
    """Return the configs of the layers without an input layer, as up to Keras 2.3."""
    parts = [{"class_name": type(o).__name__, "config": o.get_config()} for o in model.layers]
    parts[0]["config"]["batch_input_shape"] = [None, 8, 8, 3]
    for part in parts:
        part["config"]["dtype"] = "float32"
    parts[4]["config"] = {k: v for k, v in parts[4]["config"].items() if "initializer" not in k}
    parts[0]["config"] = {k: v for k, v in parts[0]["config"].items() if "initializer" not in k}
    return parts


KERAS_1 = [
    {
        "class_name": "Convolution2D",
        "config": {
            **{"name": "conv", "batch_input_shape": [None, 8, 8, 3], "input_dtype": "float32"},
            **{"nb_filter": 4, "nb_row": 3, "nb_col": 3, "init": "glorot_uniform", "bias": True},
            **{"activation": "relu", "border_mode": "valid", "subsample": [1, 1]},
            **{"dim_ordering": "tf", "W_regularizer": None, "b_constraint": None},
        },
    },
    {
        "class_name": "MaxPooling2D",
        "config": {
            **{"name": "pool", "pool_size": [2, 2], "border_mode": "valid", "strides": [2, 2]},
            "dim_ordering": "tf",
        },
    },
    {"class_name": "Flatten", "config": {"name": "flat"}},
    {"class_name": "Dropout", "config": {"name": "drop", "p": 0.5}},
    {
        "class_name": "Dense",
        "config": {
            **{"name": "probabilities", "output_dim": 3, "init": "uniform", "bias": True},
            **{"activation": "softmax", "input_dim": None, "W_regularizer": None},
        },
    },
]


@pytest.mark.parametrize("version", ["2.3.1", "2.2.2", "1.2.2"])
def test_sequential_models_of_old_versions_give_their_outputs(model, tmp_path, version):
    parts = KERAS_1 if version == "1.2.2" else old_layers(model)
    inner = {"name": "old", "layers": parts} if version == "2.3.1" else parts
    config = {"class_name": "Sequential", "config": inner}
    loaded = load_model(written_by(model, tmp_path / "old.h5", config, version))
    assert loaded.input_shape == (None, 8, 8, 3)
    np.testing.assert_array_equal(loaded(X), model(X))


def test_a_table_s_model_knows_its_width(tmp_path):
    """Without a repair Keras loads it with an unknown input shape."""
    dense = keras.Sequential([keras.Input((91,)), layers.Dense(2, name="last")])
    part = {"name": "last", "units": 2, "batch_input_shape": [None, 91]}
    config = {"class_name": "Sequential", "config": [{"class_name": "Dense", "config": part}]}
    loaded = load_model(written_by(dense, tmp_path / "old.h5", config, "2.2.0"))
    assert loaded.input_shape == (None, 91)
    x = np.ones((2, 91), np.float32)
    np.testing.assert_array_equal(loaded(x), dense(x))


def test_what_is_missing_and_the_version_are_named(model, tmp_path):
    parts = old_layers(model)
    parts[0]["class_name"] = "FancyConv"
    config = {"class_name": "Sequential", "config": {"name": "old", "layers": parts}}
    path = written_by(model, tmp_path / "old.h5", config, "2.3.1")
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"'FancyConv'.*Keras 2\.3\.1.*register"
    ):
        load_model(path)
    parts = old_layers(model)
    parts[0]["config"]["strange"] = 3
    path = written_by(model, tmp_path / "old.h5", config | {"config": parts}, "2.1.6")
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'conv'.*strange=3.*tf-keras"):
        load_model(path)


def test_a_class_that_is_not_registered_is_named(tmp_path):
    class Fancy(layers.Dense):
        pass

    path = tmp_path / "own.keras"
    keras.Sequential([keras.Input((3,)), Fancy(2)]).save(path)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"class 'Fancy'.*register_keras"):
        load_model(path)


def test_weights_are_no_model(model, tmp_path):
    model.save_weights(tmp_path / "only.weights.h5")
    with pytest.raises(nns.errors.CorruptFileError, match="load_weights"):
        load_model(tmp_path / "only.weights.h5")


@pytest.mark.parametrize(
    "part",
    [np.s_[:, -1], np.s_[:, 1:3], np.s_[:, ::-1], np.s_[..., :2], np.s_[:, None], np.s_[:, :, 0]],
    ids=str,
)
def test_indexing_after_loading(part, tmp_path):
    """Keras reads the tuple of an index back as a list."""
    x = keras.Input((5, 6))
    model = keras.Model(x, layers.Dense(4)(x)[part])
    model.save(tmp_path / "model.keras")
    values = np.random.default_rng(0).normal(size=(3, 5, 6)).astype(np.float32)
    im = nns.InstrumentedModel(keras.saving.load_model(tmp_path / "model.keras"))
    np.testing.assert_allclose(im.predict(values), model.predict(values, verbose=0), atol=1e-6)


def test_a_saved_model_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(
        nns.errors.InvalidArgumentError, match=r"is a SavedModel.*save it as \.keras"
    ):
        load_model(tmp_path)
