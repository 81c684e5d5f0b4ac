"""Time exact lines: an ACAS Xu network, a LeNet on MNIST, ResNet-20 on CIFAR-10.

    python benchmarks/bench_exactline.py \
        --acas <folder>/ACASXU_run2a_1_1_batch_2000.nnet --resnet <folder>/resnet.h5

Beside every line is a naive recursion as in theorem 3 of the paper: for each part of the
line after one operation, each of its parts after the next, one by one. It is stopped
after `--naive-seconds`, and its time for the whole line estimated from the share of the
line that it had done. Times are the median of several runs on the wall clock, with the
time of all threads on the processor beside it: on a machine that others use, the second
is what the work costs. The load of the machine is written down with them.
"""

import csv
import datetime
import os
import platform
import time
from pathlib import Path
from typing import Annotated

import _help  # noqa: F401
import keras
import numpy as np
import typer
from timing import DATA, median_seconds

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path
from nnslicer_tf.exactline import LinearPartition, LineWalker, acas
from nnslicer_tf.exactline.curve import Curve
from reproduction.tables import command_line

COLUMNS = (
    "line",
    "parts",
    "ms per line",
    "processor ms per line",
    "naive ms per line",
    "naive share done",
    "naive / walk, processor",
)


def main(
    acas_file: Annotated[Path | None, typer.Option("--acas", help="An .nnet file.")] = None,
    resnet: Annotated[Path | None, typer.Option(help="ResNet-20 for CIFAR-10 (.h5).")] = None,
    runs: Annotated[int, typer.Option(min=1)] = 7,
    naive_seconds: Annotated[float, typer.Option(min=0.1)] = 20.0,
    seed: int = 0,
    quick: Annotated[bool, typer.Option(help="One run, naive for 2 seconds.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Time the walker and the naive recursion on the networks at hand."""
    runs, naive_seconds = (1, 2.0) if quick else (runs, naive_seconds)
    rng = np.random.default_rng(seed)
    rows = []
    if acas_file:
        rows += _acas_rows(acas_file, rng, runs, naive_seconds)
    rows += _lenet_rows(rng, runs, naive_seconds)
    if resnet:
        rows += _resnet_rows(resnet, runs, naive_seconds)
    _write(rows, results or DATA / "results" / "exactline", seed, runs)


def _acas_rows(path: Path, rng: np.random.Generator, runs: int, naive_seconds: float) -> list:
    nnet = acas.load_nnet(path)
    im = nns.InstrumentedModel(acas.to_keras(nnet))
    walker = LineWalker(im)
    q, r = (rng.uniform(nnet.minima, nnet.maxima, (1_000, 5)) for _ in range(2))
    parts = [len(partition) for partition in walker.lines(q, r)]
    middle = int(np.argsort(parts)[len(parts) // 2])
    alone = _row("ACAS Xu, one random line", walker, q[middle], r[middle], 10 * runs, naive_seconds)
    wall, processor = median_seconds(lambda: walker.lines(q, r), runs)
    batch = ["ACAS Xu, of 1,000 random lines in one call", f"{np.mean(parts):.0f}"]
    batch += [_ms(wall / len(q)), _ms(processor / len(q)), "", "", ""]
    prepared = median_seconds(lambda: nns.exactline.exact_line(im, q[middle], r[middle]), 10 * runs)
    call = ["ACAS Xu, one random line, model prepared anew", str(parts[middle])]
    return [alone, batch, [*call, *map(_ms, prepared), "", "", ""]]


def _lenet_rows(rng: np.random.Generator, runs: int, naive_seconds: float) -> list:
    images = datasets.load("mnist", "test[:3]").x
    black = np.zeros(images.shape[1:])
    rows = []
    trained = nns.InstrumentedModel(zoo.load("lenet5", "mnist"))
    for i, image in enumerate(images):
        line = f"LeNet-5 (61,706), black to MNIST test {i}"
        rows.append(_row(line, LineWalker(trained), black, image, 3 * runs, naive_seconds))
    every = LineWalker(trained, every_crossing=True)
    line = "the same to test 0, every crossing"
    rows.append(_row(line, every, black, images[0], 3 * runs, naive_seconds))
    wide = nns.InstrumentedModel(_wide_lenet(rng))
    for i, image in enumerate(images):
        line = f"LeNet-5 (107,786), black to MNIST test {i}"
        rows.append(_row(line, LineWalker(wide), black, image, 3 * runs, naive_seconds))
    return rows


def _wide_lenet(rng: np.random.Generator) -> keras.Model:
    """LeNet-5 with "same" convolutions, 107,786 parameters, trained for an epoch here."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    layers = keras.layers
    options = {"activation": "relu"}
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", **options),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, padding="same", **options),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, **options),
            layers.Dense(84, **options),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    train = datasets.load("mnist", "train")
    model.fit(train.x, train.y, batch_size=128, epochs=1, verbose=0)
    return model


def _resnet_rows(path: Path, runs: int, naive_seconds: float) -> list:
    im = nns.InstrumentedModel(keras.models.load_model(path, compile=False))
    data = datasets.load("cifar10", "test[:1]")
    scale = datasets.normalisation("cifar10", "standard")
    image = scale.apply(255 * data.x)[0]
    label = int(data.y[0])
    gradient = im.gradients(image[None], label)[im.input_operation][0]
    walker = LineWalker(im)
    rows = []
    for steps in (0.1, 0.25, 1.0):
        end = image - steps * np.sign(gradient) / scale.std
        line = f"ResNet-20, CIFAR-10 test 0, {steps:g}/255 along FGSM"
        rows.append(_row(line, walker, image, end, max(1, runs // 2), naive_seconds))
    if runs > 1:
        black = scale.apply(np.zeros_like(image))
        line = "ResNet-20, black to CIFAR-10 test 0"
        rows.append(_row(line, walker, black, image, 1, naive_seconds))
    return rows


def _row(
    line: str, walker: LineWalker, q: np.ndarray, r: np.ndarray, runs: int, naive_seconds: float
) -> list[str]:
    partition = walker.line(q, r)
    wall, processor = median_seconds(lambda: walker.line(q, r), runs)
    start = time.process_time()
    share, crossings = naive(walker, q, r, naive_seconds)
    spent = (time.process_time() - start) / share
    print(f"{line}: {len(partition)} parts, {1e3 * wall:.2f} ms", flush=True)
    _check(partition, crossings, share)
    ratio = f"{spent / processor:.0f}"
    return [line, str(len(partition)), _ms(wall), _ms(processor), _ms(spent), f"{share:.3f}", ratio]


def naive(
    walker: LineWalker, q: np.ndarray, r: np.ndarray, seconds: float
) -> tuple[float, list[float]]:
    """Walk every part alone, from one operation to the next, as theorem 3 is written.

    Returns:
        The share of the line that was done in the time, and the ratios found.
    """
    stop = time.monotonic() + seconds
    program = walker.program
    waiting = [(0, {program.input: Curve.straight(q[None], r[None])})]
    ratios = [0.0]
    while waiting and time.monotonic() < stop:
        done, curves = waiting.pop()
        if done == len(program.steps):
            ratios.append(float(curves[program.output].ratio[-1]))
            continue
        step = program.steps[done]
        result = step.transformer(*(curves[name] for name in step.inputs))
        curves = {n: curve for n, curve in curves.items() if n not in step.dead}
        waiting += [(done + 1, part) for part in _single_parts({**curves, step.name: result})]
    return ratios[-1], ratios


def _single_parts(curves: dict[str, Curve]) -> list[dict[str, Curve]]:
    """Return the curves of each part on which none of them bends, the first last."""
    ratios = np.unique(np.concatenate([curve.ratio for curve in curves.values()]))
    if len(ratios) == 2:
        return [curves]
    place = float(ratios[len(ratios) // 2])
    halves = {name: curve.split_at(place) for name, curve in curves.items()}
    first, second = ({name: pair[i] for name, pair in halves.items()} for i in (0, 1))
    return _single_parts(second) + _single_parts(first)


def _check(partition: LinearPartition, ratios: list[float], share: float) -> None:
    """Every bend in the part that the naive recursion did is among its ratios."""
    found = partition.ratios[partition.ratios <= share]
    nearest = np.abs(np.array(ratios)[np.searchsorted(ratios, found - 1e-10) % len(ratios)] - found)
    if len(nearest) and nearest.max() > 1e-8:
        raise SystemExit(f"the naive recursion misses a point by {nearest.max():.3g}")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _write(rows: list, folder: Path, seed: int, runs: int) -> None:
    head = [
        f"Command: `{command_line()}`; seed {seed}, median of {runs} runs or more.",
        f"{datetime.date.today().isoformat()}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, {os.cpu_count()} cores ({_processor()}), load of the machine "
        f"{os.getloadavg()[0]:.1f}.",
    ]
    with atomic_path(folder / "speed.csv") as path, path.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in head)
        csv.writer(file).writerows([COLUMNS, *rows])
    table = ["| " + " | ".join(row) + " |" for row in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    text = "# Speed of exact lines\n\n" + "\n\n".join(head) + "\n\n" + "\n".join(table) + "\n"
    with atomic_path(folder / "speed.md") as path:
        path.write_text(text)
    print(text)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    typer.run(main)
