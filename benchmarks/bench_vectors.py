"""Compare the slicing kernels with a plain loop that Numba compiles: the same integers, how fast.

    python benchmarks/bench_vectors.py

The plain loop sorts the local values of each neuron and adds them up, without explicit vectors,
pointers or brackets. Both get the same calls, recorded in one walk at θ = 0.3. Times are of the
thread's processor, of the second of two calls.
"""

import time
from collections.abc import Callable

import _help  # noqa: F401
import numpy as np
import typer
from bench_slicing import THETA, load
from numba import njit

import nnslicer_tf as nns
from nnslicer_tf._kernels import sums

SAMPLES = {"lenet": 8, "resnet10": 1}


@njit(nogil=True)
def plain_sum(signs, y, dx, weights, taps, theta, each):
    """Do what `sums.weighted_sum` does, with the same arguments."""
    groups, outputs, width = weights.shape
    per_group = width // taps.shape[1]
    inputs = np.zeros(dx.shape, np.int32)
    synapses = np.zeros((len(dx) if each else 1, groups, outputs, width), np.int32)
    window, v = np.empty(width, np.float32), np.empty(width, np.float32)
    for sample, p, g in np.ndindex(len(dx), len(taps), groups):
        for t in range(taps.shape[1]):
            for c in range(per_group):
                source = taps[p, t]
                value = dx[sample, source, g * per_group + c] if source >= 0 else 0
                window[t * per_group + c] = value
        for o in range(outputs):
            sign = signs[sample, p, g * outputs + o]
            if sign == 0:
                continue
            for i in range(width):
                v[i] = weights[g, o, i] * window[i]
            threshold = theta * abs(np.float64(y[sample, p, g * outputs + o]))
            order = np.argsort(np.abs(v), kind="mergesort")
            prefix, first = 0.0, 0
            for k in range(width):
                prefix += v[order[k]]
                if abs(prefix) < threshold:
                    first = k + 1
            for i in order[first:]:
                if v[i] != 0:
                    given = sign if v[i] > 0 else -sign
                    synapses[sample if each else 0, g, o, i] += given
                    source = taps[p, i // per_group]
                    if source >= 0:
                        inputs[sample, source, g * per_group + i % per_group] += given
    return inputs, synapses


def main() -> None:
    """Print both times and their ratio for LeNet and ResNet10."""
    for name, samples in SAMPLES.items():
        model, x = load(name)
        im = nns.InstrumentedModel(model)
        profile = nns.Profile.from_data(im, x, progress=False)
        kernel, calls = sums.weighted_sum, []

        def recording(*arguments: object, kernel=kernel, calls=calls, **options: object) -> object:
            calls.append(arguments)
            return kernel(*arguments, **options)

        sums.weighted_sum = recording
        try:
            nns.Slicer(im, profile, theta=THETA, progress=False).slice(x[:samples])
        finally:
            sums.weighted_sum = kernel
        seconds = {"kernels": 0.0, "plain": 0.0}
        same = True
        for call in calls:
            arrays = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in call]
            seconds["kernels"] += (first := _timed(kernel, arrays))[0]
            seconds["plain"] += (second := _timed(plain_sum, arrays[:7]))[0]
            same &= all(map(np.array_equal, first[1], second[1]))
        ms = {what: 1e3 * time / samples for what, time in seconds.items()}
        ratio = ms["plain"] / ms["kernels"]
        print(
            f"{name}: {ms['kernels']:.2f} ms a sample, plain {ms['plain']:.2f} ms: {ratio:.1f} ×,"
        )
        print("the same integers" if same else "DIFFERENT integers")


def _timed(function: Callable, arguments: list) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    function(*arguments)
    start = time.thread_time()
    result = function(*arguments)
    return time.thread_time() - start, result


if __name__ == "__main__":
    typer.run(main)
