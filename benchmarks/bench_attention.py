"""Speed and memory of slicing transformers, beside a convolutional network in the same run.

    python benchmarks/bench_attention.py --output data/results/benchmarks/attention

A transformer of 6 layers × 256 channels on 128 tokens, ViT-S on images of 224 × 224 (both with
random weights, seed 0), and ResNet10. The forward pass and the walk at θ = 0 are wall-clock times,
their ratio is also one of CPU time, which what else the machine does disturbs less;
the walk at θ = 0.3 is CPU time on one thread, relative to the sum: with random weights values
differ little from their means, and relative to the output all would be excluded. Local values are
those of weighted sums, products and softmax. Times mean something only on a machine with idle
cores. Peak memory is that of a process of its own that makes a profile of two samples and slices;
of a few samples, and of many more.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import numpy as np
import pandas as pd
import timing  # noqa: F401  # finds `reproduction`
import typer
from keras import layers
from memory import peak_mb

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._kernels import products, sums
from nnslicer_tf.slicing._exclusion_walk import walk
from nnslicer_tf.zoo.models import AddPositions, encoder_block
from reproduction.tables import markdown_table, provenance, write_table

THETA = 0.3
WORDS, TOKENS = 1000, 128
SAMPLES = {"ResNet10": 8, "6 × 256, 128 tokens": 4, "ViT-S, 224 × 224": 1}
MEMORY_SAMPLES = {"6 × 256, 128 tokens": (16, 128), "ViT-S, 224 × 224": (6, 40)}
_KERNELS = ((sums, "weighted_sum"), (products, "product_sum"), (products, "softmax"))


def transformer() -> keras.Model:
    """Return a classifier of 128 words with six layers of 256 channels."""
    inputs = keras.Input((TOKENS,), dtype="int32")
    x = AddPositions()(layers.Embedding(WORDS, 256)(inputs))
    for block in range(6):
        x = encoder_block(x, 256, heads=4, width=1024, dropout=0.0, name=f"block{block}")
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def vit_small() -> keras.Model:
    """Return ViT-S/16 for images of 224 × 224 (Touvron et al., ICML 2021), pooled by the mean."""
    inputs = keras.Input((224, 224, 3))
    x = layers.Reshape((-1, 384))(layers.Conv2D(384, 16, 16)(inputs))
    x = AddPositions()(x)
    for block in range(12):
        x = encoder_block(x, 384, heads=6, width=1536, dropout=0.0, name=f"block{block}")
    x = layers.LayerNormalization()(x)
    return keras.Model(inputs, layers.Dense(1000)(layers.GlobalAveragePooling1D()(x)))


def load(name: str, samples: int) -> tuple[keras.Model, np.ndarray]:
    """Return a model and samples to slice."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    if name == "ResNet10":
        return zoo.load("resnet10"), datasets.load("cifar10", f"train[:{samples}]").x
    if name.startswith("ViT"):
        coarse = rng.random((samples, 4, 4, 3), np.float32)  # images that differ
        return vit_small(), np.repeat(np.repeat(coarse, 56, axis=1), 56, axis=2)
    return transformer(), rng.integers(0, WORDS, (samples, TOKENS))


def least(function: Callable[[], object], clock: Callable[[], float], times: int) -> float:
    """Return the least time of several runs after a first one, in seconds."""
    function()
    found = []
    for _ in range(times):
        start = clock()
        function()
        found.append(clock() - start)
    return min(found)


def count_values(function: Callable[[], object]) -> int:
    """Return how many local values the kernels form while a function runs."""
    counted = 0
    originals = [getattr(module, name) for module, name in _KERNELS]

    def counting(kernel: Callable, name: str) -> Callable:
        def run(signs: np.ndarray, *arguments: object, **options: object) -> object:
            nonlocal counted
            active = int(np.count_nonzero(signs))
            if name == "weighted_sum":
                width = arguments[2].shape[2]
            elif name == "product_sum":
                width = 2 * arguments[1][0].shape[-1]
            else:
                width = signs.shape[-1]
            counted += active * width
            return kernel(signs, *arguments, **options)

        return run

    try:
        for (module, name), original in zip(_KERNELS, originals, strict=True):
            setattr(module, name, counting(original, name))
        function()
    finally:
        for (module, name), original in zip(_KERNELS, originals, strict=True):
            setattr(module, name, original)
    return counted


