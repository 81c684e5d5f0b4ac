"""Models of kinds that the other tests do not have, many with own layers: no silent error.

    python tests/gauntlet/wild_models.py [MODEL …]

Each is checked against plain Keras: outputs; amounts, which add up to the change of an output
between a sample and the mean input; signs at θ = 0, which are those of the limit θ → 0; gradients,
by finite differences; and ablation of inputs, by the model on inputs that are replaced. A model may
be refused with an error of the library; any other difference is a fault.
"""

import sys
import traceback
import warnings

import keras
import numpy as np
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.errors import NNSlicerError
from nnslicer_tf.instrument import Ablation, Mean

MODELS = {}


def model(shape, dtype="float32"):
    """Register a function from inputs to outputs; several shapes are several inputs."""

    def register(build):
        MODELS[build.__name__] = (build, shape if isinstance(shape, list) else [shape], dtype)
        return build

    return register


class Own(layers.Layer):
    """A layer whose parts are made by `parts` and called by `function`."""

    def __init__(self, function, weights=None, **parts):
        super().__init__()
        self.function, self.shapes = function, weights or {}
        for name, part in parts.items():
            setattr(self, name, part)

    def build(self, *shapes):
        for name, shape in self.shapes.items():
            setattr(self, name, self.add_weight(shape=shape, initializer="glorot_normal"))

    def call(self, *x):
        return self.function(self, *x)


@model((6, 6, 4))
def squeeze_and_excite(x):
    def call(self, x):
        s = self.up(self.down(ops.mean(x, axis=(1, 2))))
        return x * s[:, None, None, :]

    x = layers.Conv2D(4, 3)(x)
    x = Own(call, down=layers.Dense(2, "relu"), up=layers.Dense(4, "sigmoid"))(x)
    return layers.Dense(3)(layers.Flatten()(x))


@model((5,))
def gated_linear_unit(x):
    def call(self, x):
        a, b = ops.split(self.both(x), 2, axis=-1)
        return a * ops.sigmoid(b)

    return layers.Dense(3)(Own(call, both=layers.Dense(8))(x))


@model((5,))
def highway(x):
    def call(self, x):
        t = self.gate(x)
        return t * self.change(x) + (1.0 - t) * x

    gate, change = layers.Dense(5, "sigmoid"), layers.Dense(5, "tanh")
    return layers.Dense(3)(Own(call, gate=gate, change=change)(x))


@model([(6, 3), (4,)])
def film(x, condition):
    def call(self, x, c):
        return x * (1.0 + self.gamma(c)[:, None]) + self.beta(c)[:, None]

    h = Own(call, gamma=layers.Dense(3), beta=layers.Dense(3))(x, condition)
    return layers.Dense(3)(layers.GlobalMaxPooling1D()(h))


@model((6, 4))
def attention_pooling(x):
    def call(self, x):
        weights = ops.softmax(ops.einsum("btc,c->bt", x, self.query), axis=-1)
        return ops.einsum("bt,btc->bc", weights, x)

    return layers.Dense(3)(Own(call, {"query": (4,)})(layers.Dense(4, "relu")(x)))


@model((5,))
def squash_of_capsules(x):
    def call(self, x):
        v = ops.reshape(self.dense(x), (-1, 3, 4))
        n = ops.sum(v * v, axis=-1, keepdims=True)
        return ops.sqrt(ops.sum(ops.square(v * n / (1.0 + n)), axis=-1) + 1e-6)

    return Own(call, dense=layers.Dense(12))(x)


@model((4,))
def radial_basis(x):
    def call(self, x):
        d = x[:, None, :] - self.centres[None]
        return ops.exp(-ops.sum(d * d, axis=-1))

    return layers.Dense(3)(Own(call, {"centres": (6, 4)})(x))


