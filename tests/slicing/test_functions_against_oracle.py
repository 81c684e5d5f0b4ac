"""Counts and amounts through functions of `keras.ops`, in random graphs, against brute force."""

import math

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from support import scalar_oracle as so
from support.scalar_oracle import Node, add, along, apply, each, multiply, products, subtract, total

EXTENTS = {"t": 3, "s": 3, "c": 4, "d": 4}
SQUARE = np.random.default_rng(6).normal(size=(4, 4)).astype(np.float32)
# Neighbours of three nodes in a row, each also its own, normalised as in a graph convolution
GRAPH = np.array([[1 / 2, 6**-0.5, 0], [6**-0.5, 1 / 3, 6**-0.5], [0, 6**-0.5, 1 / 2]], np.float32)
SOME = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)


def step(x):
    return apply(lambda v: float(v > 0), x)


def swapped(x):
    return apply(lambda v: 1.0 - v, x)


def selected(c, a, b):
    return add(multiply(c, a), multiply(swapped(c), b))


def sorted_nodes(nodes):
    """Odd-even transpositions, as a sorting network of maxima and minima of two."""
    nodes = list(nodes)
    for start in range(len(nodes)):
        for i in range(start % 2, len(nodes) - 1, 2):
            a, b = nodes[i : i + 2]
            nodes[i : i + 2] = [Node("minimum", [a, b]), Node("maximum", [a, b])]
    return nodes


def scaled(node, factor):
    return Node("function", [node], function=lambda v: v * float(factor))


def norm(x):
    squares = multiply(x, x)
    return apply(math.sqrt, along(total, squares, -1))


def logsumexp(x):
    return apply(math.log, along(total, apply(math.exp, x), -1))


def einsum(letters, outputs, xs):
    """Sum axes of one operand; multiply and sum the shared ones."""
    xs, letters = list(xs), list(letters)
    for i in (0, 1):
        other = letters[1 - i]
        dropped = [a for a in letters[i] if a not in other + outputs]
        if dropped:
            kept = [a for a in letters[i] if a not in dropped]
            front = np.transpose(xs[i], [letters[i].index(a) for a in (*kept, *dropped)])
            flat = front.reshape(*(EXTENTS[a] for a in kept), -1)
            xs[i], letters[i] = along(total, flat, -1), "".join(kept)
    summed = [a for a in letters[0] if a in letters[1] and a not in outputs]
    result = np.empty([EXTENTS[a] for a in outputs], object)
    for i in np.ndindex(result.shape):
        index = dict(zip(outputs, i, strict=True))
        firsts, seconds = [], []
        for j in np.ndindex(*(EXTENTS[a] for a in summed)):
            at = index | dict(zip(summed, j, strict=True))
            firsts.append(xs[0][tuple(at[a] for a in letters[0])])
            seconds.append(xs[1][tuple(at[a] for a in letters[1])])
        result[i] = products(firsts, seconds)
    return result


def matrix(x, kernel):
    """Multiply the last axis by a constant matrix."""
    columns = [along(lambda n, j=j: total(n, kernel[:, j]), x, -1) for j in range(kernel.shape[1])]
    return np.stack(columns, -1)


@keras.saving.register_keras_serializable("oracle")
class Reversed(layers.Layer):
    """A gradient-reversal layer: the value is doubled, the user's derivative has another sign."""

    def call(self, x):
        import tensorflow as tf

        @tf.custom_gradient
        def function(v):
            return 2.0 * v, lambda dy: -dy

        return function(x)


# By name: a function of tensors h, k (batch, 3, 4) and its definition on arrays (3, 4) of nodes
FUNCTIONS = {
    "where": (
        lambda h, k: ops.where(h > 0, h, k),
        lambda h, k: selected(step(h), h, k),
    ),
    "where, of two tensors": (
        lambda h, k: ops.where(h > k, k, h),
        lambda h, k: selected(step(subtract(h, k)), k, h),
    ),
    "less": (
        lambda h, k: ops.cast(h < k, "float32"),
        lambda h, k: apply(lambda v: float(v < 0), subtract(h, k)),
    ),
    "a mask as a value": (
        lambda h, k: h * ops.cast(h > 0, "float32"),
        lambda h, k: multiply(h, step(h)),
    ),
    "einsum, a constant": (
        lambda h, k: ops.einsum("btc,cd->btd", h, SQUARE),
        lambda h, k: matrix(h, SQUARE),
    ),
    "graph convolution": (
        lambda h, k: ops.matmul(GRAPH, ops.matmul(h, SQUARE)),
        lambda h, k: matrix(matrix(h, SQUARE).T, GRAPH.T).T,
    ),
    "einsum, groups": (
        lambda h, k: ops.einsum("btc,tc->bc", h, SOME),
        lambda h, k: along(
            total,
            each(lambda n, w: Node("function", [n], function=lambda v: v * float(w)), h, SOME),
            0,
        ),
    ),
    "take": (lambda h, k: ops.take(h, [2, 0, 0], axis=1), lambda h, k: h[[2, 0, 0]]),
    "split": (
        lambda h, k: ops.concatenate(ops.split(h, 2, axis=-1)[::-1], axis=-1),
        lambda h, k: np.concatenate(np.split(h, 2, -1)[::-1], -1),
    ),
    "stack": (
        lambda h, k: ops.stack([h, k], axis=2)[:, :, 1],
        lambda h, k: np.stack([h, k], 1)[:, 1],
    ),
    "repeat": (
        lambda h, k: ops.repeat(h, 2, axis=1)[:, 1:4],
        lambda h, k: np.repeat(h, 2, 0)[1:4],
    ),
    "roll": (lambda h, k: ops.roll(h, 1, axis=2), lambda h, k: np.roll(h, 1, 1)),
    "cumsum": (
        lambda h, k: ops.cumsum(h, axis=2),
        lambda h, k: matrix(h, np.triu(np.ones((4, 4)))),
    ),
    "sin": (lambda h, k: ops.sin(h), lambda h, k: apply(math.sin, h)),
    "rotary": (
        lambda h, k: ops.cos(k) * h - ops.sin(k) * ops.roll(h, 1, axis=-1),
        lambda h, k: subtract(
            multiply(apply(math.cos, k), h), multiply(apply(math.sin, k), np.roll(h, 1, 1))
        ),
    ),
    "stop_gradient": (
        lambda h, k: h + ops.stop_gradient(ops.flip(h, -1)),
        lambda h, k: add(h, h[:, ::-1]),
    ),
    "a custom gradient": (
        lambda h, k: Reversed()(h),
        lambda h, k: apply(lambda v: 2.0 * v, h),
    ),
    "multiply": (lambda h, k: h * k, multiply),
}
# Those with results of other shapes: they end a graph.
LAST = {
    "logsumexp": (lambda h, k: ops.logsumexp(h, axis=-1), lambda h, k: logsumexp(h)),
    "norm": (lambda h, k: ops.norm(h, axis=-1), lambda h, k: norm(h)),
    "max": (lambda h, k: ops.max(h, axis=1), lambda h, k: along(so.maximum, h, 0)),
    "min": (lambda h, k: ops.min(h, axis=-1), lambda h, k: along(so.minimum, h, 1)),
    "top_k": (
        lambda h, k: ops.top_k(h, 2)[0],
        lambda h, k: np.stack([sorted_nodes(row)[::-1][:2] for row in h]),
    ),
}


