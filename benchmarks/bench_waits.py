"""What users wait for: seconds of the first call and of the second, beside a forward pass.

    python benchmarks/bench_waits.py --resnet <folder>/resnet.h5
    python benchmarks/bench_waits.py --rows explain-bilstm,explain-gru

Each row runs in a process of its own, so that its first call is the first: it compiles. Models,
profiles and slicers are made before, unless the row measures them; the kernels are in Numba's
cache. "CPU" counts the threads of the process and the processes it started; on a machine that
others use, it is what can be compared. "passes" is the second call in forward passes of as many
samples as the row reads, by `Model.predict_on_batch`. A second call that would take long is left
out. Rows that the table has already are kept, unless `--rows` names them, so that a run that was
stopped goes on.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import numpy as np
import pandas as pd
import typer
from keras import layers
from timing import DATA, median_seconds

import nnslicer_tf as nns
from nnslicer_tf import datasets, detection, exactline, pruning, zoo
from reproduction.tables import provenance, write_table

LONG = 60.0  # CPU seconds after which a call is not repeated


class Action(NamedTuple):
    """Something a user does.

    Attributes:
        do: Does it.
        forward: A forward pass of its samples; None where there is nothing to compare with.
    """

    do: Callable[[], object]
    forward: Callable[[], object] | None = None


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        text: The user's action, in words.
        prepare: Builds the model and the data, and returns the action.
        goal: Seconds of the first call on an idle machine; None if there is no goal.
        goal_again: Seconds of the second call.
    """

    text: str
    prepare: Callable[[], Action]
    goal: float | None = None
    goal_again: float | None = None


