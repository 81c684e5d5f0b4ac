"""Modules that are imported on first use, so that workers do not import Keras."""

import importlib
from typing import Any


class LazyModule:
    """A stand-in for a module that is imported when one of its attributes is first used.

    Args:
        name: Full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
