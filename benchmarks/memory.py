"""Peak memory of a process."""

from pathlib import Path


def peak_mb(process: str = "self") -> float:
    """Return the most memory in MB that a process has held (Linux); 0 if it has ended.

    Not `ru_maxrss`, in which a new process begins with the peak of its parent.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (ProcessLookupError, FileNotFoundError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
