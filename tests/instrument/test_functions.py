"""Functions of `keras.ops` in graphs: each is wrapped, sliced, and its amounts add up."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

C = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)  # a constant
SQUARE = np.random.default_rng(6).normal(size=(4, 4)).astype(np.float32)
INDEX = np.array([[0, 2], [1, 1]], np.int32)

# Functions of h `(batch, 3, 4)` and of a second tensor k of the same shape.
FUNCTIONS = {
    "abs": lambda h, k: ops.abs(h),
    "all": lambda h, k: h * ops.cast(ops.all(h > -9.0, axis=-1, keepdims=True), "float32"),
    "amax": lambda h, k: ops.amax(h, axis=-1),
    "arctan2": lambda h, k: ops.arctan2(h, 2.0),
    "argmax": lambda h, k: ops.argmax(h, axis=-1),
    "average": lambda h, k: ops.average(h, axis=1),
    "average_pool": lambda h, k: ops.average_pool(h, 2, 1, "same"),
    "cast": lambda h, k: ops.cast(h, "float32") * 2,
    "clip": lambda h, k: ops.clip(h, -0.5, 1.0),
    "concatenate": lambda h, k: ops.concatenate([h, k], axis=1),
    "cos": lambda h, k: ops.cos(h),
    "cross": lambda h, k: ops.cross(h[..., :3], k[..., :3]),
    "cumprod": lambda h, k: ops.cumprod(h, axis=-1),
    "cumsum": lambda h, k: ops.cumsum(h, axis=1),
    "diagonal": lambda h, k: ops.diagonal(h, axis1=1, axis2=2),
    "diff": lambda h, k: ops.diff(h, axis=1),
    "divide": lambda h, k: h / (k * k + 1),
    "einsum": lambda h, k: ops.einsum("btc,bsc->bts", h, k),
    "einsum, a constant": lambda h, k: ops.einsum("btc,tc->bc", h, C),
    "einsum, a sum before": lambda h, k: ops.einsum("btc,bsd->bcd", h, k),
    "einsum, one tensor": lambda h, k: ops.einsum("btc->bct", h),
    "equal": lambda h, k: ops.cast(ops.equal(ops.round(h), 0.0), "float32"),
    "exp": lambda h, k: ops.exp(h / 4),
    "expand_dims": lambda h, k: ops.expand_dims(h, 1),
    "flip": lambda h, k: ops.flip(h, axis=-1),
    "floor": lambda h, k: ops.floor(h),
    "full_like": lambda h, k: h + ops.full_like(h, 2.0),
    "greater": lambda h, k: h * ops.cast(h > 0, "float32"),
    "isnan": lambda h, k: ops.where(ops.isnan(h), 0.0, h),
    "less, two tensors": lambda h, k: ops.cast(h < k, "float32"),
    "log": lambda h, k: ops.log(ops.abs(h) + 1),
    "log_softmax": lambda h, k: ops.log_softmax(h, axis=-1),
    "logaddexp": lambda h, k: ops.logaddexp(h, k),
    "logical_and": lambda h, k: ops.cast(ops.logical_and(h > 0, k > 0), "float32"),
    "logsumexp": lambda h, k: ops.logsumexp(h, axis=-1),
    "matmul": lambda h, k: ops.matmul(h, ops.transpose(k, (0, 2, 1))),
    "matmul, a constant": lambda h, k: ops.matmul(h, SQUARE),
    "matmul, a constant first": lambda h, k: ops.matmul(C.T, h),
    "max": lambda h, k: ops.max(h, axis=1),
    "max_pool": lambda h, k: ops.max_pool(h, 2, 1, "same"),
    "max_pool, strides of the window": lambda h, k: ops.max_pool(h, 2),
    "maximum": lambda h, k: ops.maximum(h, k),
    "less its mean": lambda h, k: h - ops.mean(h, axis=1, keepdims=True),
    "mean": lambda h, k: ops.mean(h, axis=-1, keepdims=True),
    "median": lambda h, k: ops.median(h, axis=1),
    "min": lambda h, k: ops.min(h, axis=-1),
    "moments": lambda h, k: ops.concatenate(ops.moments(h, axes=[1]), axis=-1),
    "moveaxis": lambda h, k: ops.moveaxis(h, 1, 2),
    "norm": lambda h, k: ops.norm(h, axis=-1),
    "normalize": lambda h, k: ops.normalize(h, axis=-1),
    "one_hot": lambda h, k: ops.one_hot(ops.argmax(h, axis=-1), 4),
    "outer product": lambda h, k: h[..., :, None] * k[..., None, :],
    "pad": lambda h, k: ops.pad(h, [[0, 0], [1, 1], [0, 0]]),
    "power": lambda h, k: ops.power(ops.abs(h) + 0.5, 1.5),
    "power, two tensors": lambda h, k: ops.power(ops.abs(h) + 0.5, k / 4),
    "prod": lambda h, k: ops.prod(h, axis=1),
    "repeat": lambda h, k: ops.repeat(h, 2, axis=1),
    "reshape": lambda h, k: ops.reshape(h, (-1, 6, 2)),
    "roll": lambda h, k: ops.roll(h, 1, axis=1),
    "rotary": lambda h, k: ops.cos(k) * h - ops.sin(k) * ops.roll(h, 1, axis=-1),
    "rsqrt": lambda h, k: ops.rsqrt(h * h + 1),
    "segments of a split": lambda h, k: ops.split(h, 2, axis=-1)[1] * ops.split(h, 2, axis=-1)[0],
    "sign": lambda h, k: ops.sign(h),
    "slice": lambda h, k: ops.slice(h, (0, 1, 0), (ops.shape(h)[0], 2, 4)) if h.shape[0] else h,
    "softmax": lambda h, k: ops.softmax(h, axis=-1),
    "sort": lambda h, k: ops.sort(h, axis=-1),
    "stack": lambda h, k: ops.stack([h, k], axis=2),
    "std": lambda h, k: ops.std(h, axis=-1),
    "stop_gradient": lambda h, k: h + ops.stop_gradient(ops.flip(h, -1)) * 2,
    "sum": lambda h, k: ops.sum(h, axis=(1, 2), keepdims=True),
    "swapaxes": lambda h, k: ops.swapaxes(h, 1, 2),
    "take": lambda h, k: ops.take(h, [2, 0, 0], axis=1),
    "take, a matrix of indices": lambda h, k: ops.take(h, INDEX, axis=2),
    "tile": lambda h, k: ops.tile(h, (1, 2, 1)),
    "top_k": lambda h, k: ops.top_k(h, 2)[0],
    "trace": lambda h, k: ops.trace(h, axis1=1, axis2=2)[:, None],
    "tril": lambda h, k: ops.tril(h),
    "unstack": lambda h, k: ops.unstack(h, axis=1)[1] + ops.unstack(h, axis=1)[0],
    "var": lambda h, k: ops.var(h, axis=1),
    "vdot": lambda h, k: ops.sum(h * k, axis=-1),
    "where": lambda h, k: ops.where(h > 0, h, k),
    "where, constants": lambda h, k: ops.where(h > 0, 1.0, -2.0),
}
# An index has no change that could be shared among the inputs.
REFUSED = {"argmax": "'argmax.* returns indices", "one_hot": "'argmax.* returns indices"}


def model_of(*names):
    keras.utils.set_random_seed(1)
    x = keras.Input((3, 5), name="x")
    h, k = layers.Dense(4, name="h")(x), layers.Dense(4, name="k")(x)
    parts = []
    for name in names:
        y = FUNCTIONS[name](h, k)
        y = ops.cast(y, "float32") if "int" in y.dtype else y
        parts.append(layers.Flatten()(y) if len(y.shape) > 2 else y)
    joined = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    return keras.Model(x, layers.Dense(3, name="out")(joined))


X = np.random.default_rng(0).normal(size=(12, 3, 5)).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_wrapped(name):
    model = model_of(name)
    if name in REFUSED:
        with pytest.raises(nns.errors.UnsupportedLayerError, match=REFUSED[name]):
            nns.InstrumentedModel(model)
        return
    found = nns.InstrumentedModel(model).predict(X)
    np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)


GROUPS = [[n for n in FUNCTIONS if n not in REFUSED][i::10] for i in range(10)]


@pytest.mark.parametrize("names", GROUPS, ids=", ".join)
def test_amounts_add_up_and_counts_agree(names):
    model = model_of(*names)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, X, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
    mean = profile.means["x"][None].astype(np.float32)
    for sample in X[:3, None]:
        amounts = slicer.slice(sample, outputs=[1]).neurons
        change = (model(sample) - model(mean))[0, 1]
        np.testing.assert_allclose(amounts["x"].sum(), change, rtol=2e-3, atol=2e-4)
        both = sum(amounts[name].sum() for name in ("h", "k") if name in amounts)
        np.testing.assert_allclose(both, change, rtol=2e-3, atol=2e-4)
    counts = [
        nns.Slicer(im, profile, theta, workers=0, progress=False).slice(X[:2], outputs=[1])
        for theta in (0.0, 1e-12)
    ]
    for operation in im.operations:
        np.testing.assert_array_equal(
            counts[0].neurons[operation.name], counts[1].neurons[operation.name], operation.name
        )
