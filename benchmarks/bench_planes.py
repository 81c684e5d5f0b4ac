"""Time exact planes: ACAS Xu, LeNet-5 through three digits, ResNet-20 and its boundary.

    python benchmarks/bench_planes.py --acas <folder> --resnet <folder>/resnet.h5

ACAS Xu: the rectangles of (ρ, θ) of SyReNN's script `experiments/acas_planes.py` (Sotoudeh and
Thakur, TACAS 2021), for its eight scenarios and the first network, and for the head-on ones all
networks. LeNet-5 and ResNet-20: triangles of three test images, and smaller ones with the same
first corner, to see how the cost grows. Times are of one run after a first one that compiles, on
the wall clock and on the processor, of all threads: on a machine that others use, the second is
what the work costs. The load of the machine is written down with them.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import _help  # noqa: F401
import keras
import numpy as np
import pandas as pd
import typer
from timing import DATA

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import TooManyRegionsError
from nnslicer_tf.exactline import PlaneWalker, acas
from reproduction.exactline.advice_maps import SCENARIOS, scenario
from reproduction.exactline.boundaries import follow
from reproduction.tables import provenance, write_table

Row = dict[str, object]


def main(
    acas_folder: Annotated[Path | None, typer.Option("--acas", help="Folder of .nnet.")] = None,
    resnet: Annotated[Path | None, typer.Option(help="ResNet-20 for CIFAR-10 (.h5).")] = None,
    boundary_regions: Annotated[
        int, typer.Option(help="ResNet-20's boundary: regions to visit at most; 0 leaves it out.")
    ] = 20_000,
    quick: Annotated[bool, typer.Option(help="Small planes.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Time planes and write the table."""
    folder = results or DATA / "results" / "exactline"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "planes_speed.csv"
    rows: list[Row] = []
    for row in _rows(acas_folder, resnet, boundary_regions, quick):
        print(row, flush=True)
        rows.append(row)
        write_table(path, "Speed of exact planes", pd.DataFrame(rows), provenance(), "")


def _rows(
    acas_folder: Path | None, resnet: Path | None, boundary_regions: int, quick: bool
) -> Iterator[Row]:
    if acas_folder:
        yield from _acas_rows(acas_folder, quick)
    yield from _lenet_rows(quick)
    if resnet:
        yield from _resnet_rows(resnet, 0 if quick else boundary_regions, quick)


def _acas_rows(folder: Path, quick: bool) -> Iterator[Row]:
    paths = sorted(folder.glob("*.nnet"))
    walkers = [PlaneWalker(_acas_model(path)) for path in paths[:: 20 if quick else 1]]
    walkers[0].plane(scenario("head-on, slow"))  # compiles
    for name in SCENARIOS:
        yield _row(f"ACAS Xu 1_1, {name}", lambda name=name: len(walkers[0].plane(scenario(name))))
    for name in ("head-on, slow", "head-on, fast"):

        def every(name: str = name) -> int:
            return sum(len(walker.plane(scenario(name))) for walker in walkers)

        yield _row(f"ACAS Xu, {len(walkers)} networks, {name}", every)


def _acas_model(path: Path) -> nns.InstrumentedModel:
    return nns.InstrumentedModel(acas.to_keras(acas.load_nnet(path), "float64"))


def _lenet_rows(quick: bool) -> Iterator[Row]:
    im = nns.InstrumentedModel(zoo.load("lenet5", "mnist"))
    walker = PlaneWalker(im)
    digits = datasets.load("mnist", "test[:3]").x
    for size in (0.05, 0.1) if quick else (0.1, 0.3, 1.0):
        corners = digits[0] + size * (digits - digits[0])
        walker.plane(digits[0] + 0.02 * (digits - digits[0]))  # compiles
        name = f"LeNet-5, MNIST test 0, 1 and 2, {size:g} of the triangle"
        yield _row(name, lambda corners=corners: len(walker.plane(corners)))
    if not quick:
        yield _row("LeNet-5, the boundaries alone", lambda: follow(im, digits).visited)


def _resnet_rows(path: Path, boundary_regions: int, quick: bool) -> Iterator[Row]:
    im = nns.InstrumentedModel(keras.models.load_model(path, compile=False))
    walker = PlaneWalker(im)
    scale = datasets.normalisation("cifar10", "standard")
    images = scale.apply(255 * datasets.load("cifar10", "test[:3]").x).astype(np.float64)
    for size in (1e-3,) if quick else (1e-3, 2e-3, 4e-3):
        corners = images[0] + size * (images - images[0])
        name = f"ResNet-20, CIFAR-10 test 0, 1 and 2, {size:g} of the triangle"
        yield _row(name, lambda corners=corners: len(walker.plane(corners)))
    if boundary_regions:
        yield _row(
            f"ResNet-20, boundaries in the whole triangle, {boundary_regions:,} regions at most",
            lambda: _followed(im, images, boundary_regions),
        )


def _followed(im: nns.InstrumentedModel, images: np.ndarray, most: int) -> int:
    """Follow the boundaries until that many regions are visited; return how many were."""
    try:
        boundary = follow(im, images, seeds=16, max_regions=most, progress=True)
    except TooManyRegionsError as error:
        print(f"not finished: {error}", flush=True)
        return most
    print("finished", boundary, boundary.to_frame(), sep="\n", flush=True)
    return boundary.visited


def _row(name: str, work: Callable[[], int]) -> Row:
    wall, processor = time.perf_counter(), time.process_time()
    regions = work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {
        "plane": name,
        "regions": regions,
        "seconds": wall,
        "processor_seconds": processor,
        "processor_us_per_region": 1e6 * processor / regions,
    }


if __name__ == "__main__":
    typer.run(main)
