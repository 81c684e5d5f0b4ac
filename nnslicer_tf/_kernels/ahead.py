"""Compilation of the slicing kernels in other processes, while this one does other things.

It takes a few seconds, once per machine: as long as loading and profiling a model.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from nnslicer_tf._kernels import (  # noqa: F401 - defined when imported
    pointwise,
    pools,
    products,
    rows,
    sums,
)
from nnslicer_tf._kernels.compiled import COMPILING, KERNELS

_LONGEST = [sums._weighted_sum]
_PRODUCTS = [products._product_sum, products._softmax]
PARTS = {
    "sums": _LONGEST,
    "products": _PRODUCTS,
    "others": [k for k in KERNELS if k not in _LONGEST + _PRODUCTS],
}
USUAL = ("sums", "others")
"""Parts that nearly every network needs; "products" is only needed for attention."""

_PACKAGE = Path(__file__).parents[1]
_started: set[str] = set()


def compile_ahead(parts: Iterable[str] = USUAL) -> None:
    """Start a process for each of these `PARTS` that compiles its kernels, unless they are on disk.

    Kernels called in the meantime wait; if a process fails, they are compiled when called.
    """
    path = [str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    for part in parts:
        if part in _started or all(kernel.ready or kernel.on_disk for kernel in PARTS[part]):
            continue
        _started.add(part)
        COMPILING.append(
            subprocess.Popen(
                [sys.executable, "-m", "nnslicer_tf._kernels.ahead", part],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )


if __name__ == "__main__":
    for _kernel in PARTS[sys.argv[1]]:
        _kernel.compile()
