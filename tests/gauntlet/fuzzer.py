"""A fuzzer of the public calls: it replaces one or two valid arguments with odd values.

`python tests/gauntlet/fuzzer.py --calls 2000 --seed 0` prints each call that ends in an error of
another library ("raw"), takes longer than a minute, or changes the data or the model passed to it.
"""

import argparse
import inspect
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnslicer_tf.errors import NNSlicerError

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script

from gauntlet.public_calls import Call, World, build_world, calls, odd_values

CALLABLES = ("of", "preprocess", "constraint", "reduce", "behaviour", "fitness", "selection")
"""Parameters that take functions: what such a function raises is the user's own error."""

SECONDS = 60
"""A call with data of this size that takes longer counts as hanging."""


class Hang(BaseException):
    """A call took longer than SECONDS."""


@dataclass(frozen=True)
class Fault:
    """What a call did that it must not do."""

    call: str
    replaced: tuple[tuple[str, str], ...]
    what: str
    where: str

    def __str__(self) -> str:
        changes = ", ".join(f"{name}={value}" for name, value in self.replaced)
        return f"{self.call}({changes}): {self.what} {self.where}"


def attempt(name: str, call: Call, replaced: Mapping[str, str], w: World) -> Fault | None:
    """Make a call with odd values; return what went wrong, or None."""
    odd = odd_values(w)
    arguments = {
        **call.arguments,
        **{parameter: odd[value] for parameter, value in replaced.items()},
    }
    weights = [np.array(v) for v in w.model.get_weights()]
    x, y = w.x.copy(), w.y.copy()

    def stop(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    what, where = "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.of(**arguments)
    except NNSlicerError as error:
        what = "" if str(error).strip() else "an error without a message"
    except Hang:
        what = f"took more than {SECONDS} s"
    except Exception as error:
        what = f"{type(error).__name__}: {str(error)[:120]!r}"
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "nnslicer_tf" in f.filename] or frames
        where = f"at {Path(own[-1].filename).name}:{own[-1].lineno}"
    finally:
        signal.alarm(0)
    same = all(np.array_equal(a, b) for a, b in zip(weights, w.model.get_weights(), strict=True))
    if not (same and np.array_equal(x, w.x) and np.array_equal(y, w.y)):
        what = what or "changed its data or its model"
        w.model.set_weights(weights)
        w.x[:], w.y[:] = x, y
    return Fault(name, tuple(replaced.items()), what, where) if what else None


def fuzz(count: int, seed: int, only: str = "") -> list[Fault]:
    """Make `count` random calls: one argument is replaced in three of four, two in the others."""
    rng = np.random.default_rng(seed)
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)  # odd but valid paths are written here
        try:
            world = build_world(Path(folder))
            table = {name: call for name, call in calls(world).items() if name.startswith(only)}
            odd = odd_values(world)
            names, values = list(table), list(odd)
            for _ in range(count):
                name = names[rng.integers(len(names))]
                call = table[name]
                parameters = sorted(
                    {*call.arguments, *inspect.signature(call.of).parameters}
                    - {"progress", "options", "k", "workers", "ray_address"}
                )
                chosen = rng.choice(
                    parameters, min(len(parameters), 1 + (rng.random() > 0.75)), False
                )
                replaced = {str(p): values[rng.integers(len(values))] for p in chosen}
                if any(p in CALLABLES and callable(odd[v]) for p, v in replaced.items()):
                    continue
                fault = attempt(name, call, replaced, world)
                if fault:
                    faults.append(fault)
        finally:
            os.chdir(before)
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="make only calls whose name starts with this")
    options = parser.parse_args()
    found = fuzz(options.calls, options.seed, options.only)
    for fault in sorted(map(str, found)):
        print(fault)
    print(f"{len(found)} of {options.calls} calls")
