"""Number of cores that this process may use."""

import os


def available_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    On systems that do not report this (macOS, Windows), it is the machine's number of cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
