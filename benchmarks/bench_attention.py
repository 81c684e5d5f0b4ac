"""Speed of slicing a transformer: 6 layers of 256 channels on 128 tokens, random weights.

    python benchmarks/bench_attention.py --output data/results/benchmarks/attention

The forward pass and the walk at θ = 0 are wall-clock times, the walk at θ = 0.3 is CPU time on one
thread, with the capture before it. Times mean something only on a machine with idle cores.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
import typer
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.report.tables import markdown_table, provenance, write_table
from nnslicer_tf.zoo.transformer import AddPositions, encoder_block

BLOCKS, SIZE, TOKENS, WORDS = 6, 256, 128, 1000
THETA = 0.3


def transformer() -> keras.Model:
    """Return a classifier of 128 words."""
    inputs = keras.Input((TOKENS,), dtype="int32")
    x = AddPositions()(layers.Embedding(WORDS, SIZE)(inputs))
    for block in range(BLOCKS):
        x = encoder_block(x, SIZE, heads=4, width=4 * SIZE, dropout=0.0, name=f"block{block}")
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def least(function: Callable[[], object], clock: Callable[[], float], times: int) -> float:
    """Return the least time of several runs after a first one, in seconds."""
    function()
    found = []
    for _ in range(times):
        start = clock()
        function()
        found.append(clock() - start)
    return min(found)


def main(
    output: Annotated[Path | None, typer.Option(help="Files to write, without ending.")] = None,
    samples: Annotated[int, typer.Option(help="Samples that are sliced.", min=1)] = 4,
    times: Annotated[int, typer.Option(help="Runs, of which the least counts.", min=1)] = 3,
) -> None:
    """Measure, print and write."""
    keras.utils.set_random_seed(0)
    model = transformer()
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).integers(0, WORDS, (samples, TOKENS))
    profile = nns.Profile.from_data(im, np.roll(x, 1, axis=1), progress=False)
    forward = least(lambda: model.predict_on_batch(x), time.perf_counter, times)
    zero = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    at_zero = least(lambda: zero.slice(x), time.perf_counter, times)
    some = nns.Slicer(im, profile, THETA, workers=0, progress=False)
    by_exclusion = least(lambda: some.slice(x), time.process_time, times)
    milliseconds = 1e3 / samples
    frame = pd.DataFrame(
        {
            "what": ["forward pass", "slice, θ = 0", f"slice, θ = {THETA:g}"],
            "ms a sample": [t * milliseconds for t in (forward, at_zero, by_exclusion)],
            "forward passes": [1.0, at_zero / forward, by_exclusion / forward],
        }
    )
    print(markdown_table(frame))
    if output is not None:
        sizes = f"{BLOCKS} blocks × {SIZE} channels, {TOKENS} tokens, random weights (seed 0)"
        head = provenance(model=sizes, samples=f"{samples}, the least of {times} runs")
        write_table(output.with_suffix(".csv"), "Slicing a transformer", frame, head)


if __name__ == "__main__":
    typer.run(main)
