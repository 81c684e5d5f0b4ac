"""The inner loops of the backward walk, compiled by Numba and cached on disk.

Arrays are channel-last: values `(batch, positions, channels)`. `signs` is
sign(CONTRIB · Δy) of the output neurons as int8; where it is 0 a neuron costs nothing.
"""

import numpy as np
from numba import njit

from nnslicer_tf.slicing._exclusion import excluded_up_to, workspace

__all__ = ["average", "maximum", "merge", "tap_means", "weighted_sum"]

# Windows gathered at a time, in values: they stay in the second-level cache.
_BLOCK = 1 << 17


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
    buffers = (
        np.empty((block, width), np.float32),
        np.empty((block, width), np.int32),
        np.empty(width, np.float32),
    )
    space = workspace(width)
    _weighted_sum(signs, y, dx, weights, taps, theta, inputs, synapses, buffers, space)
    return inputs, synapses


@njit(cache=True, nogil=True)
def _weighted_sum(signs, y, dx, weights, taps, theta, inputs, synapses, buffers, space):
    windows, received, v = buffers
    groups, outputs, _ = weights.shape
    block = windows.shape[0]
    for sample in range(dx.shape[0]):
        kept = synapses[min(sample, synapses.shape[0] - 1)]
        for group in range(groups):
            first_output = group * outputs
            for start in range(0, taps.shape[0], block):
                stop = min(start + block, taps.shape[0])
                if not _any_active(signs[sample], start, stop, first_output, outputs):
                    continue
                _gather(dx[sample], taps, group, start, stop, windows)
                received[: stop - start] = 0
                for o in range(outputs):
                    for p in range(start, stop):
                        sign = signs[sample, p, first_output + o]
                        if sign != 0:
                            threshold = theta * abs(np.float64(y[sample, p, first_output + o]))
                            _expand_sum(
                                weights[group, o],
                                windows[p - start],
                                threshold,
                                sign,
                                v,
                                received[p - start],
                                kept[group, o],
                                space,
                            )
                _scatter(received, taps, group, start, stop, inputs[sample])


@njit(cache=True, nogil=True)
def _any_active(signs, start, stop, first_output, outputs):
    for p in range(start, stop):
        for o in range(first_output, first_output + outputs):
            if signs[p, o] != 0:
                return True
    return False


@njit(cache=True, nogil=True)
def _gather(dx, taps, group, start, stop, windows):
    """Copy the inputs that each output position reads, padding as zeros."""
    inputs = windows.shape[1] // taps.shape[1]
    first = group * inputs
    for p in range(start, stop):
        for t in range(taps.shape[1]):
            window = windows[p - start, t * inputs : (t + 1) * inputs]
            source = taps[p, t]
            if source < 0:
                window[:] = 0
            else:
                window[:] = dx[source, first : first + inputs]


@njit(cache=True, nogil=True)
def _scatter(received, taps, group, start, stop, contributions):
    """Add what the windows received to the input neurons."""
    inputs = received.shape[1] // taps.shape[1]
    first = group * inputs
    for p in range(start, stop):
        for t in range(taps.shape[1]):
            source = taps[p, t]
            if source >= 0:
                for c in range(inputs):
                    contributions[source, first + c] += received[p - start, t * inputs + c]


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _form(weights, x, v):
    """Write the local values w·Δx; return their sum and the mean of their magnitudes."""
    total = 0.0
    magnitudes = np.float32(0)
    for i in range(v.size):
        value = weights[i] * x[i]
        v[i] = value
        total += np.float64(value)
        magnitudes += abs(value)
    return total, magnitudes / np.float32(v.size)


@njit(cache=True, nogil=True)
def _expand_sum(weights, x, threshold, sign, v, received, kept, space):
    """Give each kept input and synapse of one neuron its sign."""
    total, mean_magnitude = _form(weights, x, v)
    if threshold <= 0:
        _keep_all(v, sign, received, kept)
        return
    if abs(total) < threshold:
        return
    bound, position, collected = excluded_up_to(v, total, mean_magnitude, threshold, space)
    if collected < 0:
        _keep_all(v, sign, received, kept)
        return
    members = space[0]
    for k in range(collected):
        i = members[k]
        magnitude = abs(v[i])
        if magnitude > bound or (magnitude == bound and i >= position):
            g = sign if v[i] > 0 else -sign
            received[i] += g
            kept[i] += g


@njit(cache=True, nogil=True)
def _keep_all(v, sign, received, kept):
    for i in range(v.size):
        g = sign * (np.int32(v[i] > 0) - np.int32(v[i] < 0))
        received[i] += g
        kept[i] += g


def average(
    signs: np.ndarray, y: np.ndarray, dx: np.ndarray, taps: np.ndarray, theta: float
) -> np.ndarray:
    """Expand an average pooling; shapes as in `weighted_sum`, one channel at a time.

    The local values are Δx / k; k multiplies the threshold instead.
    """
    inputs = np.zeros(dx.shape, np.int32)
    _average(signs, y, dx, taps, theta, inputs, workspace(taps.shape[1]))
    return inputs


@njit(cache=True, nogil=True)
def _average(signs, y, dx, taps, theta, inputs, space):
    v = np.empty(taps.shape[1], np.float32)
    sources = np.empty(taps.shape[1], np.int32)
    received = np.empty(taps.shape[1], np.int32)
    ignored = np.empty(taps.shape[1], np.int32)
    ones = np.ones(taps.shape[1], np.float32)
    for sample in range(dx.shape[0]):
        for p in range(taps.shape[0]):
            count = 0
            for t in range(taps.shape[1]):
                if taps[p, t] >= 0:
                    sources[count] = taps[p, t]
                    count += 1
            for c in range(dx.shape[2]):
                sign = signs[sample, p, c]
                if sign == 0:
                    continue
                for k in range(count):
                    v[k] = dx[sample, sources[k], c]
                received[:count] = 0
                threshold = theta * abs(np.float64(y[sample, p, c])) * count
                _expand_sum(
                    ones[:count],
                    v[:count],
                    threshold,
                    sign,
                    v[:count],
                    received[:count],
                    ignored[:count],
                    space,
                )
                for k in range(count):
                    inputs[sample, sources[k], c] += received[k]


def maximum(
    signs: np.ndarray, y: np.ndarray, x: np.ndarray, dx: np.ndarray, taps: np.ndarray
) -> np.ndarray:
    """Expand a maximum pooling: every input equal to the output gets the sign."""
    inputs = np.zeros(dx.shape, np.int32)
    _maximum(signs, y, x, dx, taps, inputs)
    return inputs


@njit(cache=True, nogil=True)
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
                        inputs[sample, source, c] += sign * (np.int32(d > 0) - np.int32(d < 0))


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


@njit(cache=True, nogil=True)
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
            received[order[k], n] = signs[n] * (np.int32(v > 0) - np.int32(v < 0))


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


@njit(cache=True, nogil=True)
def _tap_sums(x, taps, sums):
    for sample in range(x.shape[0]):
        for p in range(taps.shape[0]):
            for t in range(taps.shape[1]):
                source = taps[p, t]
                if source >= 0:
                    for c in range(x.shape[2]):
                        sums[sample, t, c] += x[sample, source, c]
