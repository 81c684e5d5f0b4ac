"""The 17 attacks of the NNSlicer paper's Table 4, under its names, for Keras models.

Thirteen come from Foolbox, which is imported when an entry of `ATTACKS` is called; JSMA, ADef,
SinglePixel and LocalSearch are implemented here as Foolbox attacks.

To add an attack, subclass Foolbox's `Attack`, or `ArrayAttack` with one method `perturb(query, x,
labels)`, and add a line to `ATTACKS` or pass an `AttackSpec` to `generate`.
"""

from typing import Any

import lazy_loader

from nnslicer_tf._environment import require

# Lazy, since the base class of attacks is Foolbox's. `__init__.pyi` has the names.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "ArrayAttack":
        require("foolbox", f"{name} belongs to attacks of")
    return _load(name)