def check(builders, seed, dense=True):
    """Compare the slices of a model of two inputs with the oracle's."""
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    Node.nodes = []
    tensors = [keras.Input((3, 4), name=name) for name in "hk"]
    arrays = [each(lambda _: Node("input"), np.zeros((3, 4))) for _ in "hk"]
    inputs = [n for a in arrays for n in a.ravel()]
    ends = []
    for function, definition in builders:
        i, j = rng.integers(len(tensors), size=2)
        y, z = function(tensors[i], tensors[j]), definition(arrays[i], arrays[j])
        assert tuple(y.shape[1:]) == z.shape
        if z.shape == (3, 4):
            tensors.append(y)
            arrays.append(z)
        ends.append((y, z))
    flat = [layers.Flatten()(y) for y, _ in ends]
    joined = layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
    model = keras.Model(tensors[:2], layers.Dense(2, name="out")(joined))
    kernel = np.asarray(model.layers[-1].kernel, np.float64)
    last = [n for _, z in ends for n in z.ravel()]
    start = total(last, kernel[:, 1])
    x = [rng.normal(size=(6, 3, 4)).astype(np.float32) for _ in "hk"]
    rows = np.concatenate([part.reshape(6, -1) for part in x], 1).astype(np.float64)
    ats = [so.forward(inputs, row) for row in rows]
    mean = {n: math.fsum(at[n] for at in ats) / len(ats) for n in Node.nodes}
    usual = so.forward(inputs, rows.mean(0))
    im = nns.InstrumentedModel(model)
    found = im.predict(x)
    np.testing.assert_allclose(found[:, 1], [at[start] for at in ats], rtol=1e-4, atol=1e-5)
    profile = nns.Profile.from_data(im, x, progress=False)
    for theta in (0.0, 0.3):
        slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
        for s in (0, 3):
            result = slicer.slice([part[s : s + 1] for part in x], outputs=[1])
            contrib, synapses = so.counts(ats[s], mean, start, theta)
            expected = [contrib[n] for n in inputs]
            values = np.concatenate([result.neurons[name].ravel() for name in "hk"])
            np.testing.assert_array_equal(values, expected, f"theta {theta}, sample {s}")
            of_kernel = np.zeros(len(last), int)
            for i, g in synapses:
                of_kernel[i] = g
            np.testing.assert_array_equal(result.synapses["out"][:, 1], of_kernel)
    slicer = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
    for s in (0, 3):
        result = slicer.slice([part[s : s + 1] for part in x], outputs=[1])
        amount = so.amounts(ats[s], usual, start)
        values = np.concatenate([result.neurons[name].ravel() for name in "hk"])
        np.testing.assert_allclose(values, [amount[n] for n in inputs], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", [*FUNCTIONS, *LAST])
def test_a_function(name):
    check([(FUNCTIONS | LAST)[name]], 3)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed + 100)
    chosen = [*rng.choice([*FUNCTIONS], 4, replace=False), *rng.choice([*LAST], 1)]
    check([(FUNCTIONS | LAST)[name] for name in chosen], seed)


@pytest.mark.parametrize("seed", range(8))
def test_any_subscripts(seed):
    rng = np.random.default_rng(seed)
    first, second = "tc", f"{rng.choice([*'ts'])}{rng.choice([*'cd'])}"
    second = second[:: rng.choice([1, -1])]
    letters = rng.permutation([*dict.fromkeys(first + second)])
    outputs = "".join(letters[: rng.integers(1, len(letters) + 1)])
    moved = second[0] in "cd"

    def function(h, k):
        k = ops.transpose(k, (0, 2, 1)) if moved else k
        return ops.einsum(f"b{first},b{second}->b{outputs}", h, k)

    def definition(h, k):
        return einsum((first, second), outputs, (h, k.T if moved else k))

    check([(function, definition)], seed)