def measure(name: str, times: int) -> dict[str, float | str]:
    """Return the figures of one model."""
    count = SAMPLES[name]
    model, x = load(name, count + 3)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, batch_size=1, progress=False)
    x = x[:count]
    forward = least(lambda: model.predict_on_batch(x), time.perf_counter, times)
    zero = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    at_zero = least(lambda: zero.slice(x), time.perf_counter, times)
    cpu_forward = least(lambda: model.predict_on_batch(x), time.process_time, times)
    cpu_zero = least(lambda: zero.slice(x), time.process_time, times)
    some = nns.Slicer(im, profile, THETA, workers=0, progress=False, relative_to="sum")
    plan = some.plan("predicted")
    captured = dict(im.capture(x, of=plan.captured))

    def backward() -> object:
        return walk(plan, captured, each=False)

    by_exclusion = least(backward, time.thread_time, times)
    values = count_values(backward)
    return {
        "model": name,
        "samples": count,
        "forward ms": 1e3 * forward / count,
        "θ = 0 ms": 1e3 * at_zero / count,
        "θ = 0, forward passes": at_zero / forward,
        "the same in CPU time": cpu_zero / cpu_forward,
        f"θ = {THETA:g} ms": 1e3 * by_exclusion / count,
        "local values": values / count,
        "ns a value": 1e9 * by_exclusion / values,
    }


def slice_many(name: str, samples: int, theta: float) -> None:
    """Slice so many samples and print the process's peak memory in MB."""
    model, x = load(name, 2)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, batch_size=1, progress=False)
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False, relative_to="sum")
    slicer.slice(x[i % len(x)] for i in range(samples))
    print(peak_mb())


def peak_memory(name: str) -> dict[str, float | str]:
    """Return peak memory for few and for many samples, at both θ."""
    row: dict[str, float | str] = {"model": name}
    few, many = MEMORY_SAMPLES[name]
    for theta in (0.0, THETA):
        for samples in (few, many):
            code = (
                f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
                f"from bench_attention import slice_many; slice_many({name!r}, {samples}, {theta})"
            )
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
            peak = float(run.stdout.decode().splitlines()[-1])
            row[f"θ = {theta:g}, {'few' if samples == few else 'many'} MB"] = peak
    return {**row, "few, many samples": f"{few}, {many}"}


def main(
    output: Annotated[Path | None, typer.Option(help="Files to write, without ending.")] = None,
    times: Annotated[int, typer.Option(help="Runs, of which the least counts.", min=1)] = 3,
    model: Annotated[str, typer.Option(help="One transformer, by the start of its name.")] = "",
    what: Annotated[str, typer.Option(help="speed, memory or both.")] = "both",
) -> None:
    """Measure, print and write."""
    chosen = [name for name in MEMORY_SAMPLES if name.startswith(model)]
    tables = []
    if what != "memory":
        speed = pd.DataFrame([measure(name, times) for name in ("ResNet10", *chosen)])
        tables.append(("", "Slicing transformers, and ResNet10 beside them", speed))
    if what != "speed":
        held = pd.DataFrame([peak_memory(name) for name in chosen])
        tables.append(("-memory", "Peak memory of slicing transformers", held))
    for _, _, frame in tables:
        print(markdown_table(frame))
    if output is not None:
        head = provenance(weights="random (seed 0), but ResNet10's", runs=f"least of {times}")
        for ending, title, frame in tables:
            write_table(output.with_name(f"{output.name}{ending}.csv"), title, frame, head)


if __name__ == "__main__":
    typer.run(main)
