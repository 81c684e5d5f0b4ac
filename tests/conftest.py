"""Shared fixtures: the material beside the project, where it is there."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # JAX has no float64 otherwise
# Two processes share the cores, and models are tiny: threads of matrix products only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import gc
import sys
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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Save time where nearly every test traces new graphs and runs them once or twice."""
    # The modules that are loaded by now stay; a collection that visits them takes a second.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # TensorFlow optimises a graph for longer than these run. The group `whole` runs optimised ones.
    if "tensorflow" in sys.modules and "not whole" in session.config.option.markexpr:
        options = {"disable_meta_optimizer": True}
        sys.modules["tensorflow"].config.optimizer.set_experimental_options(options)
