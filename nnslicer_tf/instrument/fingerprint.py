"""Fingerprints of models, which are equal if the architecture and the weights are."""

import dis
import hashlib
import importlib.util
import inspect
import json
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from functools import cache, cached_property, partial, wraps
from numbers import Number
from pickle import PicklingError
from typing import Any, TypeVar

import keras
import numpy as np

from nnslicer_tf._files import digest

# Entries of a config that may differ between two builds of the same model.
_INCIDENTAL = ("name", "trainable", "build_config", "compile_config", "registered_name")

# Packages whose objects may change when they are used, and those whose code their version tells.
_CHANGING = "itertools", "jax", "keras", "numpy", "random", "tensorflow", "torch"
_LIBRARIES = (*_CHANGING, "nnslicer_tf")
_STANDARD = sys.stdlib_module_names - {"builtins"}  # the module of code that `exec` ran

# How code reads an attribute, and methods that change a container.
_LOADS = "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"
_CHANGES = "add", "append", "extend", "insert", "pop", "setdefault", "update"

_PLAIN = Number, str, bytes, np.generic, types.NoneType, range, slice, Enum

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

    With what they call, the attributes, closures and globals that they read, as far as these are
    values, objects and functions, and the layers that they have. "" if there are none. It is apart
    from the fingerprint, as only codes of one version can be compared. The source is not read: it
    may have been edited since.
    """
    known: dict[tuple[int, int], tuple] = {}
    found = []
    for place, part in enumerate(model._flatten_layers()):
        own = {"call": type(part).call}
        if not isinstance(part, keras.Model):  # of which these are compiled functions
            own |= {n: v for n, v in vars(part).items() if not hasattr(type(part), n)}
        found += [(place, described(own[n], known, part)) for n in sorted(own) if _is_own(own[n])]
        if _is_own(own["call"]):  # its configuration need not say which layers it has
            inner = part._flatten_layers(include_self=False, recursive=False)
            found += [(place, described(_architecture(layer), known)) for layer in inner]
    if not found:
        return ""
    version = f"{importlib.util.MAGIC_NUMBER.hex()}03"  # 03: of this way to describe code
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
        case np.ndarray() if value.dtype.hasobject:
            return f"array({value.shape}, {listed(value.flat)})"
        case np.ndarray():
            return f"array({value.shape}, {value.dtype}, {digest([value])})"
        case keras.Model():
            return f"model({model_identity(value)})"
        case keras.Layer() | keras.KerasTensor():
            return type(value).__name__
        case types.ModuleType() | type():
            return value.__name__
        case Enum():
            return f"{value!s}={described(value.value, known)}"
        case Mapping():
            return f"{{{listed(part for pair in value.items() for part in pair)}}}"
        case list() | tuple():
            return f"({listed(value)})"
        case set() | frozenset():
            return f"{{{', '.join(sorted(described(part, known) for part in value))}}}"
        case types.CodeType():
            return f"code({listed((value.co_code, value.co_names, value.co_consts))})"
        case types.MethodType():
            return described(value.__func__, known, value.__self__)
        case partial():
            return f"partial({listed((value.func, value.args, value.keywords))})"
    if keras.ops.is_tensor(value) or isinstance(value, keras.Variable):
        with suppress(Exception):  # symbolic ones, which have no values, differ by backend
            return described(keras.ops.convert_to_numpy(value))
        return "tensor"
    if isinstance(value, _PLAIN):
        return repr(value)
    if not isinstance(value, types.FunctionType):  # such as a `tf.function`
        value = inspect.unwrap(value)
    key = id(value), id(owner)
    if key in known:
        return f"#{known[key][0]}"
    known[key] = len(known), value, owner
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, types.FunctionType):
        if not _is_own(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            parts = listed([value.__defaults__, value.__kwdefaults__, cells])
            return f"{value.__module__}.{name}({parts})"
        code, doc = value.__code__, value.__doc__
        constants = tuple(c for c in code.co_consts if doc is None or c != doc)
        texts = [listed([code.replace(co_consts=constants)])]
        for holder, read, held in _read_by(value, owner):
            texts.append(f"{read}={described(held, known, holder)}")
        return f"({', '.join(texts)})"
    if _is_own(value) and isinstance(called := type(value).__call__, types.FunctionType):
        return f"{name}({described(called, known, value)})"
    if isinstance(value, Iterator):  # it changes when it is used
        return name
    if _package(value) in _CHANGING:
        config = value.get_config() if hasattr(value, "get_config") else {}
        return f"{name}({listed([_without_names(config, {})])})"
    try:
        state = value.__reduce_ex__(2)[1:]  # what pickle would keep
    except (NotImplementedError, PicklingError, TypeError):  # such as of a lock
        return name
    return f"{name}({listed(list(p) if isinstance(p, Iterator) else p for p in state)})"


def _read_by(function: types.FunctionType, owner: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what a function reads: its holder, its name, and a value, a function or an object.

    They are read of its closure, its globals and its owner, and by name of the objects, classes
    and modules among these. An object of which nothing is read by name, such as one that is passed
    on, counts with all that it has.
    """
    names, *_ = _names_read(function.__code__)
    attributes = sorted(_attributes_read(function))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    bound = dict(zip(function.__code__.co_freevars, cells, strict=True))
    bound |= {"()": function.__defaults__, "(*)": function.__kwdefaults__}
    holders = [None, *([] if owner is None else [owner])]
    for holder in holders:  # which grow
        spaces = [bound, function.__globals__] if holder is None else _spaces(holder)
        wanted = [*bound, *sorted(names)] if holder is None else attributes
        read = [(n, _unbound(space[n], holder)) for space in spaces for n in wanted if n in space]
        for name, part in ((name, part) for name, held in read for part in _parts(held)):
            if _is_function(part) or _is_plain(part):
                yield (owner if holder is None else holder), name, part
            if _has_settings(part) and not any(part is one for one in holders):
                holders.append(part)
        named = holder is None or holder is owner or isinstance(holder, (types.ModuleType, type))
        if not (read or named):
            yield None, "", holder


