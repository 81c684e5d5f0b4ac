"""Speed of slicing, each model in one run beside its forward pass and a naive reference.

    python benchmarks/bench_slicing.py --output data/results/benchmarks/slicing

Backward walks on one thread are measured in CPU time of that thread, which other processes
disturb least; so is the naive reference. The forward pass, θ = 0, `slice`, and what is said to be
on two threads are wall-clock times: they mean something only on a machine with idle cores.
ResNet-20 is read from the folder in DIFFCHASER_MODELS and left out if there is none.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import llvmlite.binding
import naive
import numpy as np
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf._kernels import sums
from nnslicer_tf._tables import text_table
from nnslicer_tf.engine.engines import ThreadEngine
from nnslicer_tf.instrument.loading import load_model
from nnslicer_tf.slicing._exclusion_walk import ExclusionWalk, walk
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._results import Sum

THETA = 0.3
THETAS = (0.05, 0.3, 0.7, 1.0)
PAPER_MS = {"lenet": 300.0, "resnet10": 3000.0, "resnet18": 40400.0}
TARGET_NS = {"lenet": 3.0, "resnet10": 1.5, "resnet20": 1.5, "resnet18": 1.5}
TARGET_RATIO = {"lenet": 15, "resnet10": 40, "resnet20": 40, "resnet18": 40}
SAMPLES = {"lenet": 128, "resnet10": 32, "resnet20": 24, "resnet18": 6}
PROFILE_SAMPLES = 256


def load(name: str) -> tuple[keras.Model, np.ndarray]:
    """Return a model and data to slice."""
    part = f"train[:{PROFILE_SAMPLES}]"
    if name == "resnet20":
        x = datasets.load("cifar10", part, normalise="standard").x
        return load_model(Path(os.environ["DIFFCHASER_MODELS"]) / "resnet.h5"), x
    return zoo.load(name), datasets.load("mnist" if name == "lenet" else "cifar10", part).x


def best(
    function: Callable[[], object],
    repeats: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the shortest time of a call, in seconds, after one call that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def recorded_sums(plan: Plan, captured: Mapping[str, np.ndarray]) -> list[tuple]:
    """Return the arguments of every call of the weighted sum's exclusion in one walk."""
    calls = []
    original = sums.weighted_sum

    def recording(*arguments, by_sum=False):
        if by_sum:
            raise AssertionError("no model of the benchmark has a mask")
        calls.append(arguments)
        return original(*arguments)

    with_rule(recording, lambda: walk(plan, captured, each=False))
    return calls


def count_values(calls: list[tuple]) -> int:
    """Return how many local values these calls form."""
    return sum(int(np.count_nonzero(signs)) * w.shape[2] for signs, _, _, w, *_ in calls)


def nanoseconds_by_theta(calls: list[tuple]) -> dict[str, float]:
    """Return the CPU time of these calls alone for each local value, at several θ.

    The neurons are those that a walk at θ = 0.3 expands; a walk at a larger θ expands others.
    """
    times = {}
    for theta in THETAS:

        def repeat(theta=theta):
            for signs, y, dx, weights, taps, _, each in calls:
                sums.weighted_sum(signs, y, dx, weights, taps, theta, each)

        times[theta] = best(repeat, clock=time.thread_time) * 1e9 / count_values(calls)
    figures = {f"exclusion ns per value, θ = {theta:g}": ns for theta, ns in times.items()}
    return figures | {"slowest θ / θ = 0.3": max(times.values()) / times[THETA]}


def two_threads(im: nns.InstrumentedModel, slicer: nns.Slicer, x: np.ndarray) -> dict[str, float]:
    """Return wall-clock ms a sample on one and on two threads, with a batch as the slicer's.

    The CPU time of both threads over that of one says what the speed-up can be at best, also
    on a machine that does other things.
    """
    plan = slicer.plan("predicted")
    samples = slicer._work_for(plan, Sum(np.int64)).batch_size
    batch = np.resize(x, (samples, *x.shape[1:]))
    captured = dict(im.capture(batch, of=plan.captured))
    job = ExclusionWalk(plan, Sum(np.int64))
    engine = ThreadEngine(2)

    def on_one():
        job(captured)

    def on_two():
        list(engine.map(job, [(0, captured)]))

    one, two = best(on_one) * 1e3 / samples, best(on_two) * 1e3 / samples
    cpu_of_one, cpu_of_two = (best(f, clock=time.process_time) for f in (on_one, on_two))
    return {
        "samples on threads": samples,
        "one thread, wall-clock ms": one,
        "two threads, wall-clock ms": two,
        "one thread / two": one / two,
        "one thread / two, at best": 2 * cpu_of_one / cpu_of_two,
    }


def with_rule(weighted_sum: Callable, function: Callable[[], object]) -> object:
    """Run `function` with another implementation of the weighted sum's exclusion."""
    original, sums.weighted_sum = sums.weighted_sum, weighted_sum
    try:
        return function()
    finally:
        sums.weighted_sum = original


