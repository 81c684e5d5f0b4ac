"""What packages of nnslicer_tf import from each other past their faces, the names in `__all__`."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "nnslicer_tf"  # of the checkout, which has the page
README = ROOT / "README.md"
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}


@cache
def face(package: str) -> frozenset[str]:
    """Return the public names of a package."""
    return frozenset(getattr(importlib.import_module(f"nnslicer_tf.{package}"), "__all__", ()))


def past_the_faces() -> Iterator[tuple[str, str, str, str]]:
    """Yield imports of what is not public: package, module, name, and who imports it."""
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            first, *inner = node.module.removeprefix("nnslicer_tf.").split(".")
            if not node.module.startswith("nnslicer_tf.") or first in (own, "_kernels"):
                continue
            if first not in PACKAGES:
                continue
            for alias in node.names:
                if alias.name not in face(first):
                    yield (
                        first,
                        ".".join(inner),
                        alias.name,
                        f"{path.relative_to(ROOT)}:{node.lineno}",
                    )


def shared_names() -> set[tuple[str, str, str]]:
    """Return the names that the README lists: package, module, name."""
    found, package = set(), ""
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            package = line[3:]
        elif line.startswith("- "):
            head, _, names = line[2:].partition(": ")
            module = "" if head.startswith("modules") else head.strip("`")
            found |= {(package, module, name) for name in re.findall(r"`(\w+)`", names or head)}
    return found
