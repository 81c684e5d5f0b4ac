"""Stable descriptions of options, so that a later run can recognise them.

A `repr` does not suffice: the default one contains the object's address in memory, that of a large
array omits most of it, and that of a subclass may omit what it adds.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import keras
import numpy as np

from nnslicer_tf._files import digest
from nnslicer_tf.instrument.fingerprint import model_fingerprint


def described(value: Any, inside: tuple[int, ...] = ()) -> str:
    """Return text that is equal for equal options, in this process and in a later one.

    An object is described by its class and its variables, a function by its name, its code and the
    values that it holds.

    Args:
        value: Numbers, text, arrays, functions, models, containers and objects of these.
        inside: Ids of the objects being described, which may refer to one another.
    """
    if id(value) in inside:
        return "..."
    inside = (*inside, id(value))
    if isinstance(value, np.ndarray):
        return f"array({value.shape}, {value.dtype}, {digest([value])})"
    if isinstance(value, keras.Model):
        return f"model({model_fingerprint(value)})"
    if isinstance(value, Mapping):
        return f"{{{_listed((k for pair in value.items() for k in pair), inside)}}}"
    if isinstance(value, (list, tuple)):
        return f"({_listed(value, inside)})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(described(part, inside) for part in value))}}}"
    parts = _parts(value)
    if parts is not None:
        return f"{_name(value)}({_listed(parts, inside)})"
    if hasattr(value, "__dict__") and not isinstance(value, type):
        options = (f"{name}={described(v, inside)}" for name, v in sorted(vars(value).items()))
        return f"{_name(value)}({', '.join(options)})"
    return repr(value)


def _parts(value: Any) -> Iterable[Any] | None:
    """Return the parts of a function, or None for anything else."""
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return value.__code__, value.__defaults__, value.__kwdefaults__, held
    if isinstance(value, CodeType):
        return digest([value.co_code]), value.co_consts, value.co_names
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    return None


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def _listed(values: Iterable[Any], inside: tuple[int, ...]) -> str:
    return ", ".join(described(value, inside) for value in values)
