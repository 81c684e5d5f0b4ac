"""What slices cost where the backend computes, beside a forward pass, in one run.

    KERAS_BACKEND=torch python benchmarks/bench_devices.py --output data/results/benchmarks/devices

Forward passes, slices at θ = 0 and decisive slices are computed on a GPU if the backend has one,
the exclusion at θ > 0 by compiled kernels on all cores. Figures are wall-clock milliseconds for
each sample: they need an idle machine.
Each row comes from a process of its own, so that its peaks of memory are its own.
"""

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import numpy as np
import typer
from memory import peak_mb
from timing import median_seconds

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._environment import available_cores
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf._tables import cell_text, text_table
from reproduction.tables import device_name

THETA = 0.3
DECIDED = 16  # samples whose decisive slices are searched


def gpu_peak_mb() -> float:
    """Return the most memory in MB that the backend has held on a GPU; NaN without one."""
    if device_name() == "CPU":
        return float("nan")
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    if backend == "jax":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 2**20
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20


def measure(name: str, samples: int, runs: int, data: Path | None) -> dict[str, float | str]:
    """Return the figures of a model for batches of some samples."""
    dataset = "mnist" if name.startswith("lenet") else "cifar10"
    if data is None:
        x = datasets.load(dataset, "train[:256]").x
    else:
        x = datasets.load_data(data / f"{dataset}.npz").x
    im = nns.InstrumentedModel(zoo.load(name))
    profile = nns.Profile.from_data(im, x, batch_size=32, progress=False)
    batch = np.resize(x, (samples, *x.shape[1:]))

    zero, exclusion = (nns.Slicer(im, profile, theta, progress=False) for theta in (0, THETA))
    work = {
        "forward": (samples, lambda: im.predict(batch, samples)),
        "θ = 0": (samples, lambda: zero.slice(batch)),
        f"θ = {THETA}": (samples, lambda: exclusion.slice(batch)),
        "decisive": (DECIDED, lambda: zero.decisive(x[:DECIDED], others=1)),
    }
    row: dict[str, float | str] = {"model": name, "samples": samples}
    for what, (count, function) in work.items():
        row[what] = median_seconds(function, runs)[0] * 1e3 / count
        print(f"{name}, {samples} samples: {what}, {row[what]:.3g} ms", file=sys.stderr)
    return row | {"GPU MB": gpu_peak_mb(), "process MB": peak_mb()}


def main(
    models: Annotated[str, typer.Option(help="Names.")] = "lenet5,resnet10,resnet18",
    batches: Annotated[str, typer.Option(help="Numbers of samples in a batch.")] = "16,64,256",
    runs: Annotated[int, typer.Option(help="How often each is timed.")] = 5,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of mnist.npz and cifar10.npz, to be read instead of TFDS."),
    ] = None,
    row: Annotated[bool, typer.Option(help="Print one row as JSON.", hidden=True)] = False,
    output: Annotated[Path | None, typer.Option(help="The table, a .md file.")] = None,
) -> None:
    """Measure, and print a table."""
    if output is not None:
        check_writable(output)
    if row:
        print(json.dumps(measure(models, int(batches), runs, data)))
        return
    rows = []
    for model in models.split(","):
        for samples in batches.split(","):
            chosen = ["--models", model, "--batches", samples]
            command = [sys.executable, __file__, "--row", *chosen, "--runs", runs]
            command += ["--data", data] if data else []
            done = subprocess.run(
                list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
    table = text_table(list(rows[0]), [[cell_text(v) for v in row.values()] for row in rows])
    text = (
        "# Slicing on a device\n\n"
        f"`python benchmarks/bench_devices.py {' '.join(sys.argv[1:])}`, {date.today()}, "
        f"Keras {keras.__version__} on {keras.backend.backend()}, {device_name()}, "
        f"{available_cores()} cores; load average {os.getloadavg()[0]:.1f} at the "
        "end. Milliseconds per sample, medians.\n\n"
        f"```\n{table}\n```\n"
    )
    print(text)
    if output is not None:
        with atomic_path(output) as temporary:
            temporary.write_text(text)


if __name__ == "__main__":
    typer.run(main)
