"""Size of the explorer's file, and the time to make it, for small and large networks.

    python benchmarks/bench_explorer.py

Finished cases are kept in runs/bench_explorer.csv, so that the rest can be made later. θ = 0
excludes nothing: its slices are as dense as slices can be. "Making" is `nns.explore` and
writing the file; slicing comes before it and is not part of it.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import keras
import numpy as np
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import data_folder
from nnslicer_tf.engine.rows import RowStore
from nnslicer_tf.report import provenance, write_table
from nnslicer_tf.report.explorer import unpack


@dataclass(frozen=True)
class Case:
    """A network to explore.

    Attributes:
        network: Builds or loads it.
        data: Data set, or "noise" for random images.
        theta: Threshold of the slices.
        granularity: Their granularity.
        samples: Number of slices in the file.
    """

    network: Callable[[], keras.Model]
    data: str
    theta: float
    granularity: str = "activation"
    samples: int = 10


CASES = {
    "LeNet-5, trained": Case(lambda: zoo.load("lenet5", "mnist"), "mnist", 0.3),
    "ResNet10, trained": Case(lambda: zoo.load("resnet10", "cifar10"), "cifar10", 0.3),
    "ResNet-20, hardly trained": Case(lambda: hardly_trained("resnet20"), "cifar10", 0.3),
    "ResNet-20, hardly trained, θ = 0": Case(lambda: hardly_trained("resnet20"), "cifar10", 0.0),
    "ResNet-50, random weights, channels, θ = 0": Case(
        lambda: keras.applications.ResNet50(weights=None), "noise", 0.0, "channel"
    ),
}


def main(
    seed: int = 0,
    only: Annotated[str, typer.Option(help="Part of the names of the cases to run.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Make the page of every case."""
    store = RowStore(Path("runs/bench_explorer.csv"), ["case"])
    for name, case in CASES.items():
        if only in name and {"case": name} not in store:
            keras.utils.set_random_seed(seed)
            store.add([{"case": name, **measure(case, seed)}])
    rows = [{"case": name} for name in CASES if {"case": name} in store]
    folder = results or data_folder() / "results" / "benchmarks"
    write_table(
        folder / "explorer",
        "Files of the explorer",
        store.to_frame(rows),
        provenance(seed=seed),
    )


def hardly_trained(name: str) -> keras.Model:
    """Return a network after two epochs on 2,500 images: enough for slices as dense as usual."""
    model = zoo.build(name)
    data = datasets.load("cifar10", "train[:2500]")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(data.x, data.y, batch_size=64, epochs=2, verbose=0)
    return model


def measure(case: Case, seed: int) -> dict[str, object]:
    """Slice samples, explore them, and write the file."""
    im = nns.InstrumentedModel(case.network())
    train, x = images(case, im.input_shape, seed)
    profile = nns.Profile.from_data(im, train, batch_size=8, progress=False)
    slicer = nns.Slicer(im, profile, case.theta, case.granularity, workers=0, progress=False)
    slices = slicer.slice_each(x)
    start = time.perf_counter()
    view = nns.explore(slices, im, x, profile=profile, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slices.html"
        view.save(path)
        seconds = time.perf_counter() - start
        size = path.stat().st_size
    header, _ = unpack(view.data)
    return {
        "samples": case.samples,
        "operations": len(im.operations),
        "boxes when folded": len(header["groups"]),
        "neurons": int(sum(np.prod(shape) for shape in slices.operations.values())),
        "neurons in the slices": float(np.mean((slices.neuron_matrix != 0).mean())),
        "values": "rounded" if header["rounded"] else "exact",
        "making s": round(seconds, 2),
        "file MB": round(size / 1e6, 2),
    }


def images(case: Case, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images for the profile and images to slice."""
    if case.data == "noise":
        drawn = np.random.default_rng(seed).uniform(size=(case.samples + 8, *shape))
        return drawn[:8].astype(np.float32), drawn[8:].astype(np.float32)
    train = datasets.load(case.data, "train[:500]").x
    return train, datasets.load(case.data, f"test[:{case.samples}]").x


if __name__ == "__main__":
    typer.run(main)
