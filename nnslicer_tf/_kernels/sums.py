"""The inner loops of the backward walk, compiled by Numba and cached on disk.

Arrays are channel-last: values `(batch, positions, channels)`. `signs` is
sign(CONTRIB · Δy) of the output neurons as int8; where it is 0 a neuron costs nothing.
"""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled
from nnslicer_tf._kernels.exclusion import excluded, workspace

# Windows gathered at a time, in values: they stay in the second-level cache.
_BLOCK = 1 << 17
# Values of a sparse row that are collected before they are copied to their place.
_RUN = 1024


def weighted_sum(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    weights: np.ndarray,
    taps: np.ndarray,
    theta: float,
    each: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Expand a weighted sum (dense, or a convolution of any kind).

    Args:
        signs: `(batch, output positions, outputs)` int8.
        y: Values of the outputs, of the same shape, float32.
        dx: Δ of the inputs, `(batch, input positions, inputs)` float32.
        weights: `(groups, outputs per group, taps · inputs per group)` float32.
        taps: Input position of each tap, `(output positions, taps)` int32, -1: padding.
        theta: Threshold θ.
        each: Keep the synapses of every sample apart.

    Returns:
        CONTRIB of the inputs, shaped as `dx`, and of the synapses,
        `(batch or 1, groups, outputs per group, taps · inputs per group)`, both int32.
    """
    inputs = np.zeros(dx.shape, np.int32)
    synapses = np.zeros((len(dx) if each else 1, *weights.shape), np.int32)
    width = weights.shape[2]
    block = max(1, min(len(taps), _BLOCK // width))
    windows = np.empty((block, width), np.float32)
    received = np.empty((block, width), np.int32)
    _weighted_sum(
        *(signs, y, dx, weights, taps, theta, inputs, synapses, windows, received),
        *workspace(width),
    )
    return inputs, synapses


# Arrays come one by one, not in tuples, which cost some 100 ns a neuron.
@compiled()
def _weighted_sum(
    signs,
    y,
    dx,
    weights,
    taps,
    theta,
    inputs,
    synapses,
    windows,
    received,
    v,
    bits,
    members,
    magnitudes,
    order,
    ends,
    sums,
):
    groups, outputs, width = weights.shape
    block = windows.shape[0]
    for sample in range(dx.shape[0]):
        row = min(sample, synapses.shape[0] - 1)
        for group in range(groups):
            first_output = group * outputs
            for start in range(0, taps.shape[0], block):
                stop = min(start + block, taps.shape[0])
                if not _any_active(signs, sample, start, stop, first_output, outputs):
                    continue
                _gather(dx, sample, taps, group, start, stop, windows)
                received[: stop - start] = 0
                for o in range(outputs):
                    for p in range(start, stop):
                        sign = np.int32(signs[sample, p, first_output + o])
                        if sign == 0:
                            continue
                        total, mean_magnitude = _form(weights, group, o, windows, p - start, v)
                        threshold = theta * abs(np.float64(y[sample, p, first_output + o]))
                        if 0 < threshold > abs(total):
                            continue
                        whole, begin, end = -1, 0, 0
                        if threshold > 0:
                            whole, begin, end = excluded(
                                v,
                                bits,
                                width,
                                total,
                                mean_magnitude,
                                threshold,
                                members,
                                magnitudes,
                                order,
                                ends,
                                sums,
                            )
                        place = (p - start, row, group, o)
                        if whole < 0:
                            _give_all(v, width, sign, received, synapses, place)
                        else:
                            _give(order, 0, whole, v, sign, received, synapses, place)
                            _give(order, begin, end, v, sign, received, synapses, place)
                _scatter(received, taps, group, start, stop, inputs, sample)


@compiled()
def _any_active(signs, sample, start, stop, first_output, outputs):
    for p in range(start, stop):
        for o in range(first_output, first_output + outputs):
            if signs[sample, p, o] != 0:
                return True
    return False


@compiled()
def _gather(dx, sample, taps, group, start, stop, windows):
    """Copy the inputs that each output position reads, padding as zeros."""
    inputs = windows.shape[1] // taps.shape[1]
    first = group * inputs
    for p in range(start, stop):
        for t in range(taps.shape[1]):
            source = taps[p, t]
            if source < 0:
                for c in range(inputs):
                    windows[p - start, t * inputs + c] = 0
            else:
                for c in range(inputs):
                    windows[p - start, t * inputs + c] = dx[sample, source, first + c]


@compiled()
def _scatter(received, taps, group, start, stop, contributions, sample):
    """Add what the windows received to the input neurons."""
    inputs = received.shape[1] // taps.shape[1]
    first = group * inputs
    for p in range(start, stop):
        for t in range(taps.shape[1]):
            source = taps[p, t]
            if source >= 0:
                for c in range(inputs):
                    contributions[sample, source, first + c] += received[p - start, t * inputs + c]


@compiled(fastmath={"reassoc", "nsz"})
def _form(weights, group, o, windows, p, v):
    """Write the local values w·Δx; return their sum and the mean of their magnitudes."""
    total = 0.0
    magnitudes = np.float32(0)
    for i in range(weights.shape[2]):
        value = weights[group, o, i] * windows[p, i]
        v[i] = value
        total += np.float64(value)
        magnitudes += abs(value)
    return total, magnitudes / np.float32(weights.shape[2])


@compiled(inline="always")
def _give(order, begin, end, v, sign, received, synapses, place):
    """Add signs to the inputs and synapses at `order[begin:end]`."""
    window, row, group, o = place
    for k in range(begin, end):
        i = order[k]
        g = sign * _sign(v[i])
        received[window, i] += g
        synapses[row, group, o, i] += g


@compiled(inline="always")
def _give_all(v, n, sign, received, synapses, place):
    window, row, group, o = place
    for i in range(n):
        g = sign * _sign(v[i])
        received[window, i] += g
        synapses[row, group, o, i] += g


@compiled(inline="always")
def _sign(value):
    return np.int32(value > 0) - np.int32(value < 0)


def average(
    signs: np.ndarray, y: np.ndarray, dx: np.ndarray, taps: np.ndarray, theta: float
) -> np.ndarray:
    """Expand an average pooling; shapes as in `weighted_sum`, one channel at a time.

    The local values are Δx / k; k multiplies the threshold instead.
    """
    inputs = np.zeros(dx.shape, np.int32)
    _average(signs, y, dx, taps, theta, inputs, *workspace(taps.shape[1]))
    return inputs


@compiled()
def _average(signs, y, dx, taps, theta, inputs, v, bits, members, magnitudes, order, ends, sums):
    sources = np.empty(taps.shape[1], np.int32)
    for p in range(taps.shape[0]):
        count = 0
        for t in range(taps.shape[1]):
            if taps[p, t] >= 0:
                sources[count] = taps[p, t]
                count += 1
        v[count:] = 0
        for sample in range(dx.shape[0]):
            for c in range(dx.shape[2]):
                sign = np.int32(signs[sample, p, c])
                if sign == 0:
                    continue
                total = 0.0
                magnitude = np.float32(0)
                for k in range(count):
                    v[k] = dx[sample, sources[k], c]
                    total += np.float64(v[k])
                    magnitude += abs(v[k])
                threshold = theta * abs(np.float64(y[sample, p, c])) * count
                if 0 < threshold > abs(total):
                    continue
                whole, begin, end = -1, 0, 0
                if threshold > 0:
                    whole, begin, end = excluded(
                        v,
                        bits,
                        count,
                        total,
                        magnitude / np.float32(count),
                        threshold,
                        members,
                        magnitudes,
                        order,
                        ends,
                        sums,
                    )
                if whole < 0:
                    for k in range(count):
                        inputs[sample, sources[k], c] += sign * _sign(v[k])
                    continue
                for k in range(whole):
                    inputs[sample, sources[order[k]], c] += sign * _sign(v[order[k]])
                for k in range(begin, end):
                    inputs[sample, sources[order[k]], c] += sign * _sign(v[order[k]])


def maximum(
    signs: np.ndarray, y: np.ndarray, x: np.ndarray, dx: np.ndarray, taps: np.ndarray
) -> np.ndarray:
    """Expand a maximum pooling: every input equal to the output gets the sign."""
    inputs = np.zeros(dx.shape, np.int32)
    _maximum(signs, y, x, dx, taps, inputs)
    return inputs


@compiled()
def _maximum(signs, y, x, dx, taps, inputs):
    for sample in range(x.shape[0]):
        for p in range(taps.shape[0]):
            for t in range(taps.shape[1]):
                source = taps[p, t]
                if source < 0:
                    continue
                for c in range(x.shape[2]):
                    sign = signs[sample, p, c]
                    if sign != 0 and x[sample, source, c] == y[sample, p, c]:
                        d = dx[sample, source, c]
                        inputs[sample, source, c] += sign * _sign(d)


def merge(signs: np.ndarray, y: np.ndarray, values: np.ndarray, theta: float) -> np.ndarray:
    """Expand an addition, subtraction or multiplication of a few tensors.

    Args:
        signs: `(neurons,)` int8.
        y: Values of the outputs, `(neurons,)` float32.
        values: Local values, `(tensors, neurons)` float64.
        theta: Threshold θ.

    Returns:
        What each input receives, `(tensors, neurons)` int32.
    """
    received = np.zeros(values.shape, np.int32)
    _merge(signs, y, values, theta, received)
    return received


@compiled()
def _merge(signs, y, values, theta, received):
    tensors, neurons = values.shape
    order = np.empty(tensors, np.int64)
    for n in range(neurons):
        if signs[n] == 0:
            continue
        threshold = theta * abs(np.float64(y[n]))
        for k in range(tensors):
            place = k
            while place > 0 and abs(values[order[place - 1], n]) > abs(values[k, n]):
                order[place] = order[place - 1]
                place -= 1
            order[place] = k
        total = 0.0
        excluded = 0
        for k in range(tensors):
            total += values[order[k], n]
            if abs(total) < threshold:
                excluded = k + 1
        for k in range(excluded, tensors):
            v = values[order[k], n]
            received[order[k], n] = signs[n] * _sign(v)


def tap_means(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Return the mean over output positions of what each tap reads, padding as 0.

    Args:
        x: `(batch, input positions, inputs)` float32 or float64.
        taps: `(output positions, taps)` int32.

    Returns:
        `(batch, taps, inputs)` float64.
    """
    means = np.zeros((len(x), taps.shape[1], x.shape[2]))
    _tap_sums(x, taps, means)
    means /= len(taps)
    return means


@compiled()
def _tap_sums(x, taps, sums):
    for sample in range(x.shape[0]):
        for p in range(taps.shape[0]):
            for t in range(taps.shape[1]):
                source = taps[p, t]
                if source >= 0:
                    for c in range(x.shape[2]):
                        sums[sample, t, c] += x[sample, source, c]


@compiled()
def copy_nonzero(
    block: np.ndarray,
    first_column: int,
    places: np.ndarray,
    data: np.ndarray,
    indices: np.ndarray,
) -> None:
    """Append the non-zero values of each row, and their columns, to sparse rows.

    Args:
        block: `(rows, columns)`, whole numbers of any dtype.
        first_column: Column of the sparse matrix where the block begins.
        places: Where the next value of each row goes; moved on.
        data: Values of the sparse matrix, int32.
        indices: Columns of the sparse matrix, int32.
    """
    # Written without a branch a value: which ones are zero cannot be predicted.
    values, columns = np.empty(_RUN + 1, np.int32), np.empty(_RUN + 1, np.int32)
    for row in range(block.shape[0]):
        place = places[row]
        for start in range(0, block.shape[1], _RUN):
            found = 0
            for column in range(start, min(start + _RUN, block.shape[1])):
                value = np.int32(block[row, column])
                values[found], columns[found] = value, first_column + column
                found += value != 0
            data[place : place + found] = values[:found]
            indices[place : place + found] = columns[:found]
            place += found
        places[row] = place