@model((5,))
def soft_mixture_of_experts(x):
    def call(self, x):
        gates = ops.softmax(self.router(x), axis=-1)
        outs = ops.stack([expert(x) for expert in self.experts], axis=1)
        return ops.sum(outs * gates[..., None], axis=1)

    experts = [layers.Dense(4, "relu") for _ in range(3)]
    return layers.Dense(3)(Own(call, router=layers.Dense(3), experts=experts)(x))


@model((5, 4))
def attention_with_relative_bias(x):
    def call(self, x):
        scores = ops.einsum("btc,bsc->bts", self.q(x), self.k(x)) / 2.0
        distance = np.abs(np.arange(5)[:, None] - np.arange(5)[None])
        bias = ops.take(self.bias, distance.ravel())
        scores = scores + ops.reshape(bias, (1, 5, 5))
        return x + ops.einsum("bts,bsc->btc", ops.softmax(scores), x)

    h = Own(call, {"bias": (5,)}, q=layers.Dense(4), k=layers.Dense(4))(x)
    return layers.Dense(3)(layers.Flatten()(h))


@model((6,))
def low_rank(x):
    def call(self, x):
        return ops.matmul(ops.matmul(x, self.u), self.v)

    return layers.Dense(3)(ops.relu(Own(call, {"u": (6, 2), "v": (2, 8)})(x)))


@model((6, 4))
def mixer_block(x):
    def call(self, x):
        y = ops.transpose(self.norm(x), (0, 2, 1))
        x = x + ops.transpose(self.tokens(y), (0, 2, 1))
        return x + self.channels(x)

    parts = {"norm": layers.LayerNormalization(), "tokens": layers.Dense(6, "gelu")}
    h = Own(call, channels=layers.Dense(4, "gelu"), **parts)(x)
    return layers.Dense(3)(layers.GlobalAveragePooling1D()(h))


@model((6, 4))
def spatial_gating(x):
    def call(self, x):
        u, v = x[..., :2], x[..., 2:]
        return u * ops.swapaxes(self.mix(ops.swapaxes(v, 1, 2)), 1, 2)

    return layers.Dense(3)(layers.Flatten()(Own(call, mix=layers.Dense(6))(x)))


@model((3,))
def fourier_features(x):
    def call(self, x):
        p = 2.0 * ops.matmul(x, self.f)
        return ops.concatenate([ops.sin(p), ops.cos(p)], axis=-1)

    return layers.Dense(2)(layers.Dense(6, "relu")(Own(call, {"f": (3, 4)})(x)))


@model((7, 3))
def deep_sets(x):
    h = layers.Dense(6, "relu")(x)
    return layers.Dense(3)(layers.Dense(5, "relu")(ops.sum(h, axis=1)))


@model((5, 3))
def graph_convolution(x):
    adjacency = np.random.default_rng(3).uniform(size=(5, 5)).astype("f4")

    def call(self, x):
        return ops.relu(ops.einsum("st,btc->bsc", adjacency / adjacency.sum(1, keepdims=True), x))

    h = Own(call)(layers.Dense(4)(x))
    return layers.Dense(3)(ops.max(Own(call)(layers.Dense(4)(h)), axis=1))


@model((6,))
def factorisation_machine(x):
    def call(self, x):
        pairs = ops.square(ops.matmul(x, self.v)) - ops.matmul(x * x, self.v * self.v)
        return self.linear(x) + 0.5 * ops.sum(pairs, axis=-1, keepdims=True)

    return Own(call, {"v": (6, 3)}, linear=layers.Dense(1))(x)


@model((12, 2))
def wavenet(x):
    skips = []
    for rate in (1, 2, 4):
        f = layers.Conv1D(4, 2, padding="causal", dilation_rate=rate, activation="tanh")(x)
        g = layers.Conv1D(4, 2, padding="causal", dilation_rate=rate, activation="sigmoid")(x)
        h = f * g
        skips.append(layers.Conv1D(4, 1)(h))
        x = layers.Conv1D(4, 1)(h) + layers.Conv1D(4, 1)(x)
    return layers.Dense(3)(ops.relu(layers.Add()(skips))[:, -1])


