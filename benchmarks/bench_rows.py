"""Memory and time of one slice for each sample, with rows that are written as they come.

    python benchmarks/bench_rows.py

Each line is measured in a process of its own, on LeNet-5 and MNIST, all synapses: counts at
θ = 0.3, and amounts without workers. "peak MB" is the most that the process held, "workers" the
most that a Ray worker held.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from timing import DATA

from reproduction.tables import provenance, write_table

MEASURED = """
import json, sys, tempfile, threading, time
from pathlib import Path
sys.path.insert(0, {here!r})
from bench_slicing import load
from memory import peak_mb
import nnslicer_tf as nns

def held_by_workers():
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::"):
                pids.append(path.parent.name)
        except OSError:  # it has ended
            pass
    return max(map(peak_mb, pids), default=0)

def watch():
    while not finished.wait(0.5):
        most[0] = max(most[0], held_by_workers())

model, x = load("lenet")
im = nns.InstrumentedModel(model)
profile = nns.Profile.from_data(im, x, progress=False)
options = dict(workers={workers}, contribution={kind!r}, progress=False)
slicer = nns.Slicer(im, profile, **options)
slicer.slice_each(x[:8])
finished, most = threading.Event(), [0]
thread = threading.Thread(target=watch)
thread.start()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    stream = (x[i % len(x)] for i in range({samples}))
    slicer.slice_each(stream, operations=(), folder=folder)
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in Path(folder).rglob("*")) / 1e6
finished.set()
thread.join()
print(json.dumps(dict(seconds=seconds, files=size, peak=peak_mb(), workers=most[0])))
"""


def main(
    numbers: Annotated[str, typer.Option(help="Numbers of samples.")] = "1000,50000",
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Measure, print and write the table."""
    rows = []
    for kind, workers in (("count", 0), ("count", 2), ("amount", 0)):
        for samples in map(int, numbers.split(",")):
            given = {"kind": kind, "workers": workers, "samples": samples}
            code = MEASURED.format(here=str(Path(__file__).parent), **given)
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            names = {
                "ms a sample": 1000 * found["seconds"] / samples,
                "files MB": found["files"],
                "peak MB": found["peak"],
                "of a worker, MB": found["workers"],
            }
            rows.append({"contribution": kind} | given | names)
            print(rows[-1], flush=True)
    frame = pd.DataFrame(rows).drop(columns="kind").round(3)
    path = (results or DATA / "results" / "benchmarks") / "rows"
    write_table(path, "Rows of many samples", frame, provenance(seed=0))


if __name__ == "__main__":
    typer.run(main)
