"""Configs of models of Keras 1 and 2, converted to what they mean in Keras 3.

Keras 3 reads many of them itself, but some options mean something else there, silently:
`hard_sigmoid` was clip(0.2 x + 0.5, 0, 1), and lists of axes are dropped. What has no counterpart
is refused, with the layer and the remedy.
"""

import inspect
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import keras
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError

REMEDY = (
    "Load the file with the version that wrote it (Keras 2: pip install tf-keras), build the model "
    "with layers of this version, and copy the weights with set_weights."
)
_NAMES = tomllib.loads(resources.files(__package__).joinpath("old_configs.toml").read_text("utf-8"))


@keras.saving.register_keras_serializable("nnslicer_tf")
def keras_2_hard_sigmoid(x: Any) -> Any:
    """Return clip(0.2 x + 0.5, 0, 1), the `hard_sigmoid` of Keras 1 and 2."""
    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def converted(config: Any) -> Any:
    """Return the config of a model or layer of Keras 1 or 2 in the form of Keras 3.

    Raises UnsupportedLayerError if a layer, function or option has no counterpart.
    """
    if not isinstance(config, dict) or "class_name" not in config:
        return config
    kind, inner = config["class_name"], config.get("config")
    if kind == "Sequential" and isinstance(inner, list):  # up to Keras 2.2.2
        inner = {"name": "sequential", "layers": inner}
    if not isinstance(inner, dict):
        return config
    inner = _plain(inner)
    if kind in ("TFOpLambda", "SlicingOpLambda"):
        return _function(config, inner)
    if "layers" in inner:
        parts = _with_nodes(_with_entry(kind, inner["layers"]))
        inner["output_layers"] = _shifted(parts, inner.get("output_layers"), ("Sequential",))
        parts = [converted(part) for part in parts]
        if inner["output_layers"] is None:
            del inner["output_layers"]
        model = {}
        if kind in ("Sequential", "Functional", "Model"):
            kind = "Functional" if kind == "Model" else kind
            model = {"module": f"keras.src.models.{kind.lower()}", "registered_name": kind}
        config = {k: v for k, v in config.items() if k != "build_config"}
        return {**config, **model, "class_name": kind, "config": {**inner, "layers": parts}}
    for key in ("layer", "backward_layer", "cell", "cells"):
        if (part := inner.pop(key, None)) is not None:
            inner[key] = [converted(o) for o in part] if isinstance(part, list) else converted(part)
    known = getattr(keras.layers, _NAMES["classes"].get(str(kind), str(kind)), None)
    is_own = config.get("registered_name") or keras.saving.get_registered_object(kind)
    if known is None or (is_own and kind not in _NAMES["classes"]):
        module = str(config.get("module", "")).split(".")[0]
        if module in ("keras", "tf_keras") or kind in _NAMES["gone"]:
            raise UnsupportedLayerError(
                f"Layer '{inner.get('name')}' is a {kind}, which this Keras lacks. {REMEDY}"
            )
        return {**config, "config": inner}
    options = {"class_name": known.__name__, "config": _options(kind, known, inner)}
    rest = {key: config[key] for key in ("name", "inbound_nodes") if key in config}
    for node in rest.get("inbound_nodes", ()):
        if issubclass(known, keras.layers.RNN) and isinstance(node["args"][0], list):
            node["args"], states = node["args"][0][:1], node["args"][0][1:]
            node["kwargs"]["initial_state"] = states
    return {"module": "keras.layers", "registered_name": None, **options, **rest}


