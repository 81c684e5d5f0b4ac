"""The definition of an exact line, checked against the model itself run in float64."""

from collections.abc import Callable
from itertools import pairwise

import keras
import numpy as np

from nnslicer_tf.exactline import LinearPartition


def float64_model(build: Callable[[], keras.Model], seed: int = 0) -> keras.Model:
    """Build a model in float64, its weights drawn anew, biases and statistics included."""
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        model = build()
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy(policy)
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        value = rng.normal(size=variable.shape) / np.sqrt(max(1, np.prod(variable.shape[:-1])))
        variable.assign(np.abs(value) + 0.5 if "variance" in variable.path else value)
    return model


def run(model: keras.Model, x: np.ndarray) -> np.ndarray:
    """Return the model's float64 outputs, flattened."""
    out = keras.ops.convert_to_numpy(model(keras.ops.convert_to_tensor(x, dtype="float64")))
    assert out.dtype == np.float64
    return out.reshape(len(x), -1)


def check_partition(partition: LinearPartition, model: keras.Model, atol: float = 1e-10) -> None:
    """Assert that the network is affine on every part, and differs between neighbours."""
    ratios = partition.ratios
    outputs = partition.outputs.reshape(len(ratios), -1)
    assert ratios[0] == 0 and ratios[-1] == 1 and (np.diff(ratios) > 1e-12).all()
    assert ratios.dtype == outputs.dtype == np.float64
    np.testing.assert_allclose(run(model, partition.at(ratios)), outputs, rtol=0, atol=atol)
    for share in (0.5, 0.17, 0.91):
        inside = ratios[:-1] + share * np.diff(ratios)
        expected = run(model, partition.at(inside))
        evaluated = partition.evaluate(inside).reshape(len(inside), -1)
        np.testing.assert_allclose(evaluated, expected, rtol=0, atol=atol)
    for j in range(1, len(ratios) - 1):
        weight = (ratios[j] - ratios[j - 1]) / (ratios[j + 1] - ratios[j - 1])
        chord = (1 - weight) * outputs[j - 1] + weight * outputs[j + 1]
        assert np.abs(outputs[j] - chord).max() > 1e-14 * np.abs(outputs).max()


def kinks_by_subdivision(f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the kinks of a piecewise-linear curve by halving until all looks straight.

    A kink is where the lines through the straight pieces on either side meet.
    """
    shares = np.array([0.0, 0.13, 0.37, 0.61, 0.83, 1.0])
    a, width = np.zeros(1), 1.0
    pieces: list[tuple[float, float, np.ndarray, np.ndarray]] = []
    while len(a) and width > 1e-7:
        t = a[:, None] + shares * width
        y = f(t.ravel()).reshape(*t.shape, -1)
        straight = y[:, :1] + shares[:, None] * (y[:, -1:] - y[:, :1])
        is_straight = np.abs(y - straight).max(axis=(1, 2)) < 1e-12
        for place, value in zip(a[is_straight], y[is_straight], strict=True):
            pieces.append((place, width, value[0], (value[-1] - value[0]) / width))
        width /= 2
        a = np.concatenate([a[~is_straight], a[~is_straight] + width])
    pieces = sorted((piece for piece in pieces if piece[1] > 1e-6), key=lambda piece: piece[0])
    kinks = []
    for (a, _, y, slope), (c, _, z, other) in pairwise(pieces):
        change = other - slope
        i = np.argmax(np.abs(change))
        if np.abs(change[i]) > 1e-6:
            kinks.append((y[i] - slope[i] * a - z[i] + other[i] * c) / change[i])
    return np.array(kinks)


def sums_of_gradients(attributor, x, baseline, target, samples, rule="left"):
    """Integrated gradients by a sum of the model's own gradients at k/samples."""
    weights = np.ones(samples + 1)
    weights[[0, -1]] = {"left": (1, 0), "right": (0, 1), "trapezoid": (0.5, 0.5)}[rule]
    line = LinearPartition(baseline, x, np.array([0.0, 1.0]), np.zeros((2, 0)))
    points = line.at(np.arange(samples + 1) / samples)
    mean = np.tensordot(weights / samples, attributor.gradients(points, target), axes=1)
    return (x - baseline) * mean
