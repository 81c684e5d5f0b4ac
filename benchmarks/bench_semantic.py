"""Time the similarities of all prefixes of a layer: incrementally, anew, and naively.

    python benchmarks/bench_semantic.py

`scan` is `nns.semantic.slicer.prefix_similarities` with matrix products on one thread;
`one matrix` a single landscape M = F·Fᵀ of the whole layer; `anew` computes the landscape of
every prefix by a matrix product, as Algorithm 1 reads; `naive` computes every entry of every
landscape on its own (Equation 1), timed on some entries and multiplied. Times are medians, on
this processor's threads where nothing else is said.
"""

import time
from pathlib import Path
from typing import Annotated

import _help  # noqa: F401
import numpy as np
import pandas as pd
import typer
from timing import DATA, median_seconds

from nnslicer_tf._environment import one_thread_a_product
from nnslicer_tf.semantic.slicer import prefix_similarities, through_samples
from reproduction.neusemslice.landscapes import landscape, similarity
from reproduction.tables import provenance, write_table

CASES = {
    "dense, 512 wide": (300, 1, 512),
    "dense, 512 wide, many samples": (800, 1, 512),
    "convolution, 64 filters of 16×16": (150, 256, 64),
}


def main(
    runs: Annotated[int, typer.Option(min=1)] = 9,
    seed: int = 0,
    results: Annotated[Path | None, typer.Option(help="Folder of the table.")] = None,
) -> None:
    """Time every case, and check that all ways agree."""
    rng = np.random.default_rng(seed)
    rows = []
    for name, shape in CASES.items():
        features = rng.random(shape, np.float32)
        order = rng.permutation(shape[-1])
        with one_thread_a_product():
            one = median_seconds(lambda f=features, o=order: prefix_similarities(f, o), runs)[0]
        every = median_seconds(lambda f=features, o=order: prefix_similarities(f, o), runs)[0]
        by_rank = median_seconds(lambda f=features, o=order: through_samples(f, o), runs)[0]
        start = time.perf_counter()
        found = anew(features, order)
        again = time.perf_counter() - start
        np.testing.assert_allclose(prefix_similarities(features, order), found, rtol=1e-8)
        entry = median_seconds(lambda f=features: f[0].ravel() @ f[1].ravel(), 2_000)[0] / 2
        naive = entry * shape[0] ** 2 * shape[-1]
        rows.append(
            {
                "case": name,
                "samples": shape[0],
                "neurons": shape[-1],
                "one matrix s": median_seconds(lambda f=features: landscape(f), runs)[0],
                "scan s": one,
                "scan on all BLAS threads s": every,
                "scan by rank-one terms s": by_rank,
                "anew s": again,
                "naive s (estimated)": naive,
                "anew / scan": again / one,
                "naive / scan": naive / one,
            }
        )
        print(rows[-1], flush=True)
    folder = results or DATA / "results" / "benchmarks"
    write_table(
        folder / "semantic",
        "Similarities of all prefixes",
        pd.DataFrame(rows),
        provenance(seed=seed),
    )


def anew(features: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the similarity of every prefix, each landscape from the start."""
    whole = landscape(features)
    return np.array(
        [similarity(landscape(features[..., order[:k]]), whole) for k in range(1, len(order) + 1)]
    )


if __name__ == "__main__":
    typer.run(main)
