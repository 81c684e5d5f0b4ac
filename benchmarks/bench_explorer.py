"""Size of the explorer's file, and the time to make it, for small and large networks.

    python benchmarks/bench_explorer.py

Finished cases are kept in runs/bench_explorer.csv, so that the rest can be made later. θ = 0
excludes nothing: its slices are as dense as slices can be. "Making" is `nns.explore` and
writing the file; slicing comes before it and is not part of it. "Opening" is the time from asking
a browser for the file until the network is drawn, "clicking" that to open the last operation with
a kernel, in headless Chromium (Debian: chromium-driver; `pip install selenium`); without it they
are left out. The published ResNet-20 is `resnet.h5` of the folder in DIFFCHASER_MODELS; it is left
out if there is none.
"""

import gzip
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import _help  # noqa: F401
import keras
import numpy as np
import typer
from timing import DATA

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.instrument.loading import load_model
from nnslicer_tf.zoo.models import encoder_block
from reproduction.browser import chromium
from reproduction.rows import RowStore
from reproduction.tables import provenance, write_table


@dataclass(frozen=True)
class Case:
    """A network to explore.

    Attributes:
        network: Builds or loads it.
        data: Data set, or "noise" for random images.
        theta: Threshold of the slices.
        granularity: Their granularity.
        samples: Number of slices in the file.
        normalise: How images are scaled.
    """

    network: Callable[[], keras.Model]
    data: str
    theta: float
    granularity: str = "activation"
    samples: int = 10
    normalise: str = "unit"


PUBLISHED = "ResNet-20, published"
CASES = {
    "LeNet-5, trained": Case(lambda: zoo.load("lenet5", "mnist"), "mnist", 0.3),
    "ResNet10, trained": Case(lambda: zoo.load("resnet10", "cifar10"), "cifar10", 0.3),
    PUBLISHED: Case(lambda: published_resnet20(), "cifar10", 0.3, normalise="standard"),
    "ResNet-20, hardly trained": Case(lambda: hardly_trained("resnet20"), "cifar10", 0.3),
    "ResNet-20, hardly trained, θ = 0": Case(lambda: hardly_trained("resnet20"), "cifar10", 0.0),
    "ResNet-50, random weights, channels, θ = 0": Case(
        lambda: keras.applications.ResNet50(weights=None), "noise", 0.0, "channel"
    ),
    "transformer of 6 layers, 52 words, random weights": Case(lambda: six_layers(), "words", 0.3),
}


def main(
    seed: int = 0,
    only: Annotated[str, typer.Option(help="Part of the names of the cases to run.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Make the page of every case."""
    store = RowStore(Path("runs/bench_explorer.csv"), ["case"])
    for name, case in CASES.items():
        there = name != PUBLISHED or "DIFFCHASER_MODELS" in os.environ
        if only in name and there and {"case": name} not in store:
            keras.utils.set_random_seed(seed)
            store.add([{"case": name, **measure(case, seed)}])
    rows = [{"case": name} for name in CASES if {"case": name} in store]
    folder = results or DATA / "results" / "benchmarks"
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


def published_resnet20() -> keras.Model:
    """Return the ResNet-20 that was published with DiffChaser."""
    return load_model(Path(os.environ["DIFFCHASER_MODELS"]) / "resnet.h5")


def six_layers() -> keras.Model:
    """Return an encoder of six blocks of 256 channels and eight heads, 5 million parameters."""
    inputs = keras.Input((52,), dtype="int32", name="words")
    x = keras.layers.Embedding(2000, 256, mask_zero=True, name="embedding")(inputs)
    for block in range(1, 7):
        x = encoder_block(x, 256, heads=8, width=1024, dropout=0.0, name=f"block{block}")
    x = keras.layers.GlobalAveragePooling1D(name="average")(x)
    return keras.Model(inputs, keras.layers.Dense(2, name="logits")(x), name="six_layers")


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
        shown = in_browser(path, [o.name for o in im.operations if o.kernels][-1])
    raw = gzip.decompress(view.data)
    header = json.loads(raw[4 : 4 + struct.unpack_from("<I", raw)[0]])
    return {
        "samples": case.samples,
        "operations": len(im.operations),
        "boxes when folded": len(header["groups"]),
        "neurons": int(sum(np.prod(shape) for shape in slices.operations.values())),
        "neurons in the slices": float(np.mean((slices.neuron_matrix != 0).mean())),
        "values": "rounded" if header["rounded"] else "exact",
        "making s": round(seconds, 2),
        "file MB": round(size / 1e6, 2),
        **shown,
    }


def in_browser(path: Path, name: str) -> dict[str, float]:
    """Return the seconds until a file is shown, and until an operation of it is opened."""
    if None in [shutil.which(program) for program in ("chromium", "chromedriver")]:
        return {}
    drawn = "return Boolean(document.querySelector('.nnx')?.explorer)"
    heading = "document.querySelector('section.operation h2')?.textContent"
    with chromium() as driver:
        start = time.perf_counter()
        driver.get(path.as_uri())
        _until(driver, drawn)
        found = time.perf_counter()
        driver.find_element("css selector", 'input[name="search"]').send_keys(name, "\n")
        _until(driver, f"return {heading}?.startsWith('{name}')")
        return {
            "opening s": round(found - start, 2),
            "clicking s": round(time.perf_counter() - found, 2),
        }


def _until(driver: Any, condition: str) -> None:
    for _ in range(1200):
        if driver.execute_script(condition):
            return
        time.sleep(0.05)
    raise TimeoutError(condition)


def images(case: Case, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images for the profile and images to slice."""
    if case.data == "noise":
        drawn = np.random.default_rng(seed).uniform(size=(case.samples + 8, *shape))
        return drawn[:8].astype(np.float32), drawn[8:].astype(np.float32)
    if case.data == "words":
        words = np.random.default_rng(seed).integers(1, 2000, (case.samples + 8, *shape))
        return words[:8].astype(np.float32), words[8:].astype(np.float32)
    splits = ("train[:500]", f"test[:{case.samples}]")
    train, test = (datasets.load(case.data, s, normalise=case.normalise).x for s in splits)
    return train, test


if __name__ == "__main__":
    typer.run(main)
