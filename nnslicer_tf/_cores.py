"""Number of cores that this process may use."""

import os


def available_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    Where the system cannot tell (macOS, Windows), it is the number of cores of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