def main(
    resnet: Annotated[Path | None, typer.Option(help="ResNet-20 for CIFAR-10 (.h5).")] = None,
    rows: Annotated[str, typer.Option(help="Names of the rows, with commas; default: all.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
    here: Annotated[bool, typer.Option(hidden=True, help="Measure the row and print it.")] = False,
) -> None:
    """Measure rows, each in a process, and add them to the table."""
    every = all_rows(resnet)
    if unknown := set(filter(None, rows.split(","))) - set(every):
        raise typer.BadParameter(f"Unknown rows: {', '.join(unknown)}. Rows: {', '.join(every)}")
    if here:
        print(json.dumps(measured(every[rows])), flush=True)
        return
    path = (results or DATA / "results" / "benchmarks") / "first_calls"
    csv = path.with_suffix(".csv")
    table = {} if not csv.exists() else pd.read_csv(csv, comment="#").set_index("row").T.to_dict()
    options = ["--resnet", str(resnet)] if resnet else []
    for name in rows.split(",") if rows else [name for name in every if name not in table]:
        command = [sys.executable, __file__, "--here", "--rows", name, *options]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            print(f"{name} failed: {process.stderr[-500:]}", file=sys.stderr, flush=True)
            continue
        table[name] = json.loads(process.stdout.splitlines()[-1])
        print(name, table[name], flush=True)
        frame = pd.DataFrame([{"row": row, **table[row]} for row in every if row in table])
        note = "Seconds; each row with the load of the machine and the date of its measurement."
        write_table(path, "First and second calls", frame, provenance(), note)


def measured(row: Row) -> dict[str, Any]:
    """Return a row's figures."""
    action = row.prepare()

    def seconds() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), sum(os.times()[:4])
        action.do()
        return time.perf_counter() - wall, sum(os.times()[:4]) - cpu

    first, again = seconds(), (np.nan, np.nan)
    if first[1] < LONG:
        again = seconds()
    passes = again[0] / median_seconds(action.forward, 9)[0] if action.forward else np.nan
    return {
        "action": row.text,
        "first": first[0],
        "first CPU": first[1],
        "goal": np.nan if row.goal is None else row.goal,
        "again": again[0],
        "again CPU": again[1],
        "goal again": np.nan if row.goal_again is None else row.goal_again,
        "passes": passes,
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
    }


def all_rows(resnet: Path | None) -> dict[str, Row]:
    """Return name → row, in the order of the table."""
    load = "from nnslicer_tf import zoo; zoo.load('lenet5')"  # the package is loaded on first use
    rows = {
        "import": Row("a new process imports and loads a model", in_process("-c", load)),
        "demo": Row("nnslicer demo", in_process("-m", "nnslicer_tf.cli", "demo", "--output"), 8),
        "wrap": Row("wrap ResNet10", wrapping(small_resnet)),
        "profile": Row("profile of 3,000 images, ResNet10", profiling_of_images),
        "apply": Row("a slice applied to ResNet10", applied),
    }

    # ResNet10
    image = partial(slicing, small_resnet, 500)
    rows["slice-1"] = Row("slice of an image, θ = 0.3", image(lambda s, x: s.slice(x[:1]), 1))
    rows["slice-64"] = Row("slice of 64, θ = 0.3", image(lambda s, x: s.slice(x[:64]), 64))
    for contribution in ("count", "amount"):
        zero = partial(image, theta=0.0, contribution=contribution)
        text = f"of 64, θ = 0, {contribution}s, ResNet10"
        each = zero(lambda s, x: s.slice_each(x[:64], operations=()), 64)
        rows[f"slice-64-{contribution}s"] = Row(
            f"slice {text}", zero(lambda s, x: s.slice(x[:64]), 64)
        )
        rows[f"slice-each-64-{contribution}s"] = Row(f"slice_each {text}", each)
    alone = image(lambda s, x: s.explain(x[0], compare=False, decisive=False), 1)
    rows |= {
        "explain": Row("explain, ResNet10", image(explained, 1), None, 0.4),
        "explain-alone": Row("explain, contributions alone, ResNet10", alone),
        "explain-all": Row(
            "explain, all methods, ResNet10",
            image(lambda s, x: s.explain(x[0], compare=True), 1),
            None,
            1.2,
        ),
        "decisive": Row("decisive slice, ResNet10", image(lambda s, x: s.decisive(x[:1]), 1)),
        "decisive-32": Row(
            "decisive slices of 32, ResNet10", image(lambda s, x: s.decisive(x[:32]), 32), 8
        ),
        "explore": Row("explorer's page of 10 images, ResNet10", image(explored, 1)),
        "fused": Row("fit of the detector 'fused' on 6,000 images, ResNet10", fitting, 30),
    }

    # ResNet18, in forward passes (the goals are 3 and 8 of them)
    large = partial(slicing, lambda: images_for("resnet18"), 200, theta=0.0)
    each = large(lambda s, x: s.slice_each(x[:12], operations=()), 12)
    rows["slice-resnet18"] = Row("slice of 12, θ = 0", large(lambda s, x: s.slice(x[:12]), 12))
    rows["slice-each-resnet18"] = Row("slice_each of 12, θ = 0, ResNet18", each)

    # Recurrent layers, deep networks, and what else is slow to compile
    for name, model, goal in (
        ("bilstm", partial(recurrent, 40, bidirectional), 8),
        ("gru", partial(recurrent, 15, layers.GRU), 8),
        ("lstm", partial(recurrent, 64, layers.LSTM), 8),
        ("lstms", stacked, None),
        ("deep", deep, None),
        ("mobilenet-96", partial(mobilenet, 96, 0.25), 8),
        ("mobilenet-224", partial(mobilenet, 224, 1.0), 15),
    ):
        again = 1 if goal and "mobilenet" not in name else None
        large_model = 16 if "mobilenet" in name else 64
        rows[f"wrap-{name}"] = Row(f"wrap {TEXTS[name]}", wrapping(model))
        rows[f"profile-{name}"] = Row(f"profile of {TEXTS[name]}", profiling(model, large_model))
        rows[f"slice-zero-{name}"] = Row(
            f"slice of 8, θ = 0, {TEXTS[name]}",
            slicing(model, large_model, lambda s, x: s.slice(x[:8]), 8, theta=0.0),
        )
        rows[f"explain-{name}"] = Row(
            f"explain, {TEXTS[name]}", slicing(model, large_model, explained, 1), goal, again
        )
    rows["wrap-long"] = Row(
        "wrap an LSTM of 5 units over 1,000 steps",
        wrapping(partial(recurrent, 1000, layers.LSTM, 5)),
        2,
    )
    rows["decisive-mobilenet-224"] = Row(
        "decisive slice of one image, MobileNetV2 at 224²",
        slicing(partial(mobilenet, 224, 1.0), 16, lambda s, x: s.decisive(x[:1]), 1),
        8,
    )
    rows["explain-splice"] = Row(
        "explain one position of 32 dilated convolutions, 10,201 positions, contributions alone",
        slicing(splice_network, 2, position_explained, 1),
        10,
    )

    # Lines and planes; what the ResNet-20 of a file needs
    rows["line-lenet5"] = Row("exact line, LeNet-5", partial(of_digits, "line"))
    rows["plane-lenet5"] = Row("exact plane, LeNet-5", partial(of_digits, "plane"), 12)
    if resnet is not None:
        rows["line-resnet20"] = Row("exact line, ResNet-20", partial(long_line, resnet), 10)
        rows["shrink"] = Row("shrink, ResNet-20 to 3 classes", partial(shrinking, resnet), 20)
    return rows


# Models, each with samples

Made = tuple[keras.Model, np.ndarray]
TEXTS = {
    "bilstm": "a BiLSTM of 40 steps",
    "gru": "a GRU of 15 steps",
    "lstm": "an LSTM of 64 steps",
    "lstms": "four stacked LSTMs of 20 steps",
    "deep": "300 operations",
    "mobilenet-96": "MobileNetV2 (α = 0.25) at 96²",
    "mobilenet-224": "MobileNetV2 at 224²",
}
bidirectional: Callable = lambda units, **options: layers.Bidirectional(  # noqa: E731
    layers.LSTM(units, **options)
)


def images_for(name: str) -> Made:
    """Return a network of the zoo and 3,000 images of CIFAR-10."""
    return zoo.load(name, "cifar10"), datasets.load("cifar10", "train[:3000]").x


def small_resnet() -> Made:
    """Return ResNet10 and images."""
    return images_for("resnet10")


def with_noise(model: keras.Model, samples: int = 64) -> Made:
    """Return a model and random samples."""
    shape = (samples, *model.input_shape[1:])
    return model, np.random.default_rng(0).normal(size=shape).astype(np.float32)


def recurrent(steps: int, layer: Callable, units: int = 16) -> Made:
    """Return a network of one recurrent layer, with random weights."""
    keras.utils.set_random_seed(0)
    return with_noise(keras.Sequential([keras.Input((steps, 8)), layer(units), layers.Dense(3)]))


def stacked() -> Made:
    """Return four LSTMs, with random weights."""
    keras.utils.set_random_seed(0)
    lstms = [layers.LSTM(16, return_sequences=True) for _ in range(3)]
    parts = [keras.Input((20, 8)), *lstms, layers.LSTM(16), layers.Dense(3)]
    return with_noise(keras.Sequential(parts))


def deep() -> Made:
    """Return 75 residual blocks, with random weights."""
    keras.utils.set_random_seed(0)
    inputs = values = keras.Input((8, 8, 4))
    for _ in range(75):
        branch = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(values))
        values = layers.Add()([values, layers.ReLU()(branch)])
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(values))
    return with_noise(keras.Model(inputs, outputs))


