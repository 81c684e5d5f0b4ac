"""Time exact integrated gradients: by one walk back along the line, and part by part.

    python benchmarks/bench_gradients.py

The line is from black to a test image, the logit the label's. Part by part, the backend computes
the gradient at the middle of every part, in float64 and in batches; it is stopped after `--parts`
parts, and its time for the whole line estimated from them. "line" is the partition alone, "forward
passes" one float32 pass through the backend of as many images as there are parts, estimated in the
same way. Times are the median of several runs on the processor, of all threads: on a machine
that others use, that is what the work costs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import _help  # noqa: F401
import keras
import numpy as np
import pandas as pd
import typer
from timing import DATA, median_seconds

from nnslicer_tf import datasets, zoo
from nnslicer_tf.exactline import Attributor
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline.networks import trained_networks
from reproduction.tables import provenance, write_table


def main(
    parts: Annotated[int, typer.Option(min=1, help="Most parts to compute one by one.")] = 1_024,
    runs: Annotated[int, typer.Option(min=1)] = 3,
    quick: Annotated[bool, typer.Option(help="LeNet-5 only, once.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Time the integrated gradients of one test image in each network."""
    folder = results or DATA / "results" / "exactline"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, dataset, model in _networks(quick):
        rows.append(_row(name, dataset, model, parts, 1 if quick else runs))
        print(rows[-1], flush=True)
        table = pd.DataFrame(rows)
        title = "Speed of exact integrated gradients"
        head = provenance() | {"runs": 1 if quick else runs}
        write_table(folder / "gradients_speed.csv", title, table, head, "")


def _networks(quick: bool) -> Iterator[tuple[str, str, keras.Model]]:
    yield "LeNet-5", "mnist", zoo.load("lenet5", "mnist")
    if not quick:
        for (network, dataset, method), model in trained_networks().items():
            if (dataset, method) == ("cifar10", "normal"):
                yield network, dataset, model


def _row(name: str, dataset: str, model: keras.Model, most: int, runs: int) -> dict[str, object]:
    attributor = Attributor(InstrumentedModel(model))
    walker = attributor.walker
    data = datasets.load(dataset, "test[:1]")
    x, target = data.x[0], int(data.y[0])
    black = np.zeros(x.shape)
    line = walker.line(black, x)
    some = line.midpoints[np.linspace(0, len(line) - 1, min(most, len(line))).astype(int)]
    scale = len(line) / len(some)
    images = np.float32(line.at(some))
    exact = attributor.exact(x, black, target)
    change = line.outputs[-1, target] - line.outputs[0, target]
    walk = median_seconds(lambda: attributor.exact(x, black, target), runs)[1]
    each = scale * median_seconds(lambda: attributor.gradients(line.at(some), target), runs)[1]
    forward = scale * median_seconds(lambda: model.predict_on_batch(images), runs)[1]
    return {
        "network": name,
        "parts": len(line),
        "line_ms": 1e3 * median_seconds(lambda: walker.line(black, x), runs)[1],
        "walk_ms": 1e3 * walk,
        "part_by_part_ms": 1e3 * each,
        "part_by_part_share": 1 / scale,
        "part_by_part / walk": each / walk,
        "forward passes / walk": forward / walk,
        "completeness_error": abs(exact.sum() - change),
    }


if __name__ == "__main__":
    typer.run(main)