def _plain(value: Any) -> Any:
    """Return a config without the forms in which Keras 2 wrote policies and arrays."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("type") == "ndarray" and "value" in value:
        return value["value"]
    if str(value.get("class_name")).startswith("Policy"):
        return value["config"]["name"]
    return {key: _plain(part) for key, part in value.items()}


def _with_entry(kind: str, parts: list[Any]) -> list[Any]:
    """Return a model's layers, with an input layer if a first layer has the input's shape."""
    first = parts[0] if parts else {}
    shape = first.get("config", {}).get("batch_input_shape")
    if kind != "Sequential" or not shape or first["class_name"] == "InputLayer":
        return parts
    entry = {"name": f"{first['config'].get('name', 'layer')}_input", "batch_input_shape": shape}
    is_ids = first["class_name"] == "Embedding"
    entry["dtype"] = "float32" if is_ids else first["config"].get("dtype") or "float32"
    return [{"class_name": "InputLayer", "config": entry}, *parts]


def _options(kind: str, known: type, config: dict[str, Any]) -> dict[str, Any]:
    """Return a layer's options by the names, and with the meanings, of Keras 3."""
    name = config.get("name", kind)
    if kind == "RandomCrop":
        raise UnsupportedLayerError(
            f"Layer '{name}' (RandomCrop) resized in predictions of Keras 2, and crops now. Build "
            "the model without it, load the weights, and resize the samples."
        )
    sizes = [config.pop(key) for key in ("kernel_dim1", "nb_row", "nb_col") if key in config]
    options: dict[str, Any] = {"kernel_size": sizes} if sizes else {}
    if kind == "InputLayer":
        options["batch_shape"] = config.get("batch_input_shape", config.get("batch_shape"))
    parameters: set[str] = set()
    for base in known.__mro__[:-1]:
        accepted = inspect.signature(base.__init__).parameters  # type: ignore[misc]
        parameters |= set(accepted)
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            break
    for old, value in config.items():
        key = old if old in parameters else _NAMES["keras_1_names"].get(old, old)
        if kind == "ThresholdedReLU" and key == "theta":
            key = "threshold"
        if kind == "LeakyReLU" and key == "alpha":
            key = "negative_slope"
        if isinstance(value, str) and key == "data_format":
            value = _NAMES["keras_1_values"].get(value, value)
        if value == "hard_sigmoid" and key.endswith("activation"):
            value = {
                "module": "builtins",
                "class_name": "function",
                "config": "keras_2_hard_sigmoid",
                "registered_name": "nnslicer_tf>keras_2_hard_sigmoid",
            }
        if key == "axis" and isinstance(value, list):
            if known is keras.layers.BatchNormalization and len(value) > 1:
                raise _not_there(name, kind, key, value)
            value = value[0] if len(value) == 1 else value
        if kind == "Lambda" and key == "function" and not isinstance(value, str):
            raise UnsupportedLayerError(
                f"Layer '{name}' (Lambda) holds compiled Python code, which only the version of "
                "Python that wrote it can run. Build the model from its code, with a layer of "
                "keras.ops instead, and load the weights: model.load_weights(path)."
            )
        if key in parameters:
            options.setdefault(key, value)
        elif (
            key not in _NAMES["unused"]
            and not key.endswith(("_initializer", "_regularizer", "_constraint"))
            and value not in (None, False)
            and (key, value) != ("groups", 1)
        ):
            raise _not_there(name, kind, key, value)
    return options


def _not_there(name: str, kind: str, key: str, value: Any) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"Layer '{name}' ({kind}) has {key}={value!r}, which Keras {keras.__version__} does not "
        f"support. {REMEDY}"
    )


_MODELS = ("Functional", "Model", "Sequential")


def _is_reference(value: Any) -> bool:
    """Whether a value of a config is a tensor: a layer's name, its call, its output."""
    is_list = isinstance(value, list) and len(value) >= 3
    return is_list and isinstance(value[0], str) and isinstance(value[1], int)


def _shifted(parts: list[Any], value: Any, kinds: tuple[str, ...] = _MODELS) -> Any:
    """Return references with the calls of models counted from 0: Keras 2 began with 1."""
    if _is_reference(value):
        kind = next((p["class_name"] for p in parts if p.get("name") == value[0]), "")
        return [value[0], value[1] - (kind in kinds and value[1] > 0), *value[2:]]
    return [_shifted(parts, part, kinds) for part in value] if isinstance(value, list) else value


def _with_nodes(parts: list[Any]) -> list[Any]:
    """Return the layers of a functional model with their calls in the form of Keras 3."""

    def tensor(value: Any) -> Any:
        if _is_reference(value):
            if value[0] == "_CONSTANT_VALUE":
                return value[2]
            spec = {"shape": [], "dtype": "float32", "keras_history": _shifted(parts, value)[:3]}
            return {"class_name": "__keras_tensor__", "config": spec}
        if isinstance(value, list):
            return [tensor(part) for part in value]
        if isinstance(value, dict) and set(value) == {"start", "stop", "step"}:
            return {"class_name": "__slice__", "config": value}
        return {k: tensor(v) for k, v in value.items()} if isinstance(value, dict) else value

    def call(node: Any) -> dict[str, Any]:
        one = isinstance(node, list) and len(node) == 1 and _is_reference(node[0])
        node = node[0] if one else node
        first = node
        while not _is_reference(first):
            first = next(iter(first.values() if isinstance(first, dict) else first))
        options = first[3] if len(first) > 3 else {}
        return {"args": [tensor(node)], "kwargs": {k: tensor(v) for k, v in options.items()}}

    return [
        {**part, "inbound_nodes": [call(node) for node in part["inbound_nodes"]]}
        if "inbound_nodes" in part
        else part
        for part in parts
    ]


def _function(config: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Return the operation of Keras 3 that computes a function of TensorFlow."""
    name, function = inner["name"], inner["function"]
    operation = _NAMES["functions"].get(function, "")
    module, _, kind = operation.partition(".")
    options: dict[str, Any] = {"name": name}
    nodes = []
    for node in config["inbound_nodes"]:
        args = list(node["args"])
        for key, value in node["kwargs"].items():
            if key in _NAMES["made_with"]:
                options[_NAMES["made_with"][key]] = value
            elif key in ("y", "slice_spec"):
                args.append(value)
            elif key != "name":
                operation = ""
        nodes.append({"args": args, "kwargs": {}})
    if not operation:
        raise UnsupportedLayerError(
            f"Layer '{name}' calls tf.{function} with arguments that are not known here. {REMEDY}"
        )
    return {
        "module": f"keras.src.ops.{module}",
        "class_name": kind,
        "config": options,
        "registered_name": kind,
        "name": config["name"],
        "inbound_nodes": nodes,
    }
