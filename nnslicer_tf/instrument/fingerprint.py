"""Fingerprints of models, which are equal if the architecture and the weights are."""

import dis
import hashlib
import importlib.util
import inspect
import json
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from numbers import Number
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, TypeVar

import keras
import numpy as np

from nnslicer_tf._files import digest

# Entries of a config that may differ between two builds of the same model.
_INCIDENTAL = ("name", "trainable", "build_config", "compile_config", "registered_name")

# Their code is known by their version.
_LIBRARIES = "jax", "keras", "nnslicer_tf", "numpy", "tensorflow", "torch"
_PLAIN = Number, str, bytes, np.ndarray, np.generic, NoneType, range, slice

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
    architecture = json.dumps(
        parts,
        sort_keys=True,
        default=lambda value: described(value) if _is_plain(value) else type(value).__name__,
    )
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


def model_identity(model: keras.Model) -> str:
    """Return what a stored result of a model depends on: its fingerprint, and its own code."""
    return f"{model_fingerprint(model)} {own_code(model)}".strip()


def own_code(model: keras.Model) -> str:
    """Return the version of Python's bytecode, and a hash of own layers' and functions' code.

    With what they call, and the attributes, closures and globals that they read, as far as these
    are values and functions. "" if there are none. It is apart from the fingerprint, as only codes
    of one version can be compared. The source is not read: it may have been edited since.
    """
    known: dict[tuple[int, int], tuple] = {}
    found = []
    for place, part in enumerate(model._flatten_layers()):
        own = {"call": type(part).call}
        if not isinstance(part, keras.Model):  # of which these are compiled functions
            own |= {n: v for n, v in vars(part).items() if not hasattr(type(part), n)}
        found += [(place, described(own[n], known, part)) for n in sorted(own) if _is_own(own[n])]
    if not found:
        return ""
    version = f"{importlib.util.MAGIC_NUMBER.hex()}02"  # 02: of this way to describe code
    return f"{version} {hashlib.sha256(repr(found).encode()).hexdigest()}"


def same_model(known: str, now: str) -> bool:
    """Whether two instrumented models' `identity` agree; codes, if of one version of Python."""
    before, after = known.split(), now.split()
    return before[:2] == after[:2] and (before[2:3] != after[2:3] or before == after)


def described(
    value: Any, known: dict[tuple[int, int], tuple] | None = None, owner: Any = None
) -> str:
    """Return a text that is equal for equal values and functions in all processes, unlike `repr`.

    `known` are functions and objects that were described before. `owner` is an object that has a
    function as a method: attributes that the function reads count.
    """
    known = {} if known is None else known

    def listed(values: Iterable[Any]) -> str:
        return ", ".join(described(part, known) for part in values)

    match value:
        case np.ndarray():
            return f"array({value.shape}, {value.dtype}, {digest([value])})"
        case keras.Model():
            return f"model({model_identity(value)})"
        case keras.Layer() | keras.KerasTensor():
            return type(value).__name__
        case ModuleType() | type():
            return value.__name__
        case Mapping():
            return f"{{{listed(part for pair in value.items() for part in pair)}}}"
        case list() | tuple():
            return f"({listed(value)})"
        case set() | frozenset():
            return f"{{{', '.join(sorted(described(part, known) for part in value))}}}"
        case CodeType():
            return f"code({listed((value.co_code, value.co_names, value.co_consts))})"
        case MethodType():
            return described(value.__func__, known, value.__self__)
        case partial():
            return f"partial({listed((value.func, value.args, value.keywords))})"
    if keras.ops.is_tensor(value) or isinstance(value, keras.Variable):
        with suppress(Exception):  # symbolic ones, which have no values, differ by backend
            return described(keras.ops.convert_to_numpy(value))
        return "tensor"
    if not isinstance(value, FunctionType):  # such as a `tf.function`
        value = inspect.unwrap(value)
    key = id(value), id(owner)
    if key in known:
        return f"#{known[key][0]}"
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, FunctionType):
        known[key] = len(known), value, owner
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [value.__defaults__, value.__kwdefaults__, cells]
        if not _is_own(value):
            return f"{value.__module__}.{name}({listed(parts)})"
        code, doc = value.__code__, value.__doc__
        constants = tuple(c for c in code.co_consts if doc is None or c != doc)
        texts = [listed([*parts, code.replace(co_consts=constants)])]
        for holder, read, held in _read_by(value, owner):
            texts.append(f"{read}={described(held, known, holder)}")
        return f"({', '.join(texts)})"
    if hasattr(value, "__dict__"):
        known[key] = len(known), value, owner
        options = [f"{n}={described(v, known)}" for n, v in sorted(vars(value).items())]
        if _is_own(value):
            options.append(described(type(value).__call__, known, value))
        return f"{name}({', '.join(options)})"
    return name if " at 0x" in repr(value) else repr(value)


def _read_by(function: FunctionType, owner: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what a function reads: holder, name, and a value or own function.

    They are read of its globals and its owner, and of the objects, classes and modules among these.
    """
    names, attributes = map(sorted, _names_read(function.__code__))
    holders = [None, *([] if owner is None else [owner])]
    for holder in holders:  # which grow
        spaces: list[Mapping[str, Any]] = [function.__globals__]
        if holder is not None:
            classes = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__
            spaces = [getattr(holder, "__dict__", {}), *map(vars, classes)]
        wanted = names if holder is None else attributes
        for read, held in ((n, space[n]) for space in spaces for n in wanted if n in space):
            if isinstance(held, (classmethod, staticmethod, property)):
                held = getattr(held, "fget", None) or getattr(held, "__func__", held)
            if isinstance(held, Mapping):
                held = {k: v for k, v in held.items() if _is_plain(k) and _is_plain(v)}
            if _is_own(held) or _is_plain(held):
                yield holder, read, held
            elif _has_settings(held) and not any(held is one for one in holders):
                holders.append(held)


def _is_own(value: Any) -> bool:
    """Whether a value is a user's function, or an object that is called like one."""
    if isinstance(value, (type, keras.Layer)) or not callable(value):
        return False
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] not in _LIBRARIES


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a text or an array, or consists of them."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN) or keras.ops.is_tensor(value)


def _has_settings(value: Any) -> bool:
    """Whether a value is an object, class or module of the user's, whose attributes may be read."""
    if isinstance(value, ModuleType):
        installed = "site-packages" in (getattr(value, "__file__", None) or "site-packages")
        return not installed and value.__name__.partition(".")[0] not in sys.stdlib_module_names
    module = getattr(value, "__module__", None) or type(value).__module__
    return not isinstance(value, keras.Layer) and module.partition(".")[0] not in _LIBRARIES


def _names_read(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the globals and the attributes that code reads, without attributes that it sets."""
    names, read, written = set(), set(), {*_INCIDENTAL}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            read.add(step.argval)
        elif step.opname == "STORE_ATTR":
            written.add(step.argval)
    for inner in (c for c in code.co_consts if isinstance(c, CodeType)):
        more = _names_read(inner)
        names |= more[0]
        read |= more[1]
    return names, read - written


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
