"""Tables of taps, against layers applied to one-hot inputs."""

import numpy as np
import pytest
from keras import ops

from nnslicer_tf.instrument import windows

GEOMETRIES = [
    # space, kernel, strides, dilation
    ((7,), (3,), (1,), (1,)),
    ((8,), (3,), (2,), (1,)),
    ((9,), (2,), (1,), (3,)),
    ((6, 5), (3, 3), (1, 1), (1, 1)),
    ((6, 5), (2, 4), (2, 2), (1, 1)),
    ((7, 6), (3, 2), (1, 1), (2, 3)),
    ((5, 7), (1, 1), (2, 2), (1, 1)),
    ((4, 3, 5), (2, 2, 3), (1, 1, 1), (1, 1, 1)),
    ((4, 3, 5), (2, 3, 1), (2, 2, 2), (1, 1, 1)),
]


def one_hots(space):
    """Return one input for each position, one channel: `(positions, *space, 1)`."""
    positions = int(np.prod(space))
    return np.eye(positions, dtype=np.float32).reshape(positions, *space, 1)


def numbered_kernel(size):
    """A kernel whose weights tell the taps apart: 1, 2, 3, … in row-major order."""
    taps = np.arange(1, np.prod(size) + 1, dtype=np.float32)
    return taps.reshape(*size, 1, 1)


def responses(taps, inputs):
    """The outputs of a numbered kernel for one-hot inputs, by the table: `(inputs, outputs)`."""
    table = np.zeros((inputs, len(taps)))
    for output, row in enumerate(taps):
        for tap, source in enumerate(row):
            if source >= 0:
                table[source, output] += tap + 1
    return table


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("space", "kernel", "strides", "dilation"), GEOMETRIES)
def test_convolution(space, kernel, strides, dilation, padding):
    taps = windows.sliding(space, kernel, strides, padding, dilation)
    x = one_hots(space)
    y = ops.conv(x, numbered_kernel(kernel), strides, padding, dilation_rate=dilation)
    assert taps.shape == (np.prod(y.shape[1:]), np.prod(kernel))
    assert np.array_equal(responses(taps, len(x)), np.reshape(y, (len(x), -1)))


@pytest.mark.parametrize(("size", "dilation"), [(3, 1), (2, 3), (4, 2)])
def test_causal_convolution(size, dilation):
    """Output t reads t, t − d, t − 2d, …: the last tap the present."""
    taps = windows.sliding((6,), (size,), (1,), "causal", (dilation,))
    for t, row in enumerate(taps):
        expected = [t - dilation * (size - 1 - k) for k in range(size)]
        assert row.tolist() == [max(source, -1) for source in expected]


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("space", "kernel", "strides", "dilation"), GEOMETRIES)
def test_pooling(space, kernel, strides, dilation, padding):
    """A maximum is 1 where the window sees the 1; an average tells how many it sees."""
    taps = windows.sliding(space, kernel, strides, padding, (1,) * len(space))
    x = one_hots(space)
    seen = responses(taps, len(x)) > 0
    largest = ops.max_pool(x, kernel, strides, padding)
    assert np.array_equal(seen, np.reshape(largest, (len(x), -1)) == 1)
    average = np.reshape(ops.average_pool(x, kernel, strides, padding), (len(x), -1))
    np.testing.assert_allclose(average, seen / (taps >= 0).sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("space", "kernel", "strides"),
    [
        ((4,), (3,), (1,)),
        ((4,), (3,), (2,)),
        ((3,), (2,), (3,)),
        ((3, 4), (3, 3), (2, 2)),
        ((3, 2), (4, 2), (2, 1)),
        ((3, 2), (4, 5), (2, 2)),
        ((2, 3, 2), (2, 3, 2), (2, 2, 2)),
    ],
)
def test_transposed_convolution(space, kernel, strides, padding):
    x = one_hots(space)
    y = ops.conv_transpose(x, numbered_kernel(kernel), strides, padding)
    taps = windows.transposed(space, kernel, strides, padding, y.shape[1:-1])
    assert np.array_equal(responses(taps, len(x)), np.reshape(y, (len(x), -1)))


@pytest.mark.parametrize(
    ("space", "outputs"), [((7,), (3,)), ((6, 5), (2, 3)), ((5, 4), (4, 4)), ((3, 5), (3, 2))]
)
def test_adaptive_pooling(space, outputs):
    taps = windows.adaptive(space, outputs)
    x = ops.convert_to_tensor(one_hots(space))
    y = np.reshape(ops.adaptive_max_pool(x, outputs), (len(x), -1))
    assert np.array_equal(responses(taps, len(x)) > 0, y == 1)
    average = np.reshape(ops.adaptive_average_pool(x, outputs), (len(x), -1))
    np.testing.assert_allclose(average, (y == 1) / (taps >= 0).sum(axis=1), rtol=1e-6)


def test_windows_over_everything_and_over_one_position():
    assert windows.whole((2, 3)).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert windows.pointwise(3).tolist() == [[0], [1], [2]]
