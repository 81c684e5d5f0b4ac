"""Faults of Keras and TensorFlow that are worked around, each in one place.

| fault | seen with | workaround |
|---|---|---|
| The weight gradient of a convolution, transposed or not, whose stride exceeds its kernel corrupts memory where oneDNN computes it, if there are few channels; plain `fit` dies of it, too | TensorFlow 2.21 | `convolution_without_gaps` and `transposed_without_gaps`, used wherever weights are differentiated by |
| Threads that run one compiled function at a time share the temporary variables of its large sums; all but one fail | TensorFlow 2.21 | `taking_turns`, around every compiled function |
| TensorFlow counts the functions that Keras makes for new models as tracings of one, and warns of the fifth | Keras 3 | `_environment.without_retracing_warnings`; `backend.compiled_function` |
| Keras compiles a convolution of several groups by XLA, for every shape, as TensorFlow lacks some on CPUs without oneDNN | Keras 3.15 | `grouped_convolution`, where TensorFlow has its gradients |
| `MultiHeadAttention` removes the masks of its inputs | Keras 3.15 | `tracing.attention_takes_masks` |
| `keras.ops.scan` needs results of the carry's structure on TensorFlow | Keras 3 | `backend.over_time` |
| `keras.ops.add` takes `(samples, 1)` for a bias where there are as many channels as samples, and any operand that a batch of one makes look like one | Keras 3.15, TensorFlow | `upstream.add` in all steps, `comparison.free_count` where the model itself runs |
| eagerpy mixes dtypes with a function that NumPy 2 removed | eagerpy 0.30 | labels are int64 in `detection.attacks` |
"""  # noqa: E501

import time
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any

import keras
import numpy as np
from keras import ops


def add(a: Any, b: Any) -> Any:
    """Return a + b; `keras.ops.add` takes `(batch, 1)` for a bias of `batch` channels."""
    return ops.subtract(a, ops.negative(b))


def convolution_without_gaps(
    layer: Any, space: Sequence[int], output_space: Sequence[int], convolve: Callable[..., Any]
) -> Callable[[Any, Any], Any]:
    """Return a layer's convolution that first drops the inputs between its windows.

    Its strides then do not exceed its kernel; shapes are spatial. `convolve` takes an input, a
    kernel and strides, and does not pad.
    """
    paddings, steps, reads = [], [], []
    extents = zip(space, output_space, layer.kernel_size, layer.strides, strict=True)
    for n, out, k, s in extents:
        total = 0 if layer.padding == "valid" else max((out - 1) * s + k - n, 0)
        left = k - 1 if layer.padding == "causal" else total // 2
        paddings.append([left, max(total - left, 0)])
        steps.append(min(s, k))
        reads.append((np.arange(out)[:, None] * s + np.arange(k)).ravel() if s > k else None)

    def apply(x: Any, kernel: Any) -> Any:
        if any(map(any, paddings)):
            x = ops.pad(x, [[0, 0], *paddings, [0, 0]])
        for axis, read in enumerate(reads, 1):
            x = x if read is None else ops.take(x, read, axis=axis)
        return convolve(x, kernel, tuple(steps))

    return apply


def transposed_without_gaps(
    layer: Any, space: Sequence[int], output_space: Sequence[int], convolve: Callable[..., Any]
) -> Callable[[Any, Any], Any]:
    """Return a transposed convolution that adds the gaps' zeros afterwards; arguments as above."""
    steps, reads = [], []
    extents = zip(space, output_space, layer.kernel_size, layer.strides, strict=True)
    for n, out, k, s in extents:
        step = min(s, k)
        full = (n - 1) * step + k  # extent of the result with these strides; 0 comes after it
        left = max((n - 1) * s + k - out, 0) // 2 if layer.padding == "same" else 0
        read = np.arange(out) + left
        if s > k:
            window, tap = np.divmod(read, s)
            read = np.where(tap < k, window * k + tap, full)
        steps.append(step)
        reads.append(np.minimum(read, full))

    def apply(x: Any, kernel: Any) -> Any:
        y = convolve(x, kernel, tuple(steps))
        y = ops.pad(y, [[0, 0], *[[0, 1]] * len(reads), [0, 0]])
        for axis, read in enumerate(reads, 1):
            y = ops.take(y, read, axis=axis)
        return y

    return apply


def grouped_convolution(
    x: Any, kernel: Any, strides: Sequence[int], padding: str, dilation_rate: Any = 1
) -> Any:
    """Return `keras.ops.conv`, on TensorFlow for any number of groups that is not known yet."""
    if keras.backend.backend() != "tensorflow":
        return ops.conv(x, kernel, strides, padding, dilation_rate=dilation_rate)
    import tensorflow as tf

    return tf.nn.convolution(x, kernel, strides, padding.upper(), dilations=dilation_rate)


@cache
def _has_grouped_gradients(rank: int) -> bool:
    """Whether the backend has the gradients of a convolution of groups, with `rank` axes."""
    if keras.backend.backend() != "tensorflow":
        return True
    import tensorflow as tf

    ones = (1,) * rank
    x, kernel = (tf.reshape(pair, (1, *ones, 2)) for pair in ([2.0, 3.0], [5.0, 7.0]))
    try:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = grouped_convolution(x, kernel, ones, "valid")
        found = [value.numpy().ravel().tolist() for value in tape.gradient(y, [x, kernel])]
    except tf.errors.OpError:
        return False
    return found == [[5.0, 7.0], [2.0, 3.0]]


def rows_as_groups(
    convolve: Callable[[Any, Any], Any], rank: int, depthwise: bool = False
) -> Callable[[Any, Any], Any] | None:
    """Return a convolution with a kernel for each row, which computes rows as groups of channels.

    It takes `(rows, …, channels)` and `(rows, *kernel)`, and gives what one row after another
    gives. None if the backend lacks gradients of groups. `rank`: of positions.
    """
    if not (depthwise or _has_grouped_gradients(rank)):
        return None

    def by_rows(x: Any, kernels: Any) -> Any:
        *lead, inputs, outputs = kernels.shape[1:]
        if depthwise:
            joined = ops.reshape(ops.moveaxis(kernels, 0, -3), (*lead, -1, outputs))
            outputs *= inputs
        else:
            joined = ops.reshape(ops.moveaxis(kernels, 0, -2), (*lead, inputs, -1))
        y = convolve(ops.reshape(ops.moveaxis(x, 0, -2), (1, *x.shape[1:-1], -1)), joined)
        return ops.moveaxis(ops.reshape(y, (*y.shape[1:-1], -1, outputs)), -2, 0)

    return by_rows


def taking_turns(
    function: Callable[..., Any], collision: type[Exception], tries: int = 1000
) -> Callable[..., Any]:
    """Return a function whose threads take turns after two of them have collided."""
    turn = Lock()
    collided = False

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal collided
        if not collided:
            try:
                return function(*args, **kwargs)
            except collision:
                collided = True
        with turn:
            for _ in range(tries):  # calls that began before the collision may still run
                try:
                    return function(*args, **kwargs)
                except collision:
                    time.sleep(0.01)
            return function(*args, **kwargs)

    return run
