"""Fingerprints of models, which are equal if the architecture and the weights are."""

import hashlib
import importlib.util
import inspect
import json
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import CodeType, FunctionType
from typing import Any, TypeVar

import keras
import numpy as np

# Entries of a config that may differ between two builds of the same model.
_INCIDENTAL = ("name", "trainable", "build_config", "compile_config", "registered_name")

T = TypeVar("T")

_fixed: ContextVar[dict[Any, Any] | None] = ContextVar("fixed models", default=None)


@contextmanager
def fixed_models() -> Iterator[None]:
    """Within it no model changes: each is hashed once, in place of by every function called."""
    token = _fixed.set({} if (known := _fixed.get()) is None else known)
    try:
        yield
    finally:
        _fixed.reset(token)


def _once(function: Callable[[keras.Model], T]) -> Callable[[keras.Model], T]:
    @wraps(function)
    def run(model: keras.Model) -> T:
        known = _fixed.get()
        if known is None:
            return function(model)
        key = function, id(model)
        if key not in known:
            known[key] = function(model), model  # which keeps its id meanwhile
        return known[key][0]

    return run


@_once
def model_fingerprint(model: keras.Model) -> str:
    """Return the SHA-256 of a model's architecture and weights, 64 hexadecimal digits.

    Names are left out, because Keras numbers them: models built twice, or saved and loaded, agree.
    For a subclassed model without a config, its layers' classes stand for the architecture.
    """
    with warnings.catch_warnings():
        # Nothing is saved, so Keras need not warn that a lambda is hard to load.
        warnings.filterwarnings("ignore", message=".*includes a `lambda`")
        parts = _architecture(model)
    architecture = json.dumps(parts, sort_keys=True, default=lambda value: type(value).__name__)
    known = hashlib.sha256(architecture.encode())
    for weight in model.weights:
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        known.update(f"{value.shape}{value.dtype}".encode())
        known.update(value.tobytes())
    return known.hexdigest()


@_once
def weights_checksum(model: keras.Model) -> tuple[int, ...]:
    """Return the CRC-32 of each weight: a cheap check whether a model has changed."""
    arrays = (np.ascontiguousarray(keras.ops.convert_to_numpy(w)) for w in model.weights)
    return tuple(zlib.crc32(array.view(np.uint8).data) for array in arrays)


def own_code(model: keras.Model) -> str:
    """Return the version of Python's bytecode, and a hash of the user's own layers' code.

    "" if there are no such layers. It is apart from the fingerprint, as only codes of one version
    can be compared. The source is not read: its file may have been edited since it was loaded.
    """
    calls = [type(layer).call for layer in model._flatten_layers()]
    libraries = "keras.", "nnslicer_tf."
    own = [inspect.unwrap(c) for c in calls if not (c.__module__ or "").startswith(libraries)]
    own = [c for c in own if inspect.isfunction(c)]  # other callables have no code of their own
    if not own:
        return ""
    text = repr([_compiled(c.__code__, c.__doc__) for c in own])
    return f"{importlib.util.MAGIC_NUMBER.hex()} {hashlib.sha256(text.encode()).hexdigest()}"


def _compiled(code: CodeType, doc: str | None = None) -> tuple:
    constants: list[Any] = []
    for value in code.co_consts:
        if isinstance(value, CodeType):
            constants.append(_compiled(value))
        elif isinstance(value, frozenset):  # its order differs between processes
            constants.append(sorted(map(repr, value)))
        elif doc is None or value != doc:
            constants.append(value)
    return code.co_code, code.co_names, constants


def _architecture(layer: keras.layers.Layer) -> Any:
    try:
        config = layer.get_config()
    except (NotImplementedError, AttributeError, KeyError, TypeError, ValueError):
        config = {}  # a user's layer has none, or a wrong one
    if not isinstance(layer, keras.Model):
        found = [type(layer).__name__, _without_names(config, {})]
        functions = [
            _behaviour(value)
            for part in layer._flatten_layers(include_self=True, recursive=True)
            for name, value in sorted(vars(part).items())
            if isinstance(value, FunctionType)
            and not (value.__module__ or "").startswith("keras.")
            and not hasattr(type(part), name)  # a method that Keras has wrapped, such as `build`
        ]
        return [*found, *filter(None, functions)]
    # Layers are identified by their position, so that the wiring does not depend on names.
    parts = [part for part in config.get("layers", []) if isinstance(part, dict)]
    positions = {part.get("name", ""): position for position, part in enumerate(parts)}
    wiring = [_without_names(part.get("inbound_nodes", []), positions) for part in parts]
    found = [type(layer).__name__, [_architecture(inner) for inner in layer.layers], wiring]
    names = {inner.name for inner in layer.layers}
    operations = [
        [positions[part["name"]], part["class_name"], _without_names(part.get("config"), {})]
        for part in parts
        if "name" in part and part["name"] not in names  # `x + y` or `keras.ops.relu(x)`
    ]
    return [*found, operations] if operations else found


def _behaviour(function: Callable) -> list[float]:
    """Return what a function computes, rounded; empty if Keras's of the same name does the same."""
    x = np.linspace(-3.3, 3.7, 12, dtype=np.float32)[None]

    def values(of: Any) -> list[float]:
        try:
            result = keras.ops.convert_to_numpy(of(keras.ops.convert_to_tensor(x)))
            return np.round(result.astype(np.float64), 3).ravel().tolist()
        except Exception:  # whatever a user's function raises, such as for its number of arguments
            return []

    own = values(function)
    return [] if own == values(getattr(keras.activations, function.__name__, None)) else own


def _without_names(value: Any, positions: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_names(item, positions)
            for key, item in value.items()
            if key not in _INCIDENTAL
        }
    if isinstance(value, (list, tuple)):
        return [_without_names(item, positions) for item in value]
    if isinstance(value, str):
        return positions.get(value, value)
    return value
