"""Two runs with different work in one new folder: each is right, or refused.

`python tests/engine/shared_folder.py` runs 1,000 pairs of threads and 200 pairs of processes, for
each kind of store in turn, and prints how they ended. Each run is then repeated alone in the
folder.

On two busy cores, 2026-11-28: 1,000 pairs of threads (227 s) gave 2,359 right results and 1,641
refusals (ProfileMismatchError), 200 pairs of processes (31 s) 483 and 317; none was wrong, and none
ended in another error. With the stores of an earlier version, 24 of 720 of threads were wrong.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import deepbase, dflare, exactline
from nnslicer_tf.errors import ProfileMismatchError

SIDES = (0, 1)
"""The two runs of a pair, which differ in data, or in one option."""


def network(seed=0):
    """Return a model with weights of its own: the seed of Keras is that of all threads."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(12, "relu"), layers.Dense(3)])
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(0, 0.5, w.shape) for w in model.get_weights()])
    return model


@cache
def subject():
    """(instrumented model, profile, samples of the two runs); a lock, since models are shared."""
    im = nns.InstrumentedModel(network())
    x = np.random.default_rng(0).normal(size=(2, 60, 6)).astype(np.float32)
    return im, nns.Profile.from_data(im, x[0], progress=False), x


def slicer(theta):
    im, profile, _ = subject()
    return nns.Slicer(im, profile, theta, workers=0, progress=False)


def rows_of_data(side, folder):
    return slicer(0.3).slice_each(subject()[2][side], folder=folder).to_array()


def rows_of_theta(side, folder):
    return slicer((0.1, 0.5)[side]).slice_each(subject()[2][0], folder=folder).to_array()


def rows_at_zero(side, folder):
    return slicer(0.0).slice_each(subject()[2][side], folder=folder).to_array()


def sums(side, folder):
    total = slicer(0.3).slice(subject()[2][side], outputs="predicted", checkpoint=folder)
    return total.to_vector()


def sums_of_criteria(side, folder):
    return slicer(0.3).slice(subject()[2][0], outputs=[side], checkpoint=folder).to_vector()


def decisive(side, folder):
    return slicer(0.3).decisive(subject()[2][side][:3], others=0, folder=folder).contributions[0]


def searches(side, folder, save=lambda found: None):
    """Searches for deviations, from other seeds; `save` is called with what they find."""

    def answers(shift, x):
        p = 1 / (1 + np.exp(-4 * (x[:, :1] - shift)))
        return np.concatenate([1 - p, p], axis=1)

    seeds = np.round(np.random.default_rng(side).uniform(-1, 1, (6, 2)), 3)
    pair = dflare.ModelPair(partial(answers, 0.1), partial(answers, 0.0))
    search = dflare.DFlare(max_queries=30)
    found = dflare.find_deviations(
        pair, seeds, search=search, checkpoint=folder, progress=False, rng=0
    )
    save(found)
    return np.concatenate([found.queries, found.seeds.ravel()])


def planes(side, folder):
    corners = np.zeros((4, 6))
    corners[[1, 2], 0] = corners[[2, 3], 1] = 1 + side
    plane = exactline.exact_plane(subject()[0], corners, checkpoint=folder)
    return np.concatenate([np.sort(plane.areas), plane.integrate().ravel()])


def behaviours(side, folder):
    """A cache, whose keys cover all that an array depends on: both are always right."""
    im, _, x = subject()
    first = next(operation.name for operation in im.operations if operation.kernels)
    try:
        bright = {"first": x[side][:, 0]}
        plain, cached = (
            deepbase.inspect(im, x[side], bright, units=first, cache=cache, progress=False)
            for cache in (None, folder)
        )
        assert plain.equals(cached)
    except ProfileMismatchError as error:  # nothing differs
        raise AssertionError from error
    return np.zeros(1)


KINDS = {
    kind.__name__: kind
    for kind in (
        rows_of_data,
        rows_of_theta,
        rows_at_zero,
        sums,
        sums_of_criteria,
        decisive,
        searches,
        planes,
        behaviours,
    )
}


@cache
def expected(kind, side):
    """What a run gives by itself."""
    with tempfile.TemporaryDirectory() as folder:
        return KINDS[kind](side, Path(folder) / "new")


def ending(kind, side, folder):
    """Run one side; return "right", "refused" or "WRONG", or the error."""
    try:
        result = KINDS[kind](side, folder)
    except ProfileMismatchError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    is_right = np.shape(result) == np.shape(expected(kind, side)) and np.allclose(
        result, expected(kind, side), rtol=1e-5, atol=1e-6
    )
    return "right" if is_right else "WRONG"


def kind_of(number):
    """Return the kind of a pair: all in turn."""
    return list(KINDS)[number % len(KINDS)]


def pair_of_threads(kind, folder):
    """Return how the two runs ended; then each is run alone once more in the same folder."""
    for side in SIDES:
        expected(kind, side)
    start, ends = threading.Barrier(2), ["", ""]

    def run(side):
        start.wait()
        ends[side] = ending(kind, side, folder)

    threads = [threading.Thread(target=run, args=(side,)) for side in SIDES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*ends, *(ending(kind, side, folder) for side in SIDES)]


def serve(side):
    """Run this side of the pairs whose kind and folder are read, each at the time that is read."""
    for line in sys.stdin:
        kind, at, folder = line.rstrip("\n").split(" ", 2)
        expected(kind, side)
        print("ready", flush=True)
        go = Path(f"{folder}.go")
        while not go.exists():
            time.sleep(0.0005)
        time.sleep(max(0.0, float(go.stat().st_mtime) + float(at) - time.time()))
        print(ending(kind, side, Path(folder)), flush=True)


class Processes:
    """Two processes, which run the two sides of pairs."""

    def __init__(self):
        command = [sys.executable, __file__, "--serve"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._runs = [
            subprocess.Popen(
                [*command, str(side)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            for side in SIDES
        ]

    def pair(self, kind, folder):
        """Return how the two runs ended, and how each then ended alone."""
        self._tell(kind, folder)
        ends = [run.stdout.readline().strip() for run in self._runs]
        return [*ends, *(ending(kind, side, folder) for side in SIDES)]

    def _tell(self, kind, folder):
        for run in self._runs:
            print(f"{kind} 0.01 {folder}", file=run.stdin, flush=True)
        for run in self._runs:
            assert run.stdout.readline() == "ready\n"
        Path(f"{folder}.go").touch()

    def close(self):
        for run in self._runs:
            run.stdin.close()
            run.wait()
            run.stdout.close()


def trial(pairs, run):
    """Return the endings of numbered pairs, counted, by kind."""
    counts = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as root:
        for number in range(pairs):
            kind = kind_of(number)
            counts[kind].update(run(kind, Path(root) / f"pair{number}"))
    return counts


def main():
    if "--serve" in sys.argv:
        serve(int(sys.argv[-1]))
        return
    processes = Processes()
    for what, pairs, run in (
        ("threads", 1000, pair_of_threads),
        ("processes", 200, processes.pair),
    ):
        begin = time.monotonic()
        counts = trial(pairs, run)
        print(f"{pairs:,} pairs of {what}, and each run alone afterwards:")
        for kind, ends in counts.items():
            print(f"  {kind}: {', '.join(f'{n} {end}' for end, n in sorted(ends.items()))}")
        print(f"  {time.monotonic() - begin:.0f} s", flush=True)
    processes.close()


if __name__ == "__main__":
    main()