def mobilenet(size: int, alpha: float) -> Made:
    """Return MobileNetV2, with random weights."""
    keras.utils.set_random_seed(0)
    classes = 1000 if size == 224 else 2
    shape = (size, size, 3)
    made = keras.applications.MobileNetV2(shape, alpha, weights=None, classes=classes)
    rng = np.random.default_rng(0)
    for variable in made.variables:  # else all classes are equally probable
        if variable.path.endswith(("gamma", "beta")):
            variable.assign(rng.uniform(0, 2, variable.shape))
    return with_noise(made, 16)


def splice_network() -> Made:
    """Return a network like SpliceAI's (Jaganathan et al., Cell 2019), with random weights."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((10_201, 4))
    x = layers.Conv1D(32, 1)(inputs)
    total = layers.Conv1D(32, 1)(x)
    for width, dilation in ((11, 1), (11, 4), (21, 10), (41, 25)):
        for _ in range(4):
            y = x
            for _ in range(2):
                y = layers.ReLU()(layers.BatchNormalization()(y))
                y = layers.Conv1D(32, width, dilation_rate=dilation, padding="same")(y)
            x = layers.Add()([x, y])
        total = layers.Add()([total, layers.Conv1D(32, 1)(x)])
    outputs = layers.Conv1D(3, 1, activation="softmax")(layers.Cropping1D(5000)(total))
    model = keras.Model(inputs, outputs)
    tokens = np.random.default_rng(0).integers(0, 4, (2, 10_201))
    return model, np.eye(4, dtype=np.float32)[tokens]


def standard_images(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return CIFAR-10 images as the published ResNet-20 takes them, and their classes."""
    data = datasets.load("cifar10", split)
    scale = datasets.normalisation("cifar10", "standard")
    return scale.apply(255 * data.x).astype(np.float32), data.y


# Actions


