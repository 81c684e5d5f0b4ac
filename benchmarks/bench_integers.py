"""Whether counts are the same integers everywhere, and what the bound for rounding changes.

    python benchmarks/bench_integers.py

Each configuration (instruction set, threads, batch size) profiles and slices in a process of its
own and is compared with the first. A deviation next to the end of its bound, as next to 0, can
fall on either side: "samples that differ" have any other integer, with the bound and without it.
"synapses touched" are those whose count the bound changes, of all that contribute.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from timing import DATA

from reproduction.tables import provenance, write_table

CONFIGURATIONS = (  # oneDNN's instruction set, Numba's processor, threads, samples together
    ("DEFAULT", "", 2, 64),
    ("DEFAULT", "", 1, 7),
    ("AVX2", "haswell", 2, 64),
    ("AVX2", "haswell", 1, 1),
)
NETWORKS = ("lenet5", "resnet10", "text_transformer")


def measured(network: str, theta: float, samples: int, together: int) -> dict:
    """Return digests of each sample's integers, with the bound and without, and what it touches."""
    import nnslicer_tf as nns
    from nnslicer_tf import datasets, zoo
    from nnslicer_tf.datasets import texts

    parts = "train[:500]", f"test[:{samples}]"
    if network == "text_transformer":
        data, x = (texts.vocabulary().encode(texts.load("sst2", part).text) for part in parts)
    else:
        name = "mnist" if network == "lenet5" else "cifar10"
        data, x = (datasets.load(name, part).x for part in parts)
    im = nns.InstrumentedModel(zoo.load(network))
    profile = nns.Profile.from_data(im, data, batch_size=together, progress=False)
    bounded, plain = (nns.Slicer(im, profile, theta, workers=0, progress=False) for _ in range(2))
    vars(plain)["_rounding"] = {}
    digests: dict[str, list[str]] = {"bound": [], "no bound": []}
    synapses = touched = 0
    for start in range(0, samples, together):
        both = [slicer.slice_each(x[start : start + together]) for slicer in (bounded, plain)]
        for name, slices in zip(digests, both, strict=True):
            for one in slices:
                arrays = (*one.neurons.values(), *one.synapses.values())
                whole = hashlib.sha256(b"".join(values.tobytes() for values in arrays))
                digests[name].append(whole.hexdigest())
        a, b = (slices.matrix for slices in both)
        synapses, touched = synapses + b.count_nonzero(), touched + (a != b).nnz
    return {"digests": digests, "synapses": int(synapses), "touched": int(touched)}


def in_new_process(configuration: tuple, network: str, theta: float, samples: int) -> dict:
    """Return what a process of a configuration measures."""
    instructions, processor, threads, together = configuration
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    environment |= dict.fromkeys(names, str(threads))
    if processor:
        environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    code = (
        f"import sys, json; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
        "from bench_integers import measured\n"
        f"print(json.dumps(measured{(network, theta, samples, together)!r}))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(
    samples: Annotated[int, typer.Option(help="Samples of each network.")] = 64,
    networks: Annotated[str, typer.Option(help="Networks.")] = ",".join(NETWORKS),
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Measure, print and write the table; rows of other networks stay."""
    path = (results or DATA / "results" / "benchmarks") / "integers"
    table = path.with_suffix(".csv")
    old = pd.read_csv(table, comment="#").to_dict("records") if table.exists() else []
    rows = [row for row in old if row["network"] not in networks.split(",")]
    for network in networks.split(","):
        for theta in (0.0, 0.3):
            first: dict = {}
            for configuration in CONFIGURATIONS:
                found = in_new_process(configuration, network, theta, samples)
                first = first or found["digests"]
                instructions, _, threads, together = configuration
                rows.append(
                    {"network": network, "theta": theta, "instructions": instructions}
                    | {"threads": threads, "together": together, "samples": samples}
                    | {
                        f"samples that differ, {name}": sum(
                            a != b for a, b in zip(digests, first[name], strict=True)
                        )
                        for name, digests in found["digests"].items()
                    }
                    | {"synapses": found["synapses"], "synapses touched": found["touched"]}
                )
                print(rows[-1], flush=True)
    write_table(path, "Equal integers", pd.DataFrame(rows), provenance(seed=0))


if __name__ == "__main__":
    typer.run(main)
