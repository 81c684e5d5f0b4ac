"""What users wait for: seconds of the first call and of the second, beside a forward pass.

    python benchmarks/bench_waits.py --resnet <folder>/resnet.h5

"first" includes what is compiled and instrumented for the call, "again" does not; "compiling" is
the difference as a share of the first. "passes" is the second call in forward passes of as many
samples as the action reads, by `Model.predict_on_batch`. Actions follow one another in one
process, as in a notebook, so that a model is wrapped once; the kernels are in Numba's cache. A
second call that would take long is left out. Wall-clock seconds: they need an idle machine.
"""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import numpy as np
import pandas as pd
import typer
from timing import DATA, median_seconds

import nnslicer_tf as nns
from nnslicer_tf import datasets, exactline, pruning, zoo
from reproduction.tables import provenance, write_table

LONG = 60.0  # seconds after which an action is not repeated


class Action(NamedTuple):
    """Something a user does.

    Attributes:
        name: What it is.
        do: Does it.
        forward: A forward pass of its samples; None where there is nothing to compare with.
        goal: Seconds in which it should be done, in a warm process; None if there is no goal.
    """

    name: str
    do: Callable[[], object]
    forward: Callable[[], object] | None = None
    goal: float | None = None


def main(
    resnet: Annotated[Path | None, typer.Option(help="ResNet-20 for CIFAR-10 (.h5).")] = None,
    only: Annotated[str, typer.Option(help="Part of the names of the actions.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Time every action, and write the table."""
    rows = []
    for action in actions(resnet):
        if only not in action.name:
            continue
        gc.collect()
        start = time.perf_counter()
        action.do()
        first = time.perf_counter() - start
        again = np.nan
        if first < LONG:
            start = time.perf_counter()
            action.do()
            again = time.perf_counter() - start
        passes = again / median_seconds(action.forward, 9)[0] if action.forward else np.nan
        rows.append(
            {
                "action": action.name,
                "first": first,
                "again": again,
                "compiling": max(0.0, 1 - again / first),
                "passes": passes,
                "goal": np.nan if action.goal is None else action.goal,
            }
        )
        print(rows[-1], flush=True)
    note = f"Load average {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores."
    path = (results or DATA / "results" / "benchmarks") / "waits"
    write_table(path, "What users wait for", pd.DataFrame(rows), provenance(), note)


def actions(resnet: Path | None) -> Iterator[Action]:
    """Yield all actions; the models of later ones are made when their turn comes."""
    load = "from nnslicer_tf import zoo; zoo.load('lenet5')"  # the package is loaded on first use
    yield Action("a new process imports and loads a model", lambda: in_process("-c", load))
    with tempfile.TemporaryDirectory() as folder:
        demo = ("-m", "nnslicer_tf.cli", "demo", "--output", folder)
        yield Action("nnslicer demo", lambda: in_process(*demo), goal=8)
    yield from of_slices()
    yield from of_structures()
    yield from of_regions(resnet)
    if resnet is not None:
        model = nns.instrument.load_model(resnet)
        data = standard_images("train[:500]")
        yield Action(
            "shrink, ResNet-20 to 3 classes",
            lambda: pruning.shrink(model, data, classes=(0, 1, 2), progress=False),
            goal=20,
        )


def of_slices() -> Iterator[Action]:
    """From wrapping to explaining ResNet10."""
    x = datasets.load("cifar10", "train[:3000]").x
    model = zoo.load("resnet10", "cifar10")

    def forward(samples: int) -> Callable[[], object]:
        return lambda: model.predict_on_batch(x[:samples])

    yield Action("wrap", lambda: nns.InstrumentedModel(model), forward(1))
    im = nns.InstrumentedModel(model)
    yield Action(
        "profile of 3,000 images",
        lambda: nns.Profile.from_data(im, x, progress=False),
        lambda: [model.predict_on_batch(x[i : i + 250]) for i in range(0, 3000, 250)],
    )
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, 0.3, progress=False)
    yield Action("slice of an image, θ = 0.3, counts", lambda: slicer.slice(x[:1]), forward(1))
    yield Action("slice of 64, θ = 0.3, counts", lambda: slicer.slice(x[:64]), forward(64))
    for contribution in ("count", "amount"):
        zero = nns.Slicer(im, profile, 0.0, progress=False, contribution=contribution)
        of = f"{contribution}s"
        yield Action(f"slice of 64, θ = 0, {of}", lambda s=zero: s.slice(x[:64]), forward(64))
        yield Action(
            f"slice_each of 64, θ = 0, {of}",
            lambda s=zero: s.slice_each(x[:64], operations=()),
            forward(64),
        )
    one = slicer.slice(x[:1])
    yield Action("a slice applied to the model", lambda: one.apply(model, "zero"), forward(1))
    yield Action("explain", lambda: slicer.explain(x[0]), forward(1), goal=0.3)
    yield Action(
        "explain, contributions alone",
        lambda: slicer.explain(x[0], compare=False, decisive=False),
        forward(1),
    )
    yield Action(
        "explain, all methods", lambda: slicer.explain(x[0], compare=True), forward(1), goal=2
    )
    yield Action("decisive slice", lambda: slicer.decisive(x[:1]), forward(1))
    yield Action("decisive slices of 32", lambda: slicer.decisive(x[:32]), forward(32))
    with tempfile.TemporaryDirectory() as folder:
        each = slicer.slice_each(x[:10])
        yield Action(
            "explorer's page of 10 images",
            lambda: nns.explore(each, im, x[:10], progress=False).save(Path(folder) / "page.html"),
        )


def of_structures() -> Iterator[Action]:
    """Models that are slow to compile: deep ones, and loops."""
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    inputs = values = keras.Input((8, 8, 4))
    for _ in range(75):
        branch = keras.layers.Conv2D(4, 3, padding="same")(values)
        branch = keras.layers.ReLU()(keras.layers.BatchNormalization()(branch))
        values = keras.layers.Add()([values, branch])
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(values))
    deep = keras.Model(inputs, outputs)
    stacked = keras.Sequential(
        [
            keras.Input((20, 8)),
            *(keras.layers.LSTM(16, return_sequences=True) for _ in range(3)),
            keras.layers.LSTM(16),
            keras.layers.Dense(3),
        ]
    )
    for name, model in {"300 operations": deep, "four stacked LSTMs": stacked}.items():
        x = rng.normal(size=(64, *model.input_shape[1:])).astype(np.float32)
        yield Action(f"wrap, {name}", lambda m=model: nns.InstrumentedModel(m))
        im = nns.InstrumentedModel(model)
        yield Action(
            f"profile of 64, {name}", lambda i=im, x=x: nns.Profile.from_data(i, x, progress=False)
        )
        profile = nns.Profile.from_data(im, x, progress=False)
        for theta in (0.0, 0.3):
            slicer = nns.Slicer(im, profile, theta, progress=False)
            yield Action(
                f"slice of 8, θ = {theta:g}, {name}",
                lambda s=slicer, x=x: s.slice(x[:8]),
                lambda m=model, x=x: m.predict_on_batch(x[:8]),
            )
        yield Action(f"explain, {name}", lambda s=slicer, x=x: s.explain(x[0]))


def of_regions(resnet: Path | None) -> Iterator[Action]:
    """Exact lines and planes."""
    digits = datasets.load("mnist", "test[:3]").x
    im = nns.InstrumentedModel(zoo.load("lenet5", "mnist"))
    yield Action("exact line, LeNet-5", lambda: exactline.exact_line(im, digits[0], digits[1]))
    yield Action("exact plane, LeNet-5", lambda: exactline.exact_plane(im, digits), goal=15)
    if resnet is not None:
        deep = nns.InstrumentedModel(nns.instrument.load_model(resnet))
        images, _ = standard_images("test[:2]")
        yield Action("exact line, ResNet-20", lambda: exactline.exact_line(deep, *images))


def standard_images(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return CIFAR-10 images as the published ResNet-20 takes them, and their classes."""
    data = datasets.load("cifar10", split)
    scale = datasets.normalisation("cifar10", "standard")
    return scale.apply(255 * data.x).astype(np.float32), data.y


def in_process(*arguments: str) -> None:
    """Run Python with these arguments."""
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    typer.run(main)
