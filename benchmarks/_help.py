"""Make a benchmark's `--help` fast: import this before anything that loads TensorFlow.

If help is requested, stand-ins replace those modules, since the command line needs none of them.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

_SLOW = ("keras", "keras_hub", "llvmlite", "numba", "tensorflow")
_REAL = ("_checks", "_environment", "_faces", "_files", "_numerics", "_tables", "errors")
_REAL += ("rows", "settings", "tables")  # of `reproduction`


class _StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for every slow module, and for those of ours that use one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top in ("nnslicer_tf", "reproduction"):
            is_slow = rest.partition(".")[0] not in ("", *_REAL)
        else:
            is_slow = top in _SLOW
        return ModuleSpec(name, self, is_package=True) if is_slow else None

    def create_module(self, spec: ModuleSpec) -> MagicMock:  # type: ignore[override]
        return MagicMock(name=spec.name, __path__=[])

    def exec_module(self, module: ModuleType) -> None:
        pass


if "--help" in sys.argv[1:]:
    sys.meta_path.insert(0, _StandIns())
