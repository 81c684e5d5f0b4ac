"""Imports on first use, so that the package costs nothing and workers need no Keras."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["LazyModule", "lazy_exports"]


class LazyModule:
    """Stands for a module that is imported when something of it is used.

    Args:
        name: Full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy_exports(
    package: str, modules: Mapping[str, tuple[str, ...]], subpackages: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package (PEP 562).

    Args:
        package: The package's `__name__`.
        modules: Full name of a module → the names that the package exports from it.
        subpackages: Names of subpackages that become attributes on first use.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> object:
        if name in home:
            return getattr(importlib.import_module(home[name]), name)
        if name in subpackages:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__, lambda: sorted((*home, *subpackages))
