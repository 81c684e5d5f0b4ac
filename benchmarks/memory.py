"""Peak memory of this process."""

from pathlib import Path


def peak_mb() -> float:
    """Return the most memory in MB that this process has held (Linux).

    Not `ru_maxrss`, in which a new process begins with the peak of its parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no line VmHWM.")
