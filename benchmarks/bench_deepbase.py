"""Streamed inspection beside extracting all behaviours first and scoring then.

    python benchmarks/bench_deepbase.py

Each way runs in a process of its own, one after the other, in turns: `extract first` holds
all activations of the inspected operations, and then computes the same correlations with
NumPy at once; `streamed` and `streamed, early` are `deepbase.inspect`, without and with
early stopping; the last runs again with its behaviours from a disk cache. Peak memory is
that of the whole process, and beside it that of a process that has only loaded model and
data. The figures to read are the ratios.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import _help  # noqa: F401
import numpy as np
import pandas as pd
import typer
from memory import peak_mb
from timing import DATA

import nnslicer_tf as nns
from nnslicer_tf import datasets, deepbase, zoo
from nnslicer_tf.deepbase.hypotheses import Behaviour
from reproduction.deepbase.units import hue
from reproduction.tables import markdown_table, provenance, write_table

UNITS = ("stem_relu", "stage1_block1_relu", "stage2_block1_relu", "stage3_block1_relu")
WAYS = ("nothing", "extract first", "streamed", "streamed, early", "streamed, cached")

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def compare(
    records: Annotated[int, typer.Option(help="CIFAR-10 training images.")] = 3000,
    error: Annotated[float, typer.Option(help="Asked error, with early stopping.")] = 0.05,
    turns: Annotated[int, typer.Option(help="Repetitions of everything.")] = 1,
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Run all ways, and write the table."""
    rows, scores = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for way in WAYS:
                output = Path(folder) / "scores.csv"
                rows.append(_measure(way, records, error, output, Path(folder) / "cache"))
                rows[-1]["turn"] = turn
                if way != "nothing":
                    scores[way] = pd.read_csv(output)
                print(rows[-1], flush=True)
    table = pd.DataFrame(rows).groupby("way", sort=False).median().drop(columns="turn")
    full, early = scores["streamed"], scores["streamed, early"]
    baseline, ours = scores["extract first"]["score"], full["score"]
    apart, stopped = (full["score"] - early["score"]).abs(), early["records"] < records
    head = {
        "network": f"resnet10 of the zoo; {', '.join(UNITS)}: {len(full) // 8} channels",
        "hypotheses": "8 by position: brightness, three hues, four edge directions; correlation",
        "records": f"CIFAR-10 train[:{records}]; asked error {error}, turns {turns}",
        "largest difference from NumPy's scores": f"{(ours - baseline).abs().max():.1e}",
        "pairs stopped early": f"{stopped.mean():.1%}, on average after "
        f"{early['records'].mean():.0f} records, the last after {early['records'].max()}",
        "of these within the asked error of the full score": (
            f"{(apart[stopped] <= error).sum() / apart[stopped].notna().sum():.1%}, all within "
            f"{apart[stopped].max():.3f}; {apart.isna().sum()} pairs are of dead channels"
        ),
    }
    table["MB above nothing"] = table["peak MB"] - table.loc["nothing", "peak MB"]
    table["time / extract first"] = table["seconds"] / table.loc["extract first", "seconds"]
    table = table.reset_index()
    path = (results or DATA / "results" / "deepbase") / "bench"
    write_table(path, "Streaming beside extracting everything first", table, provenance(**head))
    print(head, markdown_table(table), sep="\n")


@app.command(hidden=True)
def run(way: str, records: int, error: float, output: Path, cache: Path) -> None:
    """Run one way in this process; print seconds and peak memory as JSON."""
    data = datasets.load("cifar10", f"train[:{records}]").x
    im = nns.InstrumentedModel(zoo.load("resnet10", "cifar10"))
    im.predict(data[:64], batch_size=64)  # threads and kernels are ready
    start = time.perf_counter()
    if way == "extract first":
        _extract_first(im, data).to_csv(output)
    elif way != "nothing":
        options = {"cache": cache} if way == "streamed, cached" else {}
        if "early" in way:
            options["error"] = error
        _inspect(im, data, **options).to_csv(output)
        if options.get("cache"):  # the run that counts finds everything there
            start = time.perf_counter()
            _inspect(im, data, **options).to_csv(output)
    seconds = time.perf_counter() - start
    print(json.dumps({"way": way, "seconds": seconds, "peak MB": peak_mb()}))


def _measure(way: str, records: int, error: float, output: Path, cache: Path) -> dict:
    arguments = [way, str(records), str(error), str(output), str(cache)]
    command = [sys.executable, __file__, "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _hypotheses() -> dict[str, Behaviour]:
    return {
        "brightness": deepbase.brightness,
        **{f"hue {degrees}": hue(degrees) for degrees in (0, 120, 240)},
        **{f"edge {degrees}": deepbase.edge_direction(degrees) for degrees in (0, 45, 90, 135)},
    }


def _inspect(im: nns.InstrumentedModel, data: np.ndarray, **options: object) -> pd.DataFrame:
    return deepbase.inspect(
        im, data, _hypotheses(), units=UNITS, block_size=64, progress=False, **options
    )


def _extract_first(im: nns.InstrumentedModel, data: np.ndarray) -> pd.DataFrame:
    """Hold all behaviours, then score them: one product an operation."""
    behaviours = im.capture(data, batch_size=64, of=UNITS)
    found = []
    values = {name: hypothesis(data) for name, hypothesis in _hypotheses().items()}
    for name, units in behaviours.items():
        height, width, channels = units.shape[1:]
        u = units.reshape(-1, channels)
        h = np.stack(
            [
                v.reshape(len(data), height, 32 // height, width, 32 // width)
                .mean(axis=(2, 4))
                .ravel()
                for v in values.values()
            ],
            axis=1,
        )
        n = len(u)
        u_mean, h_mean = u.mean(axis=0, dtype=np.float64), h.mean(axis=0, dtype=np.float64)
        products = np.zeros((channels, h.shape[1]))
        u_squares, h_squares = np.zeros(channels), np.zeros(h.shape[1])
        for start in range(0, n, 1 << 18):
            a, b = u[start : start + (1 << 18)] - u_mean, h[start : start + (1 << 18)] - h_mean
            products += a.T @ b
            u_squares += (a * a).sum(axis=0)
            h_squares += (b * b).sum(axis=0)
        with np.errstate(invalid="ignore"):
            score = products / np.sqrt(np.outer(u_squares, h_squares))
        found.append(pd.DataFrame({"group": name, "score": score.ravel(), "records": len(data)}))
    return pd.concat(found, ignore_index=True)


if __name__ == "__main__":
    app()