@model((8, 8, 2))
def u_net(x):
    a = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    b = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(a))
    c = layers.Conv2DTranspose(4, 2, strides=2, activation="relu")(b)
    return layers.Conv2D(3, 1)(layers.Concatenate()([a, c]))


@model((6,))
def tied_autoencoder(x):
    def call(self, x):
        return ops.matmul(ops.relu(ops.matmul(x, self.w)), ops.transpose(self.w))

    return Own(call, {"w": (6, 3)})(x)


@model([(5,), (5,)])
def siamese_distance(a, b):
    shared = layers.Dense(4, "tanh")
    difference = shared(a) - shared(b)
    return ops.sqrt(ops.sum(difference * difference, axis=-1, keepdims=True) + 1e-3)


@model((5,))
def weight_normalised(x):
    def call(self, x):
        w = self.v / ops.sqrt(ops.sum(ops.square(self.v), axis=0, keepdims=True)) * self.g
        return ops.relu(ops.matmul(x, w))

    return layers.Dense(3)(Own(call, {"v": (5, 6), "g": (1, 6)})(x))


@model((5,))
def cosine_classifier(x):
    h = layers.Dense(4)(x)
    h = h / (ops.norm(h, axis=-1, keepdims=True) + 1e-3)
    return 5.0 * layers.Dense(3, use_bias=False)(h)


@model((4,))
def prototypes(x):
    def call(self, x):
        d = x[:, None] - self.p[None]
        return -ops.sum(d * d, axis=-1)

    return Own(call, {"p": (3, 4)})(layers.Dense(4, "relu")(x))


@model((2,))
def siren(x):
    for _ in range(2):
        x = ops.sin(3.0 * layers.Dense(6)(x))
    return layers.Dense(1)(x)


@model((5,))
def ordinal_by_cumulative_sums(x):
    steps = ops.softplus(layers.Dense(4)(x))
    return ops.cumsum(steps, axis=-1) - 2.0


@model((6, 3))
def decays_between_steps(x):
    h = 0.0 * x[:, 0]
    for t in range(6):
        h = 0.7 * h + x[:, t] * ops.exp(-ops.abs(h))
    return layers.Dense(3)(h)


@model((6,))
def top_values(x):
    return layers.Dense(3)(ops.top_k(layers.Dense(6)(x), 3)[0])


@model((5,))
def missing_values(x):
    known = ops.cast(ops.abs(x) > 0.3, "float32")
    return layers.Dense(3)(layers.Dense(6, "relu")(ops.concatenate([x * known, known], axis=-1)))


@model((5,))
def straight_through(x):
    h = layers.Dense(6)(x)
    return layers.Dense(3)(h + ops.stop_gradient(ops.sign(h) - h))


@model((4, 4, 3))
def shifted_windows(x):
    h = ops.roll(layers.Conv2D(4, 1)(x), (1, 1), axis=(1, 2))
    h = layers.Dense(4, "relu")(ops.reshape(h, (-1, 4, 16)))
    return layers.Dense(3)(layers.Flatten()(h))


@model((6, 4))
def two_towers_with_keys(x):
    keys, values = layers.Dense(3)(x), layers.Dense(3)(x)
    weights = ops.exp(keys - ops.logsumexp(keys, axis=1, keepdims=True))
    return layers.Dense(3)(ops.sum(weights * values, axis=1))


@model((5,))
def monotone_by_exponentials(x):
    def call(self, x):
        return ops.tanh(ops.matmul(x, ops.exp(self.w)))

    return layers.Dense(1)(Own(call, {"w": (5, 6)})(x))


