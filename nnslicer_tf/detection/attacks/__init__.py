"""The 17 attacks of the NNSlicer paper's Table 4, under its names, for Keras models.

Thirteen come from Foolbox; JSMA, ADef, SinglePixel and LocalSearch are not in Foolbox 3
and are implemented here as Foolbox attacks, one per file (`jsma`, `adef`, `single_pixel`,
`local_search`). Importing this package does not import Foolbox; calling an entry of
`ATTACKS` does.

Adding an attack: subclass Foolbox's `Attack`, or `ArrayAttack` with one method
`perturb(query, x, labels)`, and add a line to `ATTACKS`; or pass an `AttackSpec` of your own
to `generate`.
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
