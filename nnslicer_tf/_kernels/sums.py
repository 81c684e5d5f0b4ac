"""The exclusion of weighted sums and averages, compiled by Numba.

Arrays are channel-last: values `(batch, positions, channels)`. `signs` is
sign(CONTRIB · Δy) of the output neurons as int8; neurons where it is 0 are skipped.
"""

from collections import namedtuple

import numpy as np
from numba import boolean, float32, float64, int8, int32, types

from nnslicer_tf._kernels.compiled import argument, compiled, inlined
from nnslicer_tf._kernels.exclusion import (
    TOGETHER,
    aligned,
    buffers,
    excluded_bound,
    first_division,
    give_amounts,
    workspace,
)
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

# Pointers to the data of the sums that are processed together.
Batch = namedtuple("Batch", ["values", "magnitudes", "totals", "thresholds", "waiting"])

# Number of values of windows gathered at a time, so that they stay in the L2 cache.
_BLOCK = 1 << 17
# Number of local values of sums that are processed together, so that they stay in the L1 cache.
_TOGETHER_VALUES = 1 << 13


def weighted_sum(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    weights: np.ndarray,
    taps: np.ndarray,
    theta: float,
    each: bool,
    by_sum: bool = False,
    changes: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand a weighted sum (dense, or a convolution of any kind).

    Args:
        signs: `(batch, output positions, outputs)` int8.
        y: Values of the outputs, of the same shape, float32.
        dx: Δ of the inputs, `(batch, input positions, inputs)` float32.
        weights: `(groups, outputs per group, taps · inputs per group)` float32.
        taps: Input position of each tap, `(output positions, taps)` int32, -1: padding.
        theta: Threshold θ.
        each: Keep the synapses of each sample separate.
        by_sum: Whether thresholds are relative to the sum of the local values instead of y.
        changes: For amounts: changes of the inputs from the reference, shaped like `dx`; `signs`
            are then multipliers, float32.

    Returns:
        CONTRIB of the inputs, shaped like `dx`, and of the synapses,
        `(batch or 1, groups, outputs per group, taps · inputs per group)`, both int32. For
        amounts: the multipliers of the inputs, and the synapses' amounts, both float32.
    """
    scale = np.ones((1, len(taps)))
    return _expand(signs, y, dx, weights, taps, scale, (theta, by_sum), each, changes)


def average(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    taps: np.ndarray,
    theta: float,
    counts: np.ndarray | None = None,
    by_sum: bool = False,
    changes: np.ndarray | None = None,
) -> np.ndarray:
    """Expand an average pooling; shapes as in `weighted_sum`, one channel at a time.

    The local values are Δx / k; instead of dividing, k multiplies the threshold. `counts` is k if
    it differs between samples, `(batch, output positions)`.
    """
    weights = np.ones((dx.shape[2], 1, taps.shape[1]), np.float32)
    if counts is None:
        counts = np.count_nonzero(taps >= 0, axis=1)[None]
    scale = np.ascontiguousarray(counts, np.float64)
    if changes is not None:
        signs = signs / scale[..., None].astype(np.float32)
    inputs, _ = _expand(signs, y, dx, weights, taps, scale, (theta, by_sum), False, changes)
    return inputs


def is_compiled() -> bool:
    """Return whether the exclusion is compiled in this process."""
    return _weighted_sum.ready


def _expand(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    weights: np.ndarray,
    taps: np.ndarray,
    scale: np.ndarray,
    threshold: tuple[float, bool],
    each: bool,
    changes: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand sums whose thresholds are θ·|y| times a scale `(batch or 1, positions)`.

    `threshold` is θ, and whether it is relative to the sum of the local values instead of y.
    """
    amounts = changes is not None
    width = weights.shape[2]
    if rest := -width % LANES:
        weights = np.pad(weights, ((0, 0), (0, 0), (0, rest)))
    stride = weights.shape[2]
    block = max(1, min(len(taps), _BLOCK // stride))
    together = max(1, min(TOGETHER, _TOGETHER_VALUES // stride))
    nothing = np.zeros((1, 1, 1), np.float32)

    def results(dtype: type, wanted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return zeros for the inputs, with room for a whole vector, synapses and windows."""
        samples = len(dx) if each else 1
        inputs: np.ndarray = np.zeros(dx.size + LANES if wanted else LANES, dtype)
        synapses = np.zeros((samples, *weights.shape) if wanted else (1, 1, 1, 1), dtype)
        # May be read beyond the last window.
        return inputs, synapses, aligned((block + 1, stride) if wanted else (1, LANES), dtype)

    inputs, synapses, received = results(np.int32, not amounts)
    of_amounts = results(np.float32, amounts)
    _weighted_sum(
        np.ascontiguousarray(signs != 0 if amounts else signs, np.int8),
        np.ascontiguousarray(y, np.float32),
        np.ascontiguousarray(dx, np.float32),
        np.ascontiguousarray(weights, np.float32),
        np.ascontiguousarray(taps, np.int32),
        scale,
        *threshold,
        width,
        block,
        inputs,
        synapses,
        aligned(block * stride + LANES, np.float32),  # room to copy a whole vector at the end
        received,
        np.zeros((*taps.shape, 2), np.int32),
        np.zeros(2 * (block + 1) + TOGETHER, np.int32),
        aligned((together + 1, stride), np.float32),
        np.zeros((2, TOGETHER), np.float64),
        *buffers(width),
        amounts,
        np.ascontiguousarray(signs, np.float32) if amounts else nothing,
        nothing if changes is None else np.ascontiguousarray(changes, np.float32),
        aligned(block * stride + LANES if amounts else LANES, np.float32),
        *of_amounts,
    )
    if amounts:
        inputs, synapses = of_amounts[0], of_amounts[1] * weights
    return inputs[: dx.size].reshape(dx.shape), synapses[..., :width]


@compiled(
    (
        argument(int8, 3),
        argument(float32, 3),
        argument(float32, 3),
        argument(float32, 3),
        argument(int32, 2),
        argument(float64, 2),
        float64,
        boolean,
        types.intp,
        types.intp,
        int32[::1],
        int32[:, :, :, ::1],
        float32[::1],
        int32[:, ::1],
        int32[:, :, ::1],
        int32[::1],
        float32[:, ::1],
        float64[:, ::1],
        float32[::1],
        int32[::1],
        float64[::1],
        boolean,
        argument(float32, 3),
        argument(float32, 3),
        float32[::1],
        float32[::1],
        float32[:, :, :, ::1],
        float32[:, ::1],
    )
)
def _weighted_sum(
    signs,
    y,
    dx,
    weights,
    taps,
    scale,
    theta,
    by_sum,
    width,
    block,
    inputs,
    synapses,
    windows,
    received,
    runs,
    active,
    values,
    moments,
    single,
    whole,
    double,
    amounts,
    multipliers,
    changes,
    change_windows,
    input_amounts,
    synapse_amounts,
    received_amounts,
):
    groups, outputs, stride = weights.shape
    positions, channels = y.shape[1], y.shape[2]
    sources = dx.shape[2]
    per_group = width // taps.shape[1]
    _find_runs(pointer(taps), taps.shape[0], taps.shape[1], groups == 1, pointer(runs))
    rows_kept = synapse_amounts.shape[0] if amounts else synapses.shape[0]
    work = workspace(single, whole, double)
    listed = pointer(active)
    rows = at(listed, block + 1)
    together = values.shape[0] - 1
    batch = Batch(
        values=pointer(values),
        magnitudes=at(pointer(values), together * stride),
        totals=pointer(moments),
        thresholds=at(pointer(moments), TOGETHER),
        waiting=at(listed, active.shape[0] - TOGETHER),
    )
    read_by, given = pointer(windows), pointer(received)
    read_changes, given_amounts = pointer(change_windows), pointer(received_amounts)
    for sample in range(dx.shape[0]):
        row = min(sample, rows_kept - 1)
        scales = at(pointer(scale), min(sample, scale.shape[0] - 1) * positions)
        given_y = (pointer(y), scales, theta, by_sum)
        first_input = sample * dx.shape[1] * sources
        for group in range(groups):
            first_source = first_input + group * per_group
            for start in range(0, positions, block):
                stop = min(start + block, positions)
                first_sign = (sample * positions + start) * channels + group * outputs
                marks = (at(pointer(signs), first_sign), channels, outputs)
                needed = _list_read(marks, stop - start, rows)
                block_runs = at(pointer(runs), 2 * start * taps.shape[1])
                place = (block_runs, taps.shape[1], first_source, sources, per_group, stride)
                _gather(pointer(dx), dx.size, read_by, rows, needed, place)
                if amounts:
                    _gather(pointer(changes), dx.size, read_changes, rows, needed, place)
                    _clear(given_amounts, np.float32(0), rows, needed, stride)
                else:
                    _clear(given, np.int32(0), rows, needed, stride)
                for o in range(outputs):
                    found = _list_active(marks, o, rows, needed, listed)
                    w = at(pointer(weights), (group * outputs + o) * stride)
                    first_kept = ((row * groups + group) * outputs + o) * stride
                    neurons = (first_sign + o, channels, start)
                    for k in range(0, found, together):
                        size = min(together, found - k)
                        places = at(listed, k)
                        held = _form_all(w, read_by, stride, neurons, places, size, given_y, batch)
                        for j in range(held):
                            waiting = first_division(
                                at(batch.values, j * stride),
                                width,
                                read(batch.totals, j),
                                read(batch.magnitudes, j),
                                read(batch.thresholds, j),
                                work,
                                j,
                            )
                            write(batch.waiting, j, np.int32(waiting))
                        for j in range(held):
                            v = at(batch.values, j * stride)
                            bound, ties = excluded_bound(
                                v,
                                width,
                                read(batch.thresholds, j),
                                np.int64(read(batch.waiting, j)),
                                work,
                                j,
                            )
                            p = np.int64(read(places, j))
                            if amounts:
                                m = read(pointer(multipliers), first_sign + p * channels + o)
                                to, window = p * stride, at(read_changes, p * stride)
                                kept = at(pointer(synapse_amounts), first_kept)
                                give_amounts(v, stride, bound, ties, m, w, at(given_amounts, to))
                                give_amounts(v, stride, bound, ties, m, window, kept)
                            else:
                                sign = np.int32(read(marks[0], p * channels + o))
                                kept = at(pointer(synapses), first_kept)
                                _give(v, stride, bound, ties, sign, at(given, p * stride), kept)
                if amounts:
                    zero = np.float32(0)
                    _scatter(given_amounts, pointer(input_amounts), zero, rows, needed, place)
                else:
                    _scatter(given, pointer(inputs), np.int32(0), rows, needed, place)


@inlined
def _find_runs(taps, positions, width, joined, runs):
    """Write (source, number of taps) where a run of taps with consecutive sources begins.

    Padding has the source -1. Runs can be longer than one tap if all inputs of a position are
    read (`joined`). Entries between the beginnings of runs are meaningless.
    """
    for p in range(positions):
        length, following = np.int32(0), np.int32(-2)
        for t in range(width - 1, -1, -1):
            source = read(taps, p * width + t)
            goes_on = joined and following == (source + 1 if source >= 0 else -1)
            length = length + np.int32(1) if goes_on else np.int32(1)
            write(runs, 2 * (p * width + t), source)
            write(runs, 2 * (p * width + t) + 1, length)
            following = source


@inlined
def _list_read(marks, positions, rows):
    """List the positions of a block at which any output is active; return their number."""
    signs, channels, outputs = marks
    found = 0
    for p in range(positions):
        any_active = np.int8(0)
        for o in range(outputs):
            any_active |= read(signs, p * channels + o)
        write(rows, found, np.int32(p))
        found += np.int64(any_active != 0)
    return found


@inlined
def _list_active(marks, o, rows, size, active):
    """List those of `size` positions at which an output is active; return their number."""
    signs, channels, _ = marks
    found = 0
    for k in range(size):  # without a branch, because active ones cannot be predicted
        p = read(rows, k)
        write(active, found, p)
        found += np.int64(read(signs, p * channels + o) != 0)
    return found


@inlined
def _clear(received, zero, rows, needed, stride):
    """Set the windows of the needed positions to zero."""
    for k in range(needed):
        p = np.int64(read(rows, k))
        for i in range(0, stride, LANES):
            store(received, p * stride + i, splat(zero))


@inlined
def _gather(dx, size, windows, rows, needed, place):
    """Copy the values that each of `needed` positions reads, with zeros for padding.

    Runs are copied in whole vectors; the excess at the end of one is overwritten by the next.
    """
    runs, taps, first_source, sources, per_group, stride = place
    for k in range(needed):
        p = np.int64(read(rows, k))
        window = at(windows, p * stride)
        t = 0
        while t < taps:
            source = np.int64(read(runs, 2 * (p * taps + t)))
            length = np.int64(read(runs, 2 * (p * taps + t) + 1))
            target = at(window, t * per_group)
            if source >= 0:
                first = first_source + source * sources
                _copy(at(dx, first), target, length * per_group, size - first)
            else:
                for i in range(0, length * per_group, LANES):
                    store(target, i, splat(np.float32(0)))
            t += length
        store(window, taps * per_group, splat(np.float32(0)))


@inlined
def _copy(source, target, size, readable):
    """Copy a run in whole vectors, or value by value if too few values can be read."""
    if size + LANES <= readable:
        for i in range(0, size, LANES):
            store(target, i, load(source, i))
    else:
        for i in range(size):
            write(target, i, read(source, i))


@inlined
def _scatter(received, inputs, zero, rows, needed, place):
    """Add the contributions that the windows received to the input neurons."""
    runs, taps, first_source, sources, per_group, stride = place
    for k in range(needed):
        p = np.int64(read(rows, k))
        t = 0
        while t < taps:
            source = np.int64(read(runs, 2 * (p * taps + t)))
            length = np.int64(read(runs, 2 * (p * taps + t) + 1))
            if source >= 0:
                given = at(received, p * stride + t * per_group)
                target = at(inputs, first_source + source * sources)
                _add(given, target, length * per_group, zero)
            t += length


@inlined
def _add(source, target, size, zero):
    """Add a run in whole vectors, with zeros beyond its end."""
    for i in range(0, size, LANES):
        inside = lanes() < splat(np.int32(size - i))
        given = where(inside, load(source, i), splat(zero))
        store(target, i, load(target, i) + given)


@inlined
def _form_all(weights, windows, stride, neurons, places, size, given_y, batch):
    """Compute the sums of some positions, keeping only those that are not excluded entirely.

    Args:
        weights: Pointer to an output's weights.
        windows: Pointer to the windows of the block.
        stride: Length of a window.
        neurons: (index of the output at the block's first position, total number of outputs, the
            block's first position).
        places: Positions in the block; on return, those of the sums that are kept.
        size: Number of positions.
        given_y: (values of the outputs, scales of the positions, θ, whether θ is relative to the
            sum instead).
        batch: `Batch`.

    Returns:
        The number of sums that are kept.
    """
    first, channels, start = neurons
    y, scales, theta, by_sum = given_y
    held = 0
    for k in range(size):
        p = np.int64(read(places, k))
        v = at(batch.values, held * stride)
        total, magnitudes = _form(weights, at(windows, p * stride), stride, v)
        threshold = theta * abs(np.float64(read(y, first + p * channels)))
        threshold *= read(scales, start + p)
        if by_sum:
            threshold = theta * abs(total)
        write(batch.totals, held, total)
        write(batch.magnitudes, held, magnitudes)
        write(batch.thresholds, held, threshold)
        write(places, held, np.int32(p))
        held += 1 - np.int64((threshold > 0) & (abs(total) < threshold))
    return held


@inlined
def _form(weights, window, size, v):
    """Write the local values w·Δx; return their sum and the sum of their magnitudes."""
    total, magnitudes = splat(0.0), splat(np.float32(0))
    for i in range(0, size, LANES):
        value = load(weights, i) * load(window, i)
        store(v, i, value)
        total = total + widen(value)
        magnitudes = magnitudes + magnitude(value)
    return lane_sum(total), lane_sum(magnitudes)


@inlined
def _give(v, size, bound, ties, sign, received, synapses):
    """Add signs to the inputs and synapses of the kept values."""
    above, below = splat(bound), splat(-bound)
    plus, none = splat(sign), splat(np.int32(0))
    for i in range(0, size, LANES):
        value = load(v, i)
        given = where(value > above, plus, none) - where(value < below, plus, none)
        store(received, i, load(received, i) + given)
        store(synapses, i, load(synapses, i) + given)
    i = size
    while ties > 0 and bound > 0:
        i -= 1
        value = read(v, i)
        if abs(value) == bound:
            given = sign if value > 0 else -sign
            write(received, i, read(received, i) + given)
            write(synapses, i, read(synapses, i) + given)
            ties -= 1
