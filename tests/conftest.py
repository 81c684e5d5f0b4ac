"""Shared fixtures: the material beside the project, where it is there."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # JAX has no float64 otherwise
# Two processes share the cores, and models are tiny: threads of matrix products only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import gc
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest

from support import schedule

# Nothing is timed in the tests: the first example of one may wait for an import.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def compiled_walks() -> None:
    """Walks at θ = 0 are tested as they are for many samples, with few of them."""
    from nnslicer_tf.slicing import slicer

    slicer.FEW_PRODUCTS = 0


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
    """Mark what `schedule` names as `whole` or `slow`."""
    one_in = {test: n for n, tests in schedule.SAMPLED.items() for test in tests}
    cases: Counter[str] = Counter()
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        name = f"{path}::{item.name}"
        test = name.partition("[")[0]
        if {test, name} & {*schedule.WHOLE_TESTS} or any(fnmatch(path, p) for p in schedule.WHOLE):
            item.add_marker(pytest.mark.whole)
        is_left_out = cases[test] % one_in.get(test, 1) and name not in schedule.ALWAYS
        if name.startswith(schedule.SLOW) or is_left_out:
            item.add_marker(pytest.mark.slow)
        cases[test] += 1


def pytest_collection_finish() -> None:
    """Collect garbage less often: visiting the loaded modules, which stay, takes a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
