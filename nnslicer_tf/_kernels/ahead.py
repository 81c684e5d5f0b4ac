"""Compiling the kernels of slices in another process, while this one does other things.

It takes some seconds, once on a machine: as long as loading a model and profiling it.
"""

import os
import subprocess
import sys
from pathlib import Path

from nnslicer_tf._kernels import pointwise, pools, rows, sums  # noqa: F401
from nnslicer_tf._kernels.compiled import COMPILING, KERNELS

_PACKAGE = Path(__file__).parents[1]


def compile_ahead() -> None:
    """Start a process that compiles the kernels of slices, unless they are on disk.

    A kernel that is called meanwhile waits for it. If the process fails, kernels are compiled
    where they are called, as without it.
    """
    if COMPILING or all(kernel.ready or kernel.on_disk for kernel in KERNELS):
        return
    path = [str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    COMPILING.append(
        subprocess.Popen(
            [sys.executable, "-m", "nnslicer_tf._kernels.ahead"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    )


def compile_now() -> None:
    """Compile the kernels of slices, or load them from disk."""
    for kernel in KERNELS:
        kernel.compile()


if __name__ == "__main__":
    compile_now()
