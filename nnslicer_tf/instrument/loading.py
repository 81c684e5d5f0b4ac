"""Loading of models from files, including those of older Keras versions."""

import json
import os
import re
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from nnslicer_tf._files import as_path
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument.old_configs import REMEDY, converted

_MISSING = re.compile(r"(?:Could not locate (class|function)|Unknown (layer):?) '?\"?([\w>.]+)")
_OF_CONFIGS = re.compile("deserializ|Unknown|Unrecognized|Could not")


def load_model(path: str | os.PathLike) -> keras.Model:
    """Load a Keras model from a .keras or .h5 file, without compiling it.

    Its loss is kept, which says what its outputs are. The file's first bytes say its format, its
    name does not. Configs of Keras 1 and 2 are converted, so that they mean what they meant then.
    Warns of weights that are not finite.

    Raises InvalidArgumentError if there is no such file, or it has another format by its name, too;
    CorruptFileError if the file is truncated or damaged, or has no model; UnsupportedLayerError if
    this version of Keras cannot rebuild the model, naming the missing class, function or option and
    the version that wrote the file.
    """
    path = as_path(path)
    if (path / "saved_model.pb").is_file():
        raise InvalidArgumentError(
            f"'{path}' is a SavedModel, a compiled function without visible layers. Build the "
            "model from its code, copy the weights from tf.saved_model.load, and save it as .keras."
        )
    if not path.is_file():
        raise InvalidArgumentError(f"There is no model file '{path}'.")
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"  # as is an .npz file, but without metadata
        is_named = path.suffix in (".keras", ".h5", ".hdf5")
        is_zip = is_zip and (is_named or "metadata.json" in zipfile.ZipFile(path).namelist())
        if not is_zip and not h5py.is_hdf5(path) and not is_named:
            raise InvalidArgumentError(f"A model is a .keras or .h5 file. Received: '{path}'")
        config, version, training = (_read_keras if is_zip else _read_h5)(path)
    except InvalidArgumentError:
        raise
    except Exception as error:  # parsers of ZIP, HDF5 and JSON raise errors of many classes
        raise _unreadable(path, error) from error
    try:
        is_old = version[:1] in "12"
        modern = converted(config) if is_old else config
        if modern != config or path.suffix not in ((".keras",) if is_zip else (".h5", ".hdf5")):
            model = _load(path, modern, is_zip)
        else:
            model = keras.models.load_model(path, compile=False)
        if is_old and not is_zip:
            _check_order(path, model)
        model.loss = (training or {}).get("loss")
    except UnsupportedLayerError:
        raise
    except Exception as error:
        if isinstance(error, (TypeError, ValueError)) or _OF_CONFIGS.search(str(error)):
            raise _not_rebuilt(path, version, error) from error
        raise _unreadable(path, error) from error
    layers = [layer for layer in model._flatten_layers() if layer is not model]
    for layer in layers:
        if isinstance(layer, keras.layers.Normalization) and layer.built:
            layer.finalize_state()  # Keras does not do so for .h5 files
    broken = [
        layer.name
        for layer in layers
        if any(
            "float" in v.dtype and not np.isfinite(v).all()
            for v in layer._trainable_variables + layer._non_trainable_variables
        )
    ]
    if broken:
        warnings.warn(
            f"The weights of {len(broken)} layers of '{path}' are not finite, of '{broken[0]}' "
            "first: training diverged, or the file is damaged. The model's outputs mean nothing.",
            stacklevel=2,
        )
    return model


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
            "with @keras.saving.register_keras_serializable(), and import it before loading."
        )
    cause = " ".join(str(error).split()) or type(error).__name__
    cause = cause if len(cause) < 600 else f"{cause[:300]} … {cause[-300:]}"
    register = "Register own classes with @keras.saving.register_keras_serializable()."
    advice = REMEDY if version[:1] in "12" else register
    return UnsupportedLayerError(f"Keras cannot rebuild '{path}': {cause} {wrote} {advice}")


def _read_keras(path: Path) -> tuple[Any, str, Any]:
    """Return the config in a .keras file, the version of Keras that wrote it, and of training."""
    with zipfile.ZipFile(path) as file:
        version = json.loads(file.read("metadata.json")).get("keras_version", "of unknown version")
        config = json.loads(file.read("config.json"))
    return config, version, config.get("compile_config")


def _read_h5(path: Path) -> tuple[Any, str, Any]:
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
    return json.loads(config), _text(version or "1 or unknown"), json.loads(training)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _load(path: Path, config: Any, is_zip: bool) -> keras.Model:
    """Load a file as if it had another config, and a name that says its format."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / ("model.keras" if is_zip else "model.h5")
        if is_zip:
            with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w") as new:
                for item in old.infolist():
                    text = json.dumps(config) if item.filename == "config.json" else None
                    new.writestr(item, old.read(item) if text is None else text)
        else:
            shutil.copyfile(path, copy)
            with h5py.File(copy, "r+") as file:
                # Long configs do not fit beside the other attributes of an old file.
                del file.attrs["model_config"]
                file.attrs["model_config"] = json.dumps(config).encode()
        return keras.models.load_model(copy, compile=False)


def _check_order(path: Path, model: keras.Model) -> None:
    """Refuse a file whose weights Keras has read, in order, into variables of another name."""
    with h5py.File(path, "r") as file:
        group = file.get("model_weights", file)
        for layer in model.layers:
            names = group[layer.name].attrs.get("weight_names", ()) if layer.name in group else ()
            saved = [_text(name).split("/")[-1].split(":")[0] for name in names]
            variables = [v.name for v in (*layer.trainable_weights, *layer.non_trainable_weights)]
            if saved != variables and sorted(saved) == sorted(variables):
                raise UnsupportedLayerError(
                    f"The weights of layer '{layer.name}' in '{path}' are in another order than "
                    f"this version of Keras expects. {REMEDY}"
                )
