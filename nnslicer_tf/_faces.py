"""The public names of the packages, loaded on first use; errors name the argument at fault.

Public calls accept arrays, tensors, tables and lists alike, so they cannot reject an argument by
its type before they try to use it. If a call fails with an error from Python or another library,
its arguments are checked against its annotations, and a new error names the first that does not
fit. An error that no argument explains is raised unchanged.
"""

import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any, Union, get_args, get_origin

import lazy_loader

from nnslicer_tf.errors import InvalidArgumentError, NNSlicerError

_EXPLAINED: set[type] = set()


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package with a stub `__init__.pyi`."""
    load, names, public = lazy_loader.attach_stub(package, file)

    def load_explained(name: str) -> Any:
        value = explained(load(name), package)
        if name in public:
            vars(sys.modules[package])[name] = value
        return value

    return load_explained, names, public


def explain_all(face: dict[str, Any]) -> None:
    """Explain the errors of a package whose public names are not loaded lazily."""
    for name in face["__all__"]:
        face[name] = explained(face[name], face["__name__"])


def explained(value: Any, package: str) -> Any:
    """Return a public function or class, wrapped so that its errors are explained."""
    if isinstance(value, types.FunctionType):
        wrapper = _explained_function(value)
        own = ".".join(value.__module__.split(".")[:2])
        is_there = value.__name__ in getattr(sys.modules.get(own), "__all__", ())
        wrapper.__module__ = own if is_there else package  # where pickle finds it
        return wrapper
    if isinstance(value, type) and value not in _EXPLAINED:
        _EXPLAINED.add(value)
        own_classes = [one for one in value.__mro__ if one.__module__.startswith("nnslicer_tf.")]
        for owner, name in [(one, name) for one in own_classes for name in vars(one)]:
            member = vars(owner)[name]
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            if isinstance(member, types.FunctionType):
                setattr(owner, name, _explained_function(member))
            elif isinstance(member, (classmethod, staticmethod)):
                setattr(owner, name, type(member)(_explained_function(member.__func__)))
    return value


def _explained_function(function: Any) -> Any:
    if hasattr(function, "explains"):
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_as_python, args))
        kwargs = {name: _as_python(value) for name, value in kwargs.items()}
        try:
            result = function(*args, **kwargs)
        except NNSlicerError:
            raise
        except Exception as error:
            wrong = _wrong_argument(function, args, kwargs)
            if not wrong:
                raise
            raise InvalidArgumentError(wrong) from error
        if type(result).__module__.startswith("nnslicer_tf."):  # its methods are public, too
            explained(type(result), "")
        return result

    wrapper.explains = True  # type: ignore[attr-defined]
    return wrapper


def _as_python(value: Any) -> Any:
    """Return a number of NumPy as one of Python, which does not overflow."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value


def _wrong_argument(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> str:
    """Return an error message for the first argument of the wrong type; "" if there is none."""
    try:
        signature = inspect.signature(function)
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:  # wrong number or names of arguments: Python's message says so
        return ""
    for name, value in arguments.items():
        hint = _hint(function, name)
        if value is not signature.parameters[name].default and not _fits(value, hint):
            return f"{name} must be {_text(hint)}. Received: {_short(value)}"
    return ""


def _hint(function: Any, name: str) -> Any:
    """Return a parameter's annotation; Any if it is missing or cannot be resolved."""
    hint = inspect.get_annotations(function).get(name, Any)
    if isinstance(hint, str):
        # A class imported only for type checkers is loaded by now if a user has an instance.
        loaded = [module for name, module in sys.modules.items() if name.startswith("nnslicer_tf.")]
        known = {name: value for module in loaded for name, value in vars(module).items()}
        try:
            hint = eval(hint, {**known, **function.__globals__})
        except NameError:
            return Any
    return hint


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value may match an annotation; True if the annotation is too vague to tell.

    A str is not a sequence here: a call that takes one as a sequence of names does not fail on it.
    """
    import numpy as np

    from nnslicer_tf._checks import ArrayLike, is_int

    if hint is ArrayLike or hint is np.ndarray:
        return _is_array_like(value)
    hint = getattr(hint, "__value__", hint)  # of a type alias
    origin: Any = get_origin(hint) or hint
    inner = get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is int:
        return is_int(value) and abs(value) < 1 << 63  # no index is larger
    if origin is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    is_vague = origin in (Any, object) or getattr(origin, "_is_protocol", False)
    if is_vague or not isinstance(origin, type):
        return True
    if origin in (Sequence, Iterable) and isinstance(value, np.ndarray):
        value = value[:100].tolist() if value.ndim else value.item()
    if not isinstance(value, origin) or (isinstance(value, str) and origin is not str):
        return False
    if not inner or not isinstance(value, Iterable):
        return True
    if isinstance(value, Mapping):
        return all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if origin is tuple and inner[-1] is not Ellipsis:
        values = list(value)
        return len(values) == len(inner) and all(map(_fits, values, inner))
    return all(_fits(one, inner[0]) for one in islice(value, 100))


def _is_array_like(value: Any) -> bool:
    """Whether NumPy turns a value into an array of numbers or bools with at least one axis."""
    import numpy as np

    if isinstance(value, (str, bytes, Mapping, type, types.ModuleType)) or callable(value):
        return False
    try:
        array = np.asarray(value)
        return array.ndim > 0 and array.dtype.kind in "biuf"
    except Exception:  # ragged, or an object's own conversion fails
        return False


def _text(hint: Any) -> str:
    """Return an annotation as the documentation writes it."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_text, get_args(hint)))
    from nnslicer_tf._checks import with_article

    if hint is None or hint is type(None):
        return "None"
    plain = {"float": "number", "ndarray": "array", "ArrayLike": "an array", "PathLike": "path"}
    plain["DataLike"] = "samples (DataLike)"
    if "[" in str(hint):
        return inspect.formatannotation(hint).replace("collections.abc.", "")
    name = getattr(hint, "__name__", str(hint))
    return with_article(plain.get(name, name)) if isinstance(hint, type) else plain.get(name, name)


def _short(value: Any) -> str:
    try:
        return textwrap.shorten(repr(value), 200, placeholder=" …")
    except Exception:  # an object that cannot print itself
        return f"an object of type {type(value).__name__}"
