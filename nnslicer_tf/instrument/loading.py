"""Loading of models from files, including those of older Keras versions."""

import json
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras

from nnslicer_tf._files import as_path
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, UnsupportedLayerError

_MISSING = re.compile(r"(?:Could not locate (class|function)|Unknown (layer):?) '?\"?([\w>.]+)")
_OF_CONFIGS = re.compile("deserializ|Unknown|Unrecognized|Could not")
_KERAS_1_CLASSES = {
    "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D",
    "Convolution3D": "Conv3D",
    "AtrousConvolution2D": "Conv2D",
}
_KERAS_1_NAMES = {
    "output_dim": "units",
    "nb_filter": "filters",
    "filter_length": "kernel_size",
    "subsample": "strides",
    "subsample_length": "strides",
    "stride": "strides",
    "border_mode": "padding",
    "dim_ordering": "data_format",
    "bias": "use_bias",
    "p": "rate",
    "atrous_rate": "dilation_rate",
    "pool_length": "pool_size",
}
_KERAS_1_UNUSED = re.compile(
    r"(W|b|U|activity|gamma|beta)_(regularizer|constraint)|(gamma_|beta_)?init|inner_init|mode"
    r"|input_dim|input_dtype|input_length|dropout"
)


def load_model(path: str | os.PathLike) -> keras.Model:
    """Load a Keras model from a .keras or .h5 file, without compiling it.

    Its loss is kept, which says what its outputs are. Configs of Keras 1 and 2 are converted to the
    form of Keras 3.

    Raises:
        InvalidArgumentError: if there is no such file, or its name has a different ending.
        CorruptFileError: if the file is truncated or damaged, or has no model.
        UnsupportedLayerError: if this version of Keras cannot rebuild the model, naming the missing
            class or function and the version that wrote the file.
    """
    path = as_path(path)
    if (path / "saved_model.pb").is_file():
        raise InvalidArgumentError(
            f"'{path}' is a SavedModel, a compiled function without visible layers. Build the "
            "model from its code, copy the weights from tf.saved_model.load, and save it as .keras."
        )
    if path.suffix not in (".keras", ".h5", ".hdf5"):
        raise InvalidArgumentError(f"A model must be a .keras or .h5 file. Received: '{path}'")
    if not path.is_file():
        raise InvalidArgumentError(f"There is no model file '{path}'.")
    try:
        read = _read_keras if path.suffix == ".keras" else _read_h5
        config, version, training = read(path)
    except Exception as error:  # parsers of ZIP, HDF5 and JSON raise errors of many classes
        raise _unreadable(path, error) from error
    try:
        repaired = _repaired(config) if path.suffix != ".keras" else config
        if repaired == config:
            model = keras.models.load_model(path, compile=False)
        else:
            model = _load_with_config(path, repaired)
        model.loss = (training or {}).get("loss")
        return model
    except Exception as error:
        is_old = isinstance(error, ValueError) and version[:1] in "12"
        if is_old or isinstance(error, TypeError) or _OF_CONFIGS.search(str(error)):
            raise _not_rebuilt(path, version, error) from error
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CorruptFileError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CorruptFileError(f"'{path}' is not a readable Keras model: {reason}")


def _not_rebuilt(path: Path, version: str, error: Exception) -> UnsupportedLayerError:
    wrote = f"It was written by Keras {version}; this is Keras {keras.__version__}."
    missing = _MISSING.search(str(error))
    if missing:
        kind, name = missing[1] or missing[2], missing[3]
        return UnsupportedLayerError(
            f"'{path}' needs the {kind} '{name}', which is not registered. {wrote} Decorate it "
            "with @keras.saving.register_keras_serializable(), import it, and load the file from "
            "Python."
        )
    cause = " ".join(str(error).split()) or type(error).__name__
    cause = cause if len(cause) < 600 else f"{cause[:300]} … {cause[-300:]}"
    advice = "Register own classes with @keras.saving.register_keras_serializable()."
    if version[:1] in "12":
        advice = (
            "Load it with that version (pip install tf-keras and TF_USE_LEGACY_KERAS=1 for Keras "
            "2), build the model with this one, and copy the weights with set_weights."
        )
    return UnsupportedLayerError(f"Keras cannot rebuild '{path}': {cause} {wrote} {advice}")


