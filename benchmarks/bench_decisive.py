"""Decisive slices of many images: one thread, threads, Ray workers, two nodes; and a model of more.

    python benchmarks/bench_decisive.py

LeNet-5 on MNIST's test images, default settings. The slices of every way are compared with those of
one thread: equal members and certificates, or the benchmark stops. Seconds are of one call, with
the start of Ray, whose workers each import TensorFlow and compile; the two nodes are two Ray nodes
of one core each on this machine. `--all N` then searches for the slices of N images with a folder,
from which it resumes.

The model: what starts once, and the CPU time of a slice, divided by the cores. It counts no waiting
for each other, which searches do not do: each has its sample and seed.
"""

import os
import time
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import numpy as np
import pandas as pd
import typer
from timing import DATA

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from reproduction.tables import provenance, write_table

_STORE = 150 << 20  # bytes of each node's object store
_IMAGES = 10_000  # of the model


def check_equal(found: nns.slicing.DecisiveSlices, alone: nns.slicing.DecisiveSlices) -> None:
    """Raise AssertionError unless two results have equal slices and certificates."""
    for one, other in zip(found.members, alone.members, strict=True):
        np.testing.assert_array_equal(one, other)
    for name, column in alone.certificate.items():
        np.testing.assert_array_equal(found.certificate[name], column, name)


def main(
    samples: Annotated[int, typer.Option(help="Images of each way.", min=2)] = 200,
    every: Annotated[int, typer.Option("--all", help="Images of a run with a folder.")] = 0,
    folder: Annotated[Path, typer.Option(help="That run's folder.")] = Path("runs/decisive-all"),
    output: Annotated[Path, typer.Option(help="Path without ending.")] = (
        DATA / "results/benchmarks/decisive"
    ),
) -> None:
    """Measure, and write a table."""
    from ray.cluster_utils import Cluster

    im = nns.InstrumentedModel(zoo.load("lenet5"))
    profile = nns.Profile.from_data(im, datasets.load("mnist", "train[:5000]").x, progress=False)
    x = datasets.load("mnist", "test").x[: max(samples, every)]
    nns.Slicer(im, profile, progress=False).decisive(x[:2])  # compiles
    rows, alone = [], None
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": _STORE}
    )
    cluster.add_node(num_cpus=1, object_store_memory=_STORE)
    nodes = {"workers": 2, "ray_address": cluster.address}
    ways = {"one thread": {"workers": 0}, "threads": {"workers": None}, "two nodes": nodes}
    for way, options in (ways | {f"Ray, {n}": {"workers": n} for n in (2, 4)}).items():
        if way == "Ray, 2":
            cluster.shutdown()
        slicer = nns.Slicer(im, profile, progress=False, **options)
        start, cpu = time.perf_counter(), time.process_time()
        found = slicer.decisive(x[:samples])
        taken, cpu = time.perf_counter() - start, time.process_time() - cpu
        alone = alone or found
        check_equal(found, alone)
        ratio = taken / (rows[0]["seconds"] if rows else taken)
        rows.append({"way": way, "images": samples, "seconds": taken, "ratio": ratio})
        if way in ("one thread", "threads"):
            rows[-1]["CPU ms an image"] = 1000 * cpu / samples
        print(rows[-1], flush=True)
    if every:
        slicer = nns.Slicer(im, profile)
        start, cpu = time.perf_counter(), time.process_time()
        found = slicer.decisive(x[:every], folder=folder)
        rows.append({"way": "threads, folder", "images": every})
        rows[-1] |= {"seconds": time.perf_counter() - start}
        rows[-1]["CPU ms an image"] = 1000 * (time.process_time() - cpu) / every
        print(rows[-1], found)
    # By the model: Ray's start, as two workers' time less a half of one thread's; and the slices.
    by_way = {row["way"]: row for row in rows}
    each = by_way["one thread"]["seconds"] / samples
    begin = max(0.0, by_way["Ray, 2"]["seconds"] - by_way["one thread"]["seconds"] / 2)
    for cores in (2, 4, 64):
        modelled = {"way": f"{cores} cores, by the model", "images": _IMAGES}
        rows.append(modelled | {"seconds": begin + _IMAGES * each / cores})
    text = " ".join(" ".join(__doc__.split("\n\n")[-2:]).split())
    head = provenance(model="lenet5 on mnist, test images", seed=0)
    write_table(output, "Decisive slices of many images", pd.DataFrame(rows), head, text)


if __name__ == "__main__":
    typer.run(main)
