"""The 17 attacks of the NNSlicer paper's Table 4, by its names, and their use on Keras models.

Thirteen are Foolbox's own; JSMA, ADef, SinglePixel and LocalSearch are not in Foolbox 3
and are written here as Foolbox attacks, one in a file (`jsma`, `adef`, `single_pixel`,
`local_search`). Importing this package does not import Foolbox, calling an entry of
`ATTACKS` does.

Adding an attack: subclass Foolbox's `Attack`, or `ArrayAttack` with one method
`perturb(query, x, labels)`, and add a line to `ATTACKS`; or give `generate` an `AttackSpec`
of your own.
"""

from typing import Any

import lazy_loader

from nnslicer_tf._extras import require

# Lazy, since the base class of attacks is Foolbox's. `__init__.pyi` has the names.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in ("ArrayAttack", "Query"):
        require("foolbox", f"{name} belongs to attacks of")
    return _load(name)
