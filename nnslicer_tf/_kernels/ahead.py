"""Compiling the kernels of slices in other processes, while this one does other things.

It takes some seconds, once on a machine: as long as loading a model and profiling it.
"""

import os
import subprocess
import sys
from pathlib import Path

from nnslicer_tf._kernels import (  # noqa: F401 - defined when imported
    pointwise,
    pools,
    products,
    rows,
    sums,
)
from nnslicer_tf._kernels.compiled import COMPILING, KERNELS

_LONGEST = sums._weighted_sum
PARTS = {"sums": [_LONGEST], "others": [k for k in KERNELS if k is not _LONGEST]}
_PACKAGE = Path(__file__).parents[1]


def compile_ahead() -> None:
    """Start processes that compile the kernels of slices, unless they are on disk.

    One compiles the exclusion of weighted sums, which takes longest, another all other kernels.
    A kernel that is called meanwhile waits for them. If they fail, kernels are compiled where
    they are called, as without them.
    """
    if COMPILING or all(kernel.ready or kernel.on_disk for kernel in KERNELS):
        return
    path = [str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    for part in PARTS:
        COMPILING.append(
            subprocess.Popen(
                [sys.executable, "-m", "nnslicer_tf._kernels.ahead", part],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )


def compile_part(part: str) -> None:
    """Compile some kernels of slices, or load them from disk.

    Args:
        part: Name of a part of them, one of `PARTS`.
    """
    for kernel in PARTS[part]:
        kernel.compile()


if __name__ == "__main__":
    compile_part(sys.argv[1])
