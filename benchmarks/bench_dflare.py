"""Many searches together beside one after the other.

    python benchmarks/bench_dflare.py digits_cnn-dynamic
    python benchmarks/bench_dflare.py lenet1 resnet20 --models <folder>

Both ways, and DiffChaser, run on the same machine in the same process, in turns, so that
other load falls on all of them; the figures to read are the ratios, and the processor time,
which other load changes little. Alone, a Keras model is asked for one image at a time, as a
program without batching would do.
"""

import datetime
import os
import time
from pathlib import Path
from typing import Annotated

import _help  # noqa: F401
import numpy as np
import pandas as pd
import timing  # noqa: F401  # finds `reproduction`
import typer

from nnslicer_tf._files import atomic_path
from nnslicer_tf.dflare import (
    DFlare,
    ModelPair,
    SearchAlgorithm,
    as_classifier,
    find_deviations,
)
from reproduction.dflare.diffchaser import DiffChaser
from reproduction.dflare.pairs import load_pair, seed_images


def main(
    pairs: Annotated[list[str], typer.Argument(help="Names of pairs.")],
    models: Annotated[
        Path, typer.Option(help="Folder of the published models.", envvar="DIFFCHASER_MODELS")
    ] = Path("."),
    seeds: Annotated[int, typer.Option(help="Seeds searched together.")] = 500,
    alone: Annotated[int, typer.Option(help="Of these, seeds searched alone.")] = 100,
    diffchaser: Annotated[int, typer.Option(help="Of these, seeds for DiffChaser.")] = 10,
    turns: Annotated[int, typer.Option(help="Repetitions of everything.")] = 3,
    work: Path = Path("runs/dflare"),
    results: Annotated[Path | None, typer.Option(help="A CSV file to write.")] = None,
) -> None:
    """Measure milliseconds a seed, together and alone."""
    rows = []
    for name in pairs:
        pair = load_pair(name, models, work / "pairs")
        images = seed_images(pair, seeds, 0)
        models = (pair.load_original(), as_classifier(pair.load_compressed()))
        asked = ModelPair(*models, pair.preprocess)
        ways = {
            "together": (_together, images, DFlare()),
            "alone": (_alone, images[:alone], DFlare()),
            "diffchaser": (_together, images[:diffchaser], DiffChaser()),
        }
        _together(asked, images[:40], DFlare(), 99)  # warm up: tracing, thread pools
        _alone(asked, images[:5], DFlare(), 99)
        for turn in range(turns):
            row = {"pair": name, "turn": turn, "load": os.getloadavg()[0]}
            for way, (run, batch, search) in ways.items():
                wall, processor = time.perf_counter(), time.process_time()
                run(asked, batch, search, turn)
                row[f"{way}_ms"] = (time.perf_counter() - wall) / len(batch) * 1000
                row[f"{way}_cpu_ms"] = (time.process_time() - processor) / len(batch) * 1000
            row["alone / together"] = row["alone_ms"] / row["together_ms"]
            row["diffchaser / together"] = row["diffchaser_ms"] / row["together_ms"]
            rows.append(row)
            print(row, flush=True)
    _write(pd.DataFrame(rows), results, seeds, alone, diffchaser)


def _together(pair: ModelPair, batch: np.ndarray, search: SearchAlgorithm, rng: int) -> None:
    find_deviations(pair, batch, search=search, rng=rng, progress=False)


def _alone(pair: ModelPair, batch: np.ndarray, search: SearchAlgorithm, rng: int) -> None:
    alone = pair.one_by_one()
    for image in batch:
        find_deviations(alone, image[None], search=search, rng=rng, progress=False)


def _write(table: pd.DataFrame, path: Path | None, seeds: int, alone: int, diffchaser: int) -> None:
    means = table.drop(columns="turn").groupby("pair", sort=False).median()
    print(f"medians over the turns, milliseconds a seed:\n{means.to_string(float_format='%.1f')}")
    if path is None:
        return
    head = (
        f"# python benchmarks/bench_dflare.py {' '.join(means.index)}; seeds: {seeds} together, "
        f"{alone} alone, {diffchaser} for DiffChaser; {os.cpu_count()} cores; "
        f"{datetime.date.today().isoformat()}\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(head + table.to_csv(index=False, float_format="%.4g"))


if __name__ == "__main__":
    typer.run(main)
