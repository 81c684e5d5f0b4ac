"""A causal language model of GPT-2's size (124 million parameters, random weights), two threads.

    python benchmarks/bench_language_model.py

Prints the time and the peak memory of wrapping, of a profile of four prompts of 32 tokens, and of
the decisive heads behind the next token of one prompt. Needs keras-hub.
"""

import os
import resource
import time
from contextlib import contextmanager
from typing import Annotated

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "2")

import _help  # noqa: F401
import keras
import keras_hub
import numpy as np
import typer

import nnslicer_tf as nns

TOKENS = 32


@contextmanager
def timed(what):
    """Print how long the block took."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {wall:.1f} s ({cpu:.1f} s of processor), peak {memory:.1f} GiB", flush=True)


def main(small: Annotated[bool, typer.Option(help="A tiny model.")] = False) -> None:
    """Wrap a language model, profile it, and find the decisive heads behind a token."""
    layers, width, heads, vocabulary = (2, 32, 4, 100) if small else (12, 768, 12, 50257)
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=vocabulary,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=64,
        dropout=0.0,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    print(f"{model.count_params():,} parameters")
    rng = np.random.default_rng(0)
    ids = rng.integers(1, vocabulary, (4, TOKENS)).astype("int32")
    prompts = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    with timed("wrap"):
        whole = nns.InstrumentedModel(model, {name: (TOKENS,) for name in prompts})
    with timed("the model of the next token"):
        im = whole.at_position(-1)
    with timed("profile of 4 prompts"):
        profile = nns.Profile.from_data(im, prompts, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    with timed("decisive heads of one prompt"):
        one = {name: value[:1] for name, value in prompts.items()}
        print(slicer.decisive(one, level="head", others=0))


if __name__ == "__main__":
    typer.run(main)
