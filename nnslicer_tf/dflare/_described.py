"""Stable descriptions of options, by which a later run recognises them.

`repr` is not enough: by default it contains a memory address, and it abbreviates large arrays.
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
    """Return a text that is equal for equal options in all processes; `inside` detects cycles."""
    if id(value) in inside:
        return "..."
    inside = (*inside, id(value))

    def listed(values: Iterable[Any]) -> str:
        return ", ".join(described(part, inside) for part in values)

    name = getattr(value, "__qualname__", type(value).__qualname__)
    match value:
        case np.ndarray():
            return f"array({value.shape}, {value.dtype}, {digest([value])})"
        case keras.Model():
            return f"model({model_fingerprint(value)})"
        case Mapping():
            return f"{{{listed(part for pair in value.items() for part in pair)}}}"
        case list() | tuple():
            return f"({listed(value)})"
        case set() | frozenset():
            return f"{{{', '.join(sorted(described(part, inside) for part in value))}}}"
        case FunctionType():
            held = [cell.cell_contents for cell in value.__closure__ or ()]
            parts = (value.__code__, value.__defaults__, value.__kwdefaults__, held)
            return f"{name}({listed(parts)})"
        case CodeType():
            return f"{name}({listed((digest([value.co_code]), value.co_consts, value.co_names))})"
        case MethodType():
            return f"{name}({listed((value.__func__, value.__self__))})"
        case partial():
            return f"{name}({listed((value.func, value.args, value.keywords))})"
    if hasattr(value, "__dict__") and not isinstance(value, type):
        options = (f"{key}={described(v, inside)}" for key, v in sorted(vars(value).items()))
        return f"{name}({', '.join(options)})"
    return repr(value)
