"""Slices of 1 to 1,000 samples: one thread, threads, Ray workers, two nodes (NNSlicer, section 7).

    python benchmarks/bench_workers.py

ResNet10 on CIFAR-10, θ = 0.3, one slice for each sample. Seconds are those of the second of two
calls, with the start of Ray and its workers; the two nodes are two Ray nodes of one core each on
this machine, joined before. `ratio` is to one thread in the same run. Every result is compared
with that of one thread: equal integers, or the benchmark stops.
"""

import os
import time
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import pandas as pd
import typer
from timing import DATA

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from reproduction.tables import provenance, write_table

_STORE = 150 << 20  # bytes of each node's object store


def seconds(slicer: nns.Slicer, x: object) -> tuple[float, object]:
    """Return the time of the second call, and its result."""
    for _ in range(2):
        start = time.perf_counter()
        result = slicer.slice_each(x)
        taken = time.perf_counter() - start
    return taken, result.matrix


def main(
    samples: Annotated[str, typer.Option(help="Numbers of samples, by commas.")] = "1,10,100,1000",
    output: Annotated[Path, typer.Option(help="Path without ending.")] = (
        DATA / "results/benchmarks/workers"
    ),
) -> None:
    """Measure, and write a table."""
    from ray.cluster_utils import Cluster

    counts = [int(count) for count in samples.split(",")]
    x = datasets.load("cifar10", f"train[:{max(counts)}]").x
    im = nns.InstrumentedModel(zoo.load("resnet10"))
    profile = nns.Profile.from_data(im, x[:500], progress=False)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": _STORE}
    )
    cluster.add_node(num_cpus=1, object_store_memory=_STORE)
    nodes = {"workers": 2, "ray_address": cluster.address}
    ways = {"one thread": {"workers": 0}, "threads": {"workers": None}, "two nodes": nodes}
    ways |= {f"Ray, {count}": {"workers": count} for count in (1, 2, 4)}
    rows, first = [], {}
    for way, options in ways.items():
        if way == "Ray, 1":
            cluster.shutdown()
        slicer = nns.Slicer(im, profile, 0.3, progress=False, **options)
        for count in counts:
            taken, matrix = seconds(slicer, x[:count])
            alone, expected = first.setdefault(count, (taken, matrix))
            if (expected != matrix).nnz:
                raise AssertionError(f"{way}, {count} samples: other integers")
            row = {"way": way, "samples": count, "seconds": taken, "ratio": taken / alone}
            rows.append(row | {"ms a sample": 1000 * taken / count})
            print(rows[-1], flush=True)
    head = provenance(model="resnet10 on CIFAR-10", theta=0.3)
    text = " ".join(__doc__.split("\n\n")[-1].split())
    write_table(output, "Slices by threads, Ray workers and nodes", pd.DataFrame(rows), head, text)


if __name__ == "__main__":
    typer.run(main)