def _read_keras(path: Path) -> tuple[Any, str, Any]:
    """Return the config in a .keras file, the version of Keras that wrote it, and of training."""
    with zipfile.ZipFile(path) as file:
        version = json.loads(file.read("metadata.json")).get("keras_version", "of unknown version")
        config = json.loads(file.read("config.json"))
    return config, version, config.get("compile_config")


def _read_h5(path: Path) -> tuple[Any, str, Any]:
    import h5py

    with h5py.File(path, "r") as file:
        config = file.attrs.get("model_config")
        if config is None:
            raise ValueError(
                "it has no model, perhaps only weights: build the model and call load_weights()."
            )
        version = file.attrs.get("keras_version")
        if version is None and "model_weights" in file:
            version = file["model_weights"].attrs.get("keras_version")
        training = file.attrs.get("training_config", "null")
    version = version or "1 or unknown"
    version = version.decode() if isinstance(version, bytes) else version
    return json.loads(config), version, json.loads(training)


def _load_with_config(path: Path, config: Any) -> keras.Model:
    """Load an .h5 file as if it had another config."""
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model.h5"
        shutil.copyfile(path, copy)
        with h5py.File(copy, "r+") as file:
            file.attrs["model_config"] = json.dumps(config).encode()
        return keras.models.load_model(copy, compile=False)


def _repaired(config: Any) -> Any:
    """Return the config of a model or layer in the form of Keras 2.4 and later."""
    if not isinstance(config, dict) or "class_name" not in config:
        return config
    kind, inner = config["class_name"], config.get("config")
    if kind == "Sequential" and isinstance(inner, list):  # up to Keras 2.2.2
        inner = {"name": "sequential", "layers": inner}
    if not isinstance(inner, dict):
        return config
    inner = dict(inner)
    if "layers" in inner:
        inner["layers"] = [_repaired(layer) for layer in inner["layers"]]
        first = inner["layers"][0] if inner["layers"] else {}
        shape = first.get("config", {}).get("batch_input_shape")
        if kind == "Sequential" and shape and first["class_name"] != "InputLayer":
            entry = {
                "name": f"{first['config'].get('name', 'layer')}_input",
                "batch_input_shape": shape,
                "dtype": first["config"].get("dtype") or "float32",
            }
            rest = {k: v for k, v in first["config"].items() if k != "batch_input_shape"}
            entries = [{"class_name": "InputLayer", "config": entry}, {**first, "config": rest}]
            inner["layers"] = [*entries, *inner["layers"][1:]]
    elif isinstance(inner.get("layer"), dict):
        inner["layer"] = _repaired(inner["layer"])
    else:
        inner = _from_keras_1(kind, inner)
    return {**config, "class_name": _KERAS_1_CLASSES.get(kind, kind), "config": inner}


def _from_keras_1(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a layer's config with the names of Keras 2; others are returned unchanged."""
    of_keras_1 = {"nb_filter", "border_mode", "init", "W_regularizer", "p", "mode"}
    if kind != "Embedding" and not of_keras_1 & set(config):
        return config
    if kind == "Embedding":
        return {k: v for k, v in config.items() if k not in ("W_regularizer", "init", "dropout")}
    sizes = [config[k] for k in ("kernel_dim1", "nb_row", "nb_col") if k in config]
    found: dict[str, Any] = {"kernel_size": sizes} if sizes else {}
    for key, value in config.items():
        if key in ("nb_row", "nb_col", "kernel_dim1") or _KERAS_1_UNUSED.fullmatch(key):
            continue
        orders = {"tf": "channels_last", "th": "channels_first"}
        found[_KERAS_1_NAMES.get(key, key)] = orders.get(value) if key == "dim_ordering" else value
    return found
