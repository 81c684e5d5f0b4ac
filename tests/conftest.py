"""Shared fixtures: the material beside the project, where it is there."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # JAX has no float64 otherwise

from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest

# Nothing is timed in the tests: the first example of one may wait for an import.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Tests that run something whole: they take a third of the time, and `pytest` alone leaves them out.
WHOLE = (
    "reproduction/*/*.py",
    "gauntlet/test_gauntlet.py",
    "report/explorer/test_browser_*.py",
    "slicing/test_ray.py",
    "instrument/test_applications.py",
    "cli/test_processes.py",
    "test_notebooks.py",
)

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real models and data sets; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with real models and data sets is not here")
    return SHARED


@pytest.fixture(scope="session")
def shared_data(shared) -> Path:
    """`shared`, with TFDS pointed at its prepared data sets."""
    os.environ.setdefault("TFDS_DATA_DIR", str(shared / "tfds"))
    return shared


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `WHOLE`."""
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        if any(fnmatch(path, pattern) for pattern in WHOLE):
            item.add_marker(pytest.mark.whole)