def _spaces(holder: Any) -> list[Mapping[str, Any]]:
    """Return the attributes of an object, class or module, and of its classes, to read by name.

    There are none of an object whose class is installed, such as a table of pandas.
    """
    if isinstance(holder, types.ModuleType):
        return [vars(holder)]
    of_object: Mapping[str, Any] = {}
    classes = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__
    if not isinstance(holder, type):
        installed = _is_installed(holder) and _package(holder) not in _LIBRARIES
        if installed and not isinstance(holder, keras.Layer):
            return []
        of_object = getattr(holder, "__dict__", {})
    return [of_object, *(vars(one) for one in classes if not _is_library(one))]


def _unbound(held: Any, holder: Any) -> Any:
    """Return the function or, of a slot, the value behind an attribute of a class."""
    match held:
        case types.MemberDescriptorType() if not isinstance(holder, type):
            return getattr(holder, held.__name__, None)
        case classmethod() | staticmethod():
            return held.__func__
        case property():
            return held.fget
        case cached_property():
            return held.func
    return held


def _parts(held: Any) -> list[Any]:
    """Return a value alone, or, of a container of functions or objects, what it has."""
    if isinstance(held, Mapping) and not _is_plain(held):
        held = [part for pair in held.items() for part in pair]
    if isinstance(held, (list, tuple)) and not _is_plain(held):
        return [part for one in held for part in _parts(one)]
    return [held]


def _package(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0]
    return (getattr(value, "__module__", None) or type(value).__module__).partition(".")[0]


def _is_library(value: Any) -> bool:
    return _package(value) in _LIBRARIES or _package(value) in _STANDARD


def _is_installed(value: Any) -> bool:
    file = getattr(sys.modules.get(_package(value)), "__file__", None)
    return "site-packages" in (file or "")


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, keras.Layer))


def _is_own(value: Any) -> bool:
    """Whether a value is a user's function, or an object that is called like one."""
    library = _is_library(value) if inspect.isroutine(value) else _package(value) in _LIBRARIES
    return _is_function(value) and not library


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a text or an array, or consists of them."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject or all(map(_is_plain, value.flat))
    return isinstance(value, _PLAIN) or keras.ops.is_tensor(value)


def _has_settings(value: Any) -> bool:
    """Whether a value is an object, or a class or module of the user's, that may have settings."""
    if isinstance(value, types.ModuleType):
        return not (_is_library(value) or _is_installed(value))
    if isinstance(value, type):
        return not _is_library(value)
    return not (_is_plain(value) or inspect.isroutine(value) or isinstance(value, keras.Layer))


def _attributes_read(function: types.FunctionType) -> set[str]:
    """Return the attributes that a function and those it calls read, without those they change."""
    reached = [function]
    read, changed = set[str](), {*_INCIDENTAL}
    for one in reached:  # which grow
        names, attributes, changes = _names_read(one.__code__)
        read, changed = read | attributes, changed | changes
        called = [one.__globals__.get(name) for name in sorted(names)]
        own = [c for c in called if isinstance(c, types.FunctionType) and _is_own(c)]
        reached += [c for c in own if c not in reached]
    return read - changed


@cache
def _names_read(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the globals and the attributes that code reads, and the attributes that it changes."""
    names, read, changed = set(), set(), set()
    steps = [*dis.get_instructions(code)]
    for place, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(step.argval)
        elif step.opname in _LOADS:
            read.add(step.argval)
            if step.argval in _CHANGES and steps[place - 1].opname in _LOADS:
                changed.add(steps[place - 1].argval)  # self.seen.append(…)
        elif step.opname == "STORE_ATTR":
            changed.add(step.argval)
        elif step.opname == "STORE_SUBSCR" and steps[place - 2].opname in _LOADS:
            changed.add(steps[place - 2].argval)  # self.seen[key] = …
    for inner in (c for c in code.co_consts if isinstance(c, types.CodeType)):
        more = _names_read(inner)
        names, read, changed = names | more[0], read | more[1], changed | more[2]
    return frozenset(names), frozenset(read), frozenset(changed)


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
            if isinstance(value, types.FunctionType)
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
        if value.get("class_name") == "DTypePolicy" and "mixed" in value["config"]["name"]:
            return value["config"]["name"]  # its weights are those of another policy
        kept = {key: item for key, item in value.items() if key not in _INCIDENTAL}
        return {key: _without_names(item, positions) for key, item in kept.items()}
    if isinstance(value, (list, tuple)):
        return [_without_names(item, positions) for item in value]
    return positions.get(value, value) if isinstance(value, str) else value