def measure(name: str) -> dict[str, float]:
    """Return the figures of one model; times in ms for each sample."""
    model, x = load(name)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, batch_size=32, progress=False)
    batch = x[: SAMPLES[name]]
    n = len(batch)
    slicer = nns.Slicer(im, profile, THETA, workers=0, progress=False)
    plan = slicer.plan("predicted")
    captured = dict(im.capture(batch, of=plan.captured))
    one = {key: value[:1] for key, value in captured.items()}

    def backward(data, each=False):
        return best(lambda: walk(plan, data, each), clock=time.thread_time) * 1e3

    figures = {
        "samples": n,
        "forward ms": best(lambda: im.logits(batch)) * 1e3 / n,
        "single capture ms": best(lambda: im.forward(batch[:1], plan.captured)) * 1e3,
        "capture ms": best(lambda: im.forward(batch, plan.captured)) * 1e3 / n,
        "captured MB": sum(values.nbytes for values in captured.values()) / n / 1e6,
        "backward ms": backward(captured) / n,
        "backward each ms": backward(captured, each=True) / n,
        "single backward ms": backward(one),
        "slice ms": best(lambda: slicer.slice(batch)) * 1e3 / n,
    }
    calls = recorded_sums(plan, captured)
    figures["local values"] = count_values(calls) / n
    figures["backward / capture"] = figures["backward ms"] / figures["capture ms"]
    figures["ns per value"] = figures["backward ms"] * 1e6 / figures["local values"]
    figures |= nanoseconds_by_theta(calls)
    figures |= two_threads(im, slicer, x)

    def reference():
        return with_rule(naive.weighted_sum, lambda: walk(plan, captured, each=False))

    figures["naive ms"] = best(reference, 2, time.thread_time) * 1e3 / n
    ours, theirs = walk(plan, captured, each=False), reference()
    if any(not np.array_equal(ours.synapses[k], theirs.synapses[k]) for k in ours.synapses):
        raise SystemExit(f"{name}: the kernels and the naive reference disagree.")
    figures["naive / ours"] = figures["naive ms"] / figures["backward ms"]

    channel = nns.Slicer(im, profile, THETA, "channel", workers=0, progress=False)
    channel_plan = channel.plan("predicted")
    figures["channel ms"] = best(lambda: walk(channel_plan, captured, each=False)) * 1e3 / n
    figures["activation / channel"] = figures["backward ms"] / figures["channel ms"]

    dense = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    figures["θ=0 slice ms"] = best(lambda: dense.slice(batch)) * 1e3 / n
    figures["θ=0 slice / forward"] = figures["θ=0 slice ms"] / figures["forward ms"]
    figures["θ=0 each ms"] = best(lambda: dense.slice_each(batch, operations=())) * 1e3 / n
    figures["θ=0 each / forward"] = figures["θ=0 each ms"] / figures["forward ms"]

    def reduced():
        for _ in dense.iterate(batch, reduce=sums_by_channel):
            pass

    figures["θ=0 each, sums by channel ms"] = best(reduced) * 1e3 / n
    figures["θ=0 each, sums by channel / forward"] = (
        figures["θ=0 each, sums by channel ms"] / figures["forward ms"]
    )
    return figures


def sums_by_channel(synapses: Mapping) -> dict:
    """Reduce each sample's contributions to the sums of magnitudes by output channel."""
    return {
        name: keras.ops.sum(keras.ops.abs(values), axis=tuple(range(1, len(values.shape) - 1)))
        for name, values in synapses.items()
    }


FIRST_CALL = """
import time
from nnslicer_tf._kernels import compile_all
start = time.thread_time()
compile_all()
print(time.thread_time() - start)
"""


DEMO = """
import subprocess, sys, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    command = [sys.executable, "-c", "from nnslicer_tf.cli import main; main()", "demo"]
    subprocess.run([*command, "--output", folder], check=True, capture_output=True)
    print(time.perf_counter() - start)
"""

FIRST_SLICE = """
import time
import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
x = datasets.load("digits", "train").x
im = nns.InstrumentedModel(zoo.load("digits_cnn"))
profile = nns.Profile.from_data(im, x, progress=False)
start = time.perf_counter()
nns.Slicer(im, profile, workers=0, progress=False).slice(x[:1])
print(time.perf_counter() - start)
"""


