"""The exclusion of weighted sums and averages, compiled by Numba.

Arrays are channel-last: values `(batch, positions, channels)` float32. `signs` is
sign(CONTRIB · Δy) of the outputs as int8; neurons where it is 0 are skipped. `taps` are the input
positions `(output positions, taps)` int32, -1 for padding. With `by_sum`, thresholds are relative
to the sum of the local values instead of y.
"""

from collections import namedtuple

import numpy as np

from nnslicer_tf._kernels import compiled as compilation
from nnslicer_tf._kernels.compiled import compiled, inlined, writable
from nnslicer_tf._kernels.exclusion import buffers, excluded_bound, give, workspace
from nnslicer_tf._kernels.vectors import (
    LANES,
    at,
    lane_sum,
    lanes,
    load,
    magnitude,
    pointer,
    read,
    splat,
    store,
    where,
    widen,
    write,
)

# The kernel's memory: windows of Δ, and what windows receive; runs of taps; positions;
# the local values of a sum; `buffers`.
Memory = namedtuple("Memory", "windows received runs rows values single whole double")

# Number of values of windows gathered at a time, so that they stay in the L2 cache.
_BLOCK = 1 << 17


def weighted_sum(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    weights: np.ndarray,
    taps: np.ndarray,
    theta: float,
    each: bool,
    by_sum: bool = False,
    scale: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand a weighted sum (dense, or a convolution of any kind).

    The weights are `(groups, outputs per group, taps · inputs per group)` float32; `scale`, `(batch
    or 1, output positions)`, multiplies the thresholds θ·|y|. Returns CONTRIB of the inputs, shaped
    like `dx`, and of the synapses, `(batch or 1, *weights.shape)`, int32; `each`: by sample.
    """
    width = weights.shape[2]
    if rest := -width % LANES:
        weights = np.pad(weights, ((0, 0), (0, 0), (0, rest)))
    stride = weights.shape[2]
    block = max(1, min(len(taps), _BLOCK // stride))
    memory = Memory(
        windows=np.zeros(block * stride + LANES, np.float32),  # room for a whole vector at the end
        received=np.zeros((block + 1, stride), np.int32),  # may be read beyond the last window
        runs=np.zeros((*taps.shape, 2), np.int32),
        rows=np.zeros(block + 1, np.int32),
        values=np.zeros(stride, np.float32),
        **buffers(width),
    )
    inputs = np.zeros(dx.size + LANES, np.int32)
    synapses = np.zeros((len(dx) if each else 1, *weights.shape), np.int32)
    _weighted_sum(
        writable(signs, np.int8),
        writable(y, np.float32),
        writable(dx, np.float32),
        writable(weights, np.float32),
        writable(taps, np.int32),
        np.ones((1, len(taps))) if scale is None else writable(scale, np.float64),
        theta,
        by_sum,
        width,
        inputs,
        synapses,
        memory,
    )
    return inputs[: dx.size].reshape(dx.shape), synapses[..., :width]


def average(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    taps: np.ndarray,
    theta: float,
    counts: np.ndarray | None = None,
    by_sum: bool = False,
) -> np.ndarray:
    """Expand an average pooling, one channel at a time.

    The local values are Δx / k; instead of dividing, k multiplies the threshold. `counts` is k if
    it differs between samples, `(batch, output positions)`.
    """
    weights = np.ones((dx.shape[2], 1, taps.shape[1]), np.float32)
    if counts is None:
        counts = np.count_nonzero(taps >= 0, axis=1)[None]
    return weighted_sum(signs, y, dx, weights, taps, theta, False, by_sum, counts)[0]


def is_compiled() -> bool:
    """Return whether the exclusion has been compiled, here or on disk."""
    return compilation.is_compiled(_weighted_sum)


@compiled
def _weighted_sum(
    signs, y, dx, weights, taps, scale, theta, by_sum, width, inputs, synapses, memory
):
    """Add the signs that inputs and synapses receive."""
    groups, outputs, stride = weights.shape
    positions, channels = y.shape[1], y.shape[2]
    size, sources = taps.shape[1], dx.shape[2]
    per_group = width // size
    block = memory.received.shape[0] - 1
    work = workspace(memory.single, memory.whole, memory.double)
    windows, received = pointer(memory.windows), pointer(memory.received)
    to_inputs, to_synapses = pointer(inputs), pointer(synapses)
    runs, rows = pointer(memory.runs), pointer(memory.rows)
    v = pointer(memory.values)

    # Source and length of each run of taps with consecutive sources; padding has the source -1.
    # Runs can be longer than one tap if all inputs of a position are read. Entries between the
    # beginnings of runs are meaningless.
    for p in range(positions):
        length, following = np.int32(0), np.int32(-2)
        for t in range(size - 1, -1, -1):
            source = read(pointer(taps), p * size + t)
            goes_on = groups == 1 and following == (source + 1 if source >= 0 else -1)
            length = length + np.int32(1) if goes_on else np.int32(1)
            write(runs, 2 * (p * size + t), source)
            write(runs, 2 * (p * size + t) + 1, length)
            following = source

    for sample in range(dx.shape[0]):
        row = min(sample, synapses.shape[0] - 1)
        scales = at(pointer(scale), min(sample, scale.shape[0] - 1) * positions)
        first_input = sample * dx.shape[1] * sources
        for group in range(groups):
            for start in range(0, positions, block):
                stop = min(start + block, positions)
                first_neuron = (sample * positions + start) * channels + group * outputs
                marks = at(pointer(signs), first_neuron)

                # Gather what the positions at which any output is active read.
                needed = 0
                for p in range(stop - start):
                    any_active = np.int8(0)
                    for o in range(outputs):
                        any_active |= read(marks, p * channels + o)
                    write(rows, needed, np.int32(p))
                    needed += np.int64(any_active != 0)
                first_source = first_input + group * per_group
                place = (at(runs, 2 * start * size), size, first_source, sources, per_group, stride)
                _gather(pointer(dx), dx.size, windows, rows, needed, place)
                for k in range(needed):
                    window = at(received, np.int64(read(rows, k)) * stride)
                    for i in range(0, stride, LANES):
                        store(window, i, splat(np.int32(0)))

                for o in range(outputs):
                    w = at(pointer(weights), (group * outputs + o) * stride)
                    first_synapse = ((row * groups + group) * outputs + o) * stride
                    for k in range(needed):
                        p = np.int64(read(rows, k))
                        sign = np.int32(read(marks, p * channels + o))
                        if sign == 0:
                            continue
                        # The local values; if the sum is below the threshold, none are kept.
                        sums, sizes = splat(0.0), splat(np.float32(0))
                        window = at(windows, p * stride)
                        for i in range(0, stride, LANES):
                            value = load(w, i) * load(window, i)
                            store(v, i, value)
                            sums = sums + widen(value)
                            sizes = sizes + magnitude(value)
                        total = lane_sum(sums)
                        output = read(pointer(y), first_neuron + o + p * channels)
                        threshold = theta * abs(np.float64(output)) * read(scales, start + p)
                        if by_sum:
                            threshold = theta * abs(total)
                        if (threshold > 0) & (abs(total) < threshold):
                            continue
                        # Give to the inputs and synapses of the values that are kept.
                        bound, ties = excluded_bound(
                            v, width, total, lane_sum(sizes), threshold, work
                        )
                        to = at(received, p * stride)
                        give(v, stride, bound, ties, sign, to, at(to_synapses, first_synapse))
                _scatter(received, to_inputs, rows, needed, place)


@inlined
def _gather(dx, readable, windows, rows, needed, place):
    """Copy the values that each of `needed` positions reads, with zeros for padding.

    Runs are copied in whole vectors, or value by value near the end of `dx`; the excess of one
    run is overwritten by the next.
    """
    runs, taps, first_source, sources, per_group, stride = place
    for k in range(needed):
        p = np.int64(read(rows, k))
        window = at(windows, p * stride)
        t = 0
        while t < taps:
            source = np.int64(read(runs, 2 * (p * taps + t)))
            length = np.int64(read(runs, 2 * (p * taps + t) + 1))
            target, size = at(window, t * per_group), length * per_group
            first = first_source + source * sources
            if source < 0:
                for i in range(0, size, LANES):
                    store(target, i, splat(np.float32(0)))
            elif first + size + LANES <= readable:
                for i in range(0, size, LANES):
                    store(target, i, load(dx, first + i))
            else:
                for i in range(size):
                    write(target, i, read(dx, first + i))
            t += length
        store(window, taps * per_group, splat(np.float32(0)))


@inlined
def _scatter(received, inputs, rows, needed, place):
    """Add the contributions that the windows received to the input neurons, in whole vectors."""
    runs, taps, first_source, sources, per_group, stride = place
    for k in range(needed):
        p = np.int64(read(rows, k))
        t = 0
        while t < taps:
            source = np.int64(read(runs, 2 * (p * taps + t)))
            length = np.int64(read(runs, 2 * (p * taps + t) + 1))
            if source >= 0:
                run = at(received, p * stride + t * per_group)
                target, size = at(inputs, first_source + source * sources), length * per_group
                for i in range(0, size, LANES):
                    inside = lanes() < splat(np.int32(size - i))  # zeros beyond its end
                    given = where(inside, load(run, i), splat(np.int32(0)))
                    store(target, i, load(target, i) + given)
            t += length