def in_process(*arguments: str) -> Callable[[], Action]:
    """Prepare running Python; a last argument that is an option gets a folder."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            more = [folder] if arguments[-1].startswith("--") else []
            command = [sys.executable, *arguments, *more]
            subprocess.run(command, check=True, capture_output=True)

    return lambda: Action(run)


def wrapping(make: Callable[[], Made]) -> Callable[[], Action]:
    """Prepare wrapping a model."""

    def prepare() -> Action:
        model, x = make()
        forward = partial(model.predict_on_batch, x[:1])
        return Action(lambda: nns.InstrumentedModel(model), forward)

    return prepare


def profiling(make: Callable[[], Made], samples: int) -> Callable[[], Action]:
    """Prepare profiling a model."""

    def prepare() -> Action:
        model, x = make()
        im = nns.InstrumentedModel(model)
        return Action(lambda: nns.Profile.from_data(im, x[:samples], progress=False))

    return prepare


def profiling_of_images() -> Action:
    """Prepare profiling ResNet10, with passes of 250 images to compare with."""
    model, x = small_resnet()
    im = nns.InstrumentedModel(model)
    parts = [x[i : i + 250] for i in range(0, len(x), 250)]
    return Action(
        lambda: nns.Profile.from_data(im, x, progress=False),
        lambda: [model.predict_on_batch(part) for part in parts],
    )


def slicing(
    make: Callable[[], Made],
    profiled: int,
    do: Callable[[nns.Slicer, np.ndarray], object],
    samples: int,
    theta: float = 0.3,
    **options: Any,
) -> Callable[[], Action]:
    """Prepare something that a slicer does with `samples`."""

    def prepare() -> Action:
        model, x = make()
        im = nns.InstrumentedModel(model)
        profile = nns.Profile.from_data(im, x[:profiled], batch_size=16, progress=False)
        slicer = nns.Slicer(im, profile, theta, progress=False, **options)
        forward = partial(model.predict_on_batch, x[:samples])
        return Action(lambda: do(slicer, x), forward)

    return prepare


def explained(slicer: nns.Slicer, x: np.ndarray) -> object:
    """Explain the first sample."""
    return slicer.explain(x[0])


def position_explained(slicer: nns.Slicer, x: np.ndarray) -> object:
    """Explain the middle position's second class by contributions alone."""
    return slicer.explain(x[0], np.s_[100, 1], compare=False, decisive=False)


def explored(slicer: nns.Slicer, x: np.ndarray) -> None:
    """Write the explorer's page of ten samples."""
    page = nns.explore(slicer.slice_each(x[:10]), slicer.im, x[:10], progress=False)
    with tempfile.TemporaryDirectory() as folder:
        page.save(Path(folder) / "page.html")


def applied() -> Action:
    """Prepare the application of a slice."""
    model, x = small_resnet()
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x[:500], progress=False)
    one = nns.Slicer(im, profile, 0.3, progress=False).slice(x[:1])
    return Action(lambda: one.apply(model, "zero"), partial(model.predict_on_batch, x[:1]))


def fitting() -> Action:
    """Prepare the fit of a detector."""
    data, model = datasets.load("cifar10", "train[:6000]"), zoo.load("resnet10", "cifar10")
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, data.x[:3000], progress=False)
    slicer = nns.Slicer(im, profile, 0.0, progress=False)

    def fit() -> object:
        return detection.SliceDetector(slicer, "fused", rng=0).fit(data.x)

    return Action(fit)


def of_digits(what: str) -> Action:
    """Prepare LeNet-5's line or plane through digits."""
    digits = datasets.load("mnist", "test[:3]").x
    im = nns.InstrumentedModel(zoo.load("lenet5", "mnist"))
    if what == "line":
        return Action(lambda: exactline.exact_line(im, digits[0], digits[1]))
    return Action(lambda: exactline.exact_plane(im, digits))


def long_line(resnet: Path) -> Action:
    """Prepare ResNet-20's line."""
    im = nns.InstrumentedModel(nns.instrument.load_model(resnet))
    images, _ = standard_images("test[:2]")
    return Action(lambda: exactline.exact_line(im, *images))


def shrinking(resnet: Path) -> Action:
    """Prepare shrinking ResNet-20."""
    model, data = nns.instrument.load_model(resnet), standard_images("train[:500]")
    return Action(lambda: pruning.shrink(model, data, classes=(0, 1, 2), progress=False))


if __name__ == "__main__":
    typer.run(main)