def first_times() -> dict[str, float]:
    """Return what the first call costs, on a machine and in a process, in seconds."""

    def printed(code: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NUMBA_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    figures = {}
    for what, code in (
        ("first calls of all kernels {}, CPU s", FIRST_CALL),
        ("first slice {}, after the profile, s", FIRST_SLICE),
        ("nnslicer demo, first {}, s", DEMO),
    ):
        with tempfile.TemporaryDirectory() as cache:
            figures[what.format("on a machine")] = printed(code)
            figures[what.format("of a process")] = printed(code)
    return figures


def memory_bandwidth() -> dict[str, float]:
    """Return what it takes to move a local value, 4 bytes, through memory, in nanoseconds."""
    source = np.ones(1 << 26, np.float32)  # 256 MB: no cache holds it
    target = np.empty_like(source)
    copied = best(lambda: np.copyto(target, source), clock=time.thread_time)
    return {"4 bytes read from memory and written to it, ns": copied * 1e9 / len(source)}


MEMORY = """
import sys
sys.path.insert(0, {folder!r})
from bench_slicing import load
from memory import peak_mb
import nnslicer_tf as nns
model, x = load({model!r})
im = nns.InstrumentedModel(model)
profile = nns.Profile.from_data(im, x, batch_size=32, progress=False)
slicer = nns.Slicer(im, profile, 0.3, workers=0, progress=False)
def stream():
    for i in range({samples}):
        yield x[i % len(x)]
slicer.slice(stream())
print(peak_mb())
"""


def peak_memory(model: str, samples: int) -> float:
    """Return the peak memory in MB of a process that slices that many samples."""
    code = MEMORY.format(folder=str(Path(__file__).parent), model=model, samples=samples)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def worker_scaling(samples: tuple[int, int] = (64, 448), turns: int = 3) -> dict[str, float]:
    """Return ms for each further sample with one and with two Ray workers (ResNet10).

    One and two workers take turns, and each one's best turn counts: what else the machine
    does would otherwise decide.
    """
    model, x = load("resnet10")
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, batch_size=32, progress=False)
    few, many = (np.resize(x, (n, *x.shape[1:])) for n in samples)

    def seconds(workers: int, data: np.ndarray) -> float:
        slicer = nns.Slicer(im, profile, THETA, workers=workers, progress=False)
        start = time.perf_counter()
        slicer.slice(data)
        return time.perf_counter() - start

    best_of = {}
    for _ in range(turns):
        for key in ((workers, size) for workers in (1, 2) for size in (0, 1)):
            best_of[key] = min(seconds(key[0], (few, many)[key[1]]), best_of.get(key, np.inf))
    further = samples[1] - samples[0]
    figures = {
        f"{workers} worker ms": (best_of[workers, 1] - best_of[workers, 0]) * 1e3 / further
        for workers in (1, 2)
    }
    figures["two workers / one"] = figures["1 worker ms"] / figures["2 worker ms"]
    return figures


def report(title: str, results: dict[str, dict[str, float]], other: dict[str, float]) -> str:
    """Return the tables as Markdown."""
    titles = ("", *results)
    keys = list(next(iter(results.values()), ()))
    rows = [(key, *(f"{figures[key]:,.4g}" for figures in results.values())) for key in keys]
    rows.append(("paper, Table 3 ms", *(f"{PAPER_MS.get(n, float('nan')):,.0f}" for n in results)))
    rows.append(("target ns per value", *(f"{TARGET_NS[n]:g}" for n in results)))
    rows.append(("target naive / ours", *(f"{TARGET_RATIO[n]:g}" for n in results)))
    tables = [text_table(titles, rows), ""] if results else []
    lines = [
        f"# {title}",
        "",
        f"`python benchmarks/bench_slicing.py {' '.join(sys.argv[1:])}`, {date.today()}, "
        f"{os.cpu_count()} cores ({llvmlite.binding.get_host_cpu_name()}), "
        f"Python {platform.python_version()}, Keras {keras.__version__} "
        f"on {keras.backend.backend()}, θ = {THETA}, seed 0, load average "
        f"{os.getloadavg()[0]:.1f} at the end. Times are for each sample; those of backward walks "
        "on one thread and of the naive reference are CPU time.",
        "",
        "```",
        *tables,
        text_table(("", "figure"), [(key, f"{value:,.4g}") for key, value in other.items()]),
        "```",
    ]
    return "\n".join(lines) + "\n"


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = (
        "lenet,resnet10,resnet20,resnet18"
    ),
    memory: Annotated[
        str, typer.Option(help="Only compare peak memory: a model and numbers of samples.")
    ] = "",
    workers: Annotated[bool, typer.Option(help="Compare one and two Ray workers.")] = False,
    output: Annotated[Path | None, typer.Option(help="Path without ending: .json, .md.")] = None,
) -> None:
    """Measure, print a table, write JSON and Markdown."""
    if output is not None:
        check_writable(output.with_suffix(".json"))
    if memory:
        model, *numbers = memory.split(",")
        other = {f"{model}, peak MB, {n} samples": peak_memory(model, int(n)) for n in numbers}
        write(report("Peak memory of slicing", {}, other), {"other": other}, output)
        return
    published = "DIFFCHASER_MODELS" in os.environ
    names = [n for n in models.split(",") if n != "resnet20" or published]
    results = {name: measure(name) for name in names}
    other = first_times() | memory_bandwidth()
    if workers:
        other |= worker_scaling()
    write(report("Speed of slicing", results, other), {"models": results, "other": other}, output)


def write(text: str, figures: dict, output: Path | None) -> None:
    """Print a report and write it to files."""
    print(text)
    if output is None:
        return
    with atomic_path(output.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(figures, indent=1))
    with atomic_path(output.with_suffix(".md")) as temporary:
        temporary.write_text(text)


if __name__ == "__main__":
    typer.run(main)
