"""Detectors in service: fitting, a second process, single inputs, a stream, false and true alarms.

    python benchmarks/bench_service.py

Each preset is fitted on training images of MNIST, saved, and loaded by a new process, which must
give the same scores. That process reads single images (latency), then a stream of test images in
batches (throughput, memory, rate of false alarms), and images of four other kinds, of which a
detector should flag as many as possible. Seconds are wall-clock seconds: they need an idle machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import numpy as np
import pandas as pd
import typer
from memory import peak_mb
from timing import DATA

import nnslicer_tf as nns
from nnslicer_tf import datasets, detection, zoo
from reproduction.tables import provenance, write_table

BATCH = 100


def main(
    fit_on: Annotated[int, typer.Option(help="Images to fit on.")] = 2500,
    stream: Annotated[int, typer.Option(help="Test images in the stream.")] = 10_000,
    slow_stream: Annotated[int, typer.Option(help="The same for presets that slice views.")] = 2000,
    singles: Annotated[int, typer.Option(help="Images that are read one by one.")] = 200,
    odd: Annotated[int, typer.Option(help="Images of each of the four other kinds.")] = 300,
    presets: Annotated[str, typer.Option(help="Presets, separated by commas.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    served: Annotated[Path | None, typer.Option(hidden=True)] = None,
    preset: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Fit every preset, serve it in a process of its own, and write the table."""
    if served is not None:
        serve(served, preset, stream, singles, odd)
        return
    rows = []
    for name in presets.split(",") if presets else detection.PRESETS:
        slicer = new_slicer()
        data = datasets.load("mnist", f"train[-{fit_on}:]")
        detector = detection.SliceDetector(slicer, name)
        start = time.perf_counter()
        detector.fit(data.x)
        seconds = time.perf_counter() - start
        rate, low, high = detector.false_alarms_
        images = slow_stream if has_views(name) else stream
        with tempfile.TemporaryDirectory() as folder:
            detector.save(Path(folder) / "detector.npz")
            size = (Path(folder) / "detector.npz").stat().st_size
            np.save(Path(folder) / "scores.npy", detector.score_samples(data.x[:20]))
            np.save(Path(folder) / "first.npy", data.x[:20])
            options = ("--served", folder, "--preset", name, "--stream", str(images))
            options += ("--singles", str(singles), "--odd", str(odd))
            command = (sys.executable, __file__, *options)
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = {"preset": name, "fit s": seconds, "file MB": size / 1e6}
        row |= {"promised": f"{rate:.1%} ({low:.1%}–{high:.1%})"}
        rows.append(row | json.loads(output.splitlines()[-1]))
        print(rows[-1], flush=True)
    used = {"model": "lenet5 on MNIST", "fitted on": f"the last {fit_on:,} training images"}
    used |= {"seed": 0, "latency": f"{singles} single images", "batches of": BATCH}
    note = (
        "`promised` is the share of held-out images that were flagged when fitting, with its 95 % "
        "interval; `false alarms` the share in the stream of test images. The last four columns "
        "are shares of other images that were flagged: photographs (CIFAR-10 in grey), images of "
        "pixels drawn from all pixels, blurred digits (mean of 5 × 5), and images of one grey."
    )
    path = (results or DATA / "results" / "benchmarks") / "service"
    write_table(path, "Detectors in service", pd.DataFrame(rows), provenance(**used), note)


def has_views(preset: str) -> bool:
    """Whether a preset slices several views of each image, which takes five times as long."""
    return any("views" in kind for kind in detection.PRESETS[preset])


def new_slicer() -> nns.Slicer:
    """Return a slicer at θ = 0, profiled on training images."""
    im = nns.InstrumentedModel(zoo.load("lenet5"))
    profiled = datasets.load("mnist", "train[:2000]")
    profile = nns.Profile.from_data(im, profiled.x, progress=False)
    return nns.Slicer(im, profile, theta=0.0, progress=False)


def serve(folder: Path, preset: str, stream: int, singles: int, odd: int) -> None:
    """Load the detector, and print what was measured as one line of JSON."""
    start = time.perf_counter()
    detector = detection.SliceDetector.load(folder / "detector.npz", new_slicer())
    found: dict[str, object] = {"load s": time.perf_counter() - start}
    same = np.load(folder / "scores.npy")
    scores = detector.score_samples(np.load(folder / "first.npy"))
    found["same scores"] = bool(np.allclose(scores, same, rtol=1e-5, atol=1e-7))
    test = datasets.load("mnist", f"test[:{stream}]").x

    detector.predict(test[:1])  # compiles
    milliseconds = []
    for image in test[:singles]:
        start = time.perf_counter()
        detector.predict(image[None])
        milliseconds.append(1000 * (time.perf_counter() - start))
    found["median ms"] = float(np.median(milliseconds))
    found["p99 ms"] = float(np.percentile(milliseconds, 99))

    detector.predict(test[:BATCH])
    before, start, flagged = peak_mb(), time.perf_counter(), 0
    for first in range(0, len(test), BATCH):
        flagged += int(detector.predict(test[first : first + BATCH]).sum())
    found["images"] = len(test)
    found["images/s"] = len(test) / (time.perf_counter() - start)
    found["peak MB"], found["grown MB"] = peak_mb(), peak_mb() - before
    found["false alarms"] = flagged / len(test)
    for name, images in others(test[:odd]).items():
        parts = [images[i : i + BATCH] for i in range(0, len(images), BATCH)]
        found[name] = float(np.mean(np.concatenate([detector.predict(part) for part in parts])))
    print(json.dumps(found))


def others(images: np.ndarray) -> dict[str, np.ndarray]:
    """Return images of four other kinds, as many as are given, `(count, 28, 28, 1)`."""
    rng = np.random.default_rng(0)
    photographs = datasets.load("cifar10", f"test[:{len(images)}]").x[:, 2:-2, 2:-2]
    greys = rng.uniform(size=(len(images), 1, 1, 1)) * np.ones((1, 28, 28, 1))
    return {
        "photographs": photographs.mean(axis=-1, keepdims=True),
        "pixels": rng.permutation(images.ravel()).reshape(images.shape),
        "blurred": np.asarray(keras.layers.AveragePooling2D(5, 1, "same")(images)),
        "one grey": greys.astype(np.float32),
    }


if __name__ == "__main__":
    typer.run(main)