def check(name):
    """Return "right", or how a model is refused; raise AssertionError for a fault."""
    build, shapes, dtype = MODELS[name]
    keras.utils.set_random_seed(0)
    inputs = [keras.Input(shape, dtype=dtype, name=f"x{i}") for i, shape in enumerate(shapes)]
    net = keras.Model(inputs if len(inputs) > 1 else inputs[0], build(*inputs))
    rng = np.random.default_rng(1)
    for weight in net.weights:
        if "float" in weight.dtype:
            weight.assign(weight + rng.normal(0, 0.1, weight.shape))
    x = [rng.normal(size=(12, *shape)).astype("f4") for shape in shapes]
    pack = (lambda parts: parts) if len(x) > 1 else (lambda parts: parts[0])

    def run(parts):
        return np.asarray(net(pack(parts), training=False), np.float64)

    try:
        im = nns.InstrumentedModel(net)
    except NNSlicerError as error:
        return f"refused: {error}"
    np.testing.assert_allclose(im.predict(pack(x)), run(x), rtol=1e-4, atol=1e-5)
    profile = nns.Profile.from_data(im, pack(x), progress=False)
    index = (0,) * (len(im[im.logit_operation].shape) - 1) + (0,)
    flat = int(np.ravel_multi_index(index, im[im.logit_operation].shape))
    criterion = {im.logit_operation: [flat]}
    mean = [part.mean(0, keepdims=True) for part in x]

    def logit(parts):
        return im.logits(pack([p.astype("f4") for p in parts])).reshape(len(parts[0]), -1)[:, flat]

    one = [part[2:3] for part in x]
    try:
        amounts = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
        found = amounts.slice(pack(one), criterion).neurons
        total = sum(found[n].sum() for n in im.input_operations)
        change = (logit(one) - logit(mean))[0]
        np.testing.assert_allclose(total, change, rtol=5e-3, atol=1e-3, err_msg="amounts")
        signs = [
            nns.Slicer(im, profile, theta, workers=0, progress=False).slice(pack(one), criterion)
            for theta in (0.0, 1e-12)
        ]
        for n in im.input_operations:
            different = signs[0].neurons[n] != signs[1].neurons[n]
            assert different.mean() < 0.02, f"signs at θ → 0 differ at {n}"
    except NNSlicerError as error:
        return f"not sliced: {error}"
    # The gradient along a direction
    name_of_logits, size = im.logit_operation, im[im.logit_operation].size

    def score(values):
        return ops.reshape(values[name_of_logits], (-1, size))[:, flat]

    gradients = im.gradients(pack(one), of=score, needs=[name_of_logits])
    parts = [gradients[n] for n in im.input_operations]
    directions = [rng.normal(size=part.shape).astype("f4") for part in one]
    ends = [
        logit([o + sign * 1e-3 * d for o, d in zip(one, directions, strict=True)])[0]
        for sign in (1, -1)
    ]
    slope = sum(float((np.asarray(g) * d).sum()) for g, d in zip(parts, directions, strict=True))
    if name not in ("straight_through", "missing_values"):  # jumps, and the user's derivative
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-3, rtol=0.05, atol=2e-2)
    # Inputs replaced by their means
    mask = [rng.integers(0, 2, part.shape[1:]) for part in x]
    ablation = Ablation(im, Mean(profile), "input", target=criterion)
    units = dict(zip(ablation.shapes, mask, strict=True))
    if all(np.shape(m) == ablation.shapes[n] for n, m in units.items()):
        values = ablation.outputs(units, pack(one)).reshape(-1)[flat]
        replaced = [np.where(m, o, u) for m, o, u in zip(mask, one, mean, strict=True)]
        np.testing.assert_allclose(values, logit(replaced)[0], rtol=1e-3, atol=1e-4)
    return "right"


def main(names):
    """Check all models, or some by name; the exit code is 1 if there are faults."""
    faults = 0
    for name in names or MODELS:
        try:
            print(name, "|", check(name), flush=True)
        except Exception as error:
            faults += 1
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(name, "| FAULT", reason, flush=True)
            if "-v" in sys.argv:
                traceback.print_exc()
    print(len(names or MODELS), "models,", faults, "faults")
    return int(faults > 0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main([name for name in sys.argv[1:] if name != "-v"]))
