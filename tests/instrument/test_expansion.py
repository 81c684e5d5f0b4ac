"""Layers without a rule are expanded: the result equals the layer, and follows its weights."""

import functools
import inspect

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import instrument, pruning

tf = pytest.importorskip("tensorflow")
RNG = np.random.default_rng(2)


class TransformerBlock(layers.Layer):
    """The block that the documentation of Keras teaches."""

    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1, **options):
        super().__init__(**options)
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        attn_output = self.att(inputs, inputs)
        attn_output = self.dropout1(attn_output)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.ffn(out1)
        ffn_output = self.dropout2(ffn_output)
        return self.layernorm2(out1 + ffn_output)


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim, **options):
        super().__init__(**options)
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        maxlen = ops.shape(x)[-1]
        positions = ops.arange(start=0, stop=maxlen, step=1)
        positions = self.pos_emb(positions)
        x = self.token_emb(x)
        return x + positions


class Parts(layers.Layer):
    """Layers in lists and dicts, one called twice, and one with a keyword tensor."""

    def __init__(self, **options):
        super().__init__(**options)
        self.steps = [layers.Dense(6, activation="relu") for _ in range(2)]
        self.by_name = {"first": layers.Dense(6), "second": layers.LayerNormalization()}
        self.shared = layers.Dense(6)

    def call(self, x, scale=None, training=False):
        for step in self.steps:
            x = step(x)
        x = self.by_name["second"](self.by_name["first"](x))
        x = self.shared(self.shared(x))
        if training:
            x = x * 2
        return x if scale is None else x * scale


class Weights(layers.Layer):
    """Own variables: in a product, a sum, an einsum, a normalised constant."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 6), name="w", initializer="glorot_normal")
        self.b = self.add_weight(shape=(6,), name="b", initializer="normal")
        self.e = self.add_weight(shape=(6, 2, 3), name="e", initializer="glorot_normal")
        self.g = self.add_weight(shape=(2, 3), name="g", initializer="normal")

    def call(self, x):
        x = ops.matmul(x, self.w) + self.b
        x = ops.einsum("btc,cde->btde", x, self.e)
        gate = ops.softmax(ops.convert_to_tensor(self.g), axis=-1)
        return ops.reshape(x * gate, (ops.shape(x)[0], ops.shape(x)[1], 6))


class Token(layers.Layer):
    """A class token before the positions, as in ViT, and learned positions."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token", initializer="normal")
        self.positions = layers.Embedding(shape[1] + 1, shape[-1])

    def call(self, x):
        batch = ops.shape(x)[0]
        token = ops.broadcast_to(self.token, (batch, 1, ops.shape(x)[-1]))
        x = ops.concatenate([ops.cast(token, x.dtype), x], axis=1)
        return x + self.positions(ops.expand_dims(ops.arange(ops.shape(x)[1]), 0))


class Branches(layers.Layer):
    """Control flow on values of Python, several results, and a cache that is None."""

    def __init__(self, depth=2, **options):
        super().__init__(**options)
        self.depth = depth
        self.dense = layers.Dense(8)

    def call(self, x, cache=None):
        a, b = ops.split(self.dense(x), 2, axis=-1)
        for _ in range(self.depth):
            a = a + ops.roll(b, 1, axis=1)
        if cache is not None:
            raise ValueError("there is no cache")
        return a, b


class Causal(layers.Layer):
    """Attention that is written with functions, with a causal mask and rotated positions."""

    def __init__(self, heads=2, **options):
        super().__init__(**options)
        self.heads = heads
        self.qkv = layers.Dense(18)
        self.out = layers.Dense(6)

    def call(self, x):
        batch, length, _ = ops.shape(x)
        qkv = ops.reshape(self.qkv(x), (batch, length, 3, self.heads, 3))
        q, k, v = ops.unstack(qkv, axis=2)
        angle = ops.cast(ops.arange(length), "float32")[None, :, None, None]
        q = q * ops.cos(angle) + ops.flip(q, -1) * ops.sin(angle)
        scores = ops.einsum("bqhe,bkhe->bhqk", q, k) / np.sqrt(3)
        mask = ops.tril(ops.ones((length, length), "bool"))
        scores = ops.where(mask, scores, -np.inf)
        context = ops.einsum("bhqk,bkhe->bqhe", ops.softmax(scores, axis=-1), v)
        return self.out(ops.reshape(context, (batch, length, 6)))


class Outer(layers.Layer):
    """Own layers inside an own layer."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = [Weights(), Weights(), Parts()]

    def call(self, x):
        for layer in self.inner:
            x = x + layer(x)
        return x


class Convolution(layers.Layer):
    def build(self, shape):
        self.k = self.add_weight(shape=(3, shape[-1], 6), name="k", initializer="glorot_normal")

    def call(self, x):
        return ops.relu(ops.conv(x, self.k, padding="same"))


def several(x):
    a, b = Branches(name="own")(x)
    return layers.Concatenate()([a, b])


def twice(x):
    own = Parts(name="own")
    return own(own(x))


def half(x):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return TransformerBlock(6, 2, 5, name="own")(x)
    finally:
        keras.config.set_dtype_policy("float32")


BLOCKS = {
    "block": TransformerBlock(6, 2, 5, name="own"),
    "parts": Parts(name="own"),
    "weights": Weights(name="own"),
    "token": Token(name="own"),
    "several results": several,
    "causal": Causal(name="own"),
    "nested": Outer(name="own"),
    "convolution": Convolution(name="own"),
    "keyword": lambda x: Parts(name="own")(x, scale=layers.Dense(1)(x)),
    "twice": twice,
    "half": half,
    "in a model": keras.Sequential([Weights(), Causal()], name="own"),
}


def model_of(name):
    keras.utils.set_random_seed(0)
    x = keras.Input((5, 6), name="x")
    y = layers.GlobalAveragePooling1D()(BLOCKS[name](layers.Dense(6)(x)))
    model = keras.Model(x, layers.Dense(3, name="out")(y))
    rng = np.random.default_rng(2)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.5))
    return model


X = np.random.default_rng(0).normal(size=(12, 5, 6)).astype(np.float32)


@functools.cache
def subject(name):
    im = nns.InstrumentedModel(model_of(name))
    return im, nns.Profile.from_data(im, X, progress=False)


@pytest.mark.parametrize("name", BLOCKS)
def test_an_expanded_layer_equals_the_layer(name):
    model = model_of(name)
    nodes = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    im = nns.InstrumentedModel(model)
    assert nodes == [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    tolerance = 2e-2 if name == "half" else 1e-5
    np.testing.assert_allclose(im.predict(X), model(X), atol=tolerance)
    rng = np.random.default_rng(1)
    for weight in model.weights:  # constants follow the variables
        weight.assign(weight + rng.normal(size=weight.shape, scale=0.1))
    np.testing.assert_allclose(im.predict(X), model(X), atol=tolerance)
    for part in (X[:1], X[:3], X[:7]):
        np.testing.assert_allclose(im.predict(part), model(part), atol=tolerance)


@pytest.mark.parametrize("name", BLOCKS)
def test_amounts_add_up_and_counts_agree(name):
    im, profile = subject(name)
    slicer = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
    mean = profile.means["x"][None].astype(np.float32)
    for sample in X[:2, None]:
        change = (im.predict(sample) - im.predict(mean))[0, 1]
        np.testing.assert_allclose(
            slicer.slice(sample, outputs=[1]).neurons["x"].sum(), change, rtol=1e-3, atol=1e-4
        )
    counts = [
        nns.Slicer(im, profile, theta, workers=0, progress=False).slice(X[:2], outputs=[1])
        for theta in (0.0, 1e-12)
    ]
    for kernel in im.kernels:
        np.testing.assert_array_equal(counts[0].synapses[kernel], counts[1].synapses[kernel])


@pytest.mark.parametrize("name", BLOCKS)
def test_slices_apply_to_expanded_layers(name):
    im, profile = subject(name)
    model = im.model
    found = nns.Slicer(im, profile, 0.0, workers=0, progress=False).slice(X[:3], outputs=[1])
    keep = found.synapse_mask()
    assert sum(mask.sum() for mask in keep.values()) > 0
    applied = found.apply(model, "zero")
    expected = instrument.Ablation(im, "zero", of=list(keep)).outputs(keep, X)
    tolerance = 2e-2 if name == "half" else 1e-5
    np.testing.assert_allclose(applied(X), expected, atol=tolerance)
    copy = instrument.copy_model(model)
    np.testing.assert_allclose(copy(X), model(X), atol=tolerance)
    assert list(nns.InstrumentedModel(copy).kernels) == list(im.kernels)


def test_synapses_inside_contribute_their_mean():
    im, profile = subject("block")
    found = nns.Slicer(im, profile, 0.3, workers=0, progress=False).slice(X[:3], outputs=[1])
    keep = found.synapse_mask()
    expected = instrument.Ablation(im, profile, of=list(keep)).outputs(keep, X)
    np.testing.assert_allclose(found.apply(im.model, profile)(X), expected, atol=1e-5)


def test_pruning_masks_reach_the_kernels_inside():
    im, _ = subject("block")
    pruned = pruning.prune(im.model, pruning.scores(im, "weight"), 0.5)
    zeros = sum(int((np.asarray(w) == 0).sum()) for w in pruned.get_layer("own").weights)
    assert zeros > 50
    assert len(pruned.get_layer("own").weights) == len(im.model.get_layer("own").weights)


def test_the_kernels_inside_are_synapses():
    im = nns.InstrumentedModel(model_of("block"))
    inside = [name for name in im.kernels if name.startswith("own/")]
    names = ("att/query", "att/key", "att/value", "att/output", "ffn/dense", "ffn/dense_1")
    assert inside == [f"own/{name}" for name in names]
    assert [o.heads.count for o in im.operations if o.heads] == [2] * 6
    im = nns.InstrumentedModel(model_of("weights"))
    assert [n for n in im.kernels if n.startswith("own/")] == ["own/matmul", "own/einsum"]


def test_a_text_classifier_of_the_documentation():
    keras.utils.set_random_seed(0)
    x = keras.Input((7,), name="tokens")
    y = TokenAndPositionEmbedding(7, 30, 6)(x)
    y = layers.GlobalAveragePooling1D()(TransformerBlock(6, 2, 5)(y))
    model = keras.Model(x, layers.Dense(2, activation="softmax")(layers.Dropout(0.1)(y)))
    tokens = np.random.default_rng(0).integers(0, 30, (20, 7))
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(tokens), model(tokens), atol=1e-5)
    assert im.bounds == (0, 29)
    profile = nns.Profile.from_data(im, tokens, progress=False)
    slicer = nns.Slicer(im, profile, 0.3, workers=0, progress=False)
    assert slicer.explain(tokens[:1]).decisive is not None
    slicer = nns.Slicer(im, profile, 0.0, contribution="amount", workers=0, progress=False)
    amounts = slicer.slice(tokens[:1], outputs=[1])
    lookup = next(o for o in im.operations if o.kind == "lookup")
    values = im.capture(tokens[:1])
    reference = im.graph.run(
        ops.zeros((1, 7)),
        [im.logit_operation],
        lambda n, v: ops.cast(profile.means[n][None], "float32") if n == lookup.name else v,
    )[im.logit_operation]
    change = values[im.logit_operation][0, 1] - float(reference[0, 1])
    np.testing.assert_allclose(amounts.neurons["tokens"].sum(), change, rtol=1e-3, atol=1e-5)


class OfTensorFlow(layers.Layer):
    def call(self, x):
        return tf.math.cumsum(x, axis=1)


class OnValues(layers.Layer):
    def call(self, x):
        return x if ops.sum(x) > 0 else -x

    def compute_output_shape(self, shape):
        return shape


class Mixing(layers.Layer):
    def call(self, x):
        return ops.reshape(ops.reshape(x, (-1, 6)), ops.shape(x))


class Random(layers.Layer):
    def call(self, x):
        return x + keras.random.normal(ops.shape(x), seed=None)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (OfTensorFlow, "a function of TensorFlow .*test_expansion.py:{}"),
        (OnValues, "test_expansion.py:{}"),
        (Mixing, "mixes samples"),
        (Random, "treats each sample alike"),
    ],
)
def test_what_cannot_be_expanded_is_refused_by_name(layer, message):
    line = inspect.getsourcelines(layer.call)[1] + 1
    x = keras.Input((5, 6))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=message.format(line)) as error:
        nns.InstrumentedModel(keras.Model(x, layer(name="own")(x)))
    assert f"'own' ({layer.__name__})" in str(error.value)


def test_a_padding_mask_reaches_the_layers_inside():
    keras.utils.set_random_seed(0)
    x = keras.Input((5,), dtype="int32", name="tokens")
    y = layers.Embedding(9, 6, mask_zero=True)(x)

    class Pooled(layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            present = ops.cast(mask, x.dtype)[..., None]
            return ops.sum(x * present, axis=1) / ops.sum(present, axis=1)

    block = TransformerBlock(6, 2, 5)
    block.supports_masking = True
    y = block(y)
    y = layers.Concatenate()([layers.GlobalAveragePooling1D()(y), Pooled()(y)])
    model = keras.Model(x, layers.Dense(2)(y))
    tokens = np.random.default_rng(0).integers(1, 9, (6, 5))
    tokens[:3, 3:] = 0
    np.testing.assert_allclose(
        nns.InstrumentedModel(model).predict(tokens), model(tokens), atol=1e-5
    )


class SlopesByMask(layers.Layer):
    """Positions counted by a mask, whose axes are moved: the batch is not in front for a while."""

    def call(self, x, mask):
        counts = ops.cast(ops.cumsum(ops.cast(mask, "int32"), axis=-1), x.dtype)
        slopes = ops.expand_dims(ops.convert_to_tensor([0.5, 0.25])[..., None] * counts[:, None], 0)
        moved = ops.transpose(slopes, [1, 2, 0, 3])[:, :, 0]
        return x + ops.transpose(moved, (0, 2, 1))


def test_the_batch_axis_may_move_for_a_while():
    x, mask = keras.Input((5, 2), name="x"), keras.Input((5,), dtype="int32", name="mask")
    model = keras.Model([x, mask], layers.Dense(3)(layers.Flatten()(SlopesByMask()(x, mask))))
    values = [RNG.normal(size=(4, 5, 2)).astype("f4"), RNG.integers(0, 2, (4, 5)).astype("i4")]
    found = nns.InstrumentedModel(model).predict(values)
    np.testing.assert_allclose(found, model(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["attention", "attention with dropout", "own layer"])
def test_rows_of_scores_that_are_masked_as_a_whole(kind):
    """Padding before the first token, and a causal mask: the first tokens attend to nothing."""

    class Own(layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense, self.softmax = layers.Dense(4), layers.Softmax()

        def call(self, x, padding):
            scores = ops.einsum("btc,bsc->bts", self.dense(x), x)
            earlier = ops.cast(np.tril(np.ones((5, 5))), "bool")
            mask = ops.logical_and(earlier[None], ops.cast(padding, "bool")[:, None])
            return ops.einsum("bts,bsc->btc", self.softmax(scores, mask=mask), x)

    ids = keras.Input((5,), dtype="int32", name="ids")
    if "attention" in kind:
        e = layers.Embedding(7, 4, mask_zero=True)(ids)
        attention = layers.MultiHeadAttention(2, 3, dropout=0.1 if "dropout" in kind else 0.0)
        h = attention(e, e, use_causal_mask=True)
    else:
        e = layers.Embedding(7, 4)(ids)
        h = Own()(e, ops.not_equal(ids, 0))
    model = keras.Model(ids, layers.Dense(2)(layers.GlobalAveragePooling1D()(h)))
    x = np.array([[0, 0, 3, 1, 2], [1, 2, 3, 4, 5], [0, 0, 0, 0, 6]], np.int32)
    found = nns.InstrumentedModel(model).predict(x)
    np.testing.assert_allclose(found, model(x), rtol=1e-4, atol=1e-5)


def test_constants_of_outer_layers_are_computed_when_they_change():
    """Their values are kept until those of the outer layer differ: then all follow."""

    class Rotation(layers.Layer):
        def __init__(self, depth, **options):
            super().__init__(**options)
            self.inner = Rotation(depth - 1) if depth else None

        def build(self, shape):
            pass

        def call(self, x, angles=None):
            y = x * ops.cos(angles)[None, :, None] + ops.sin(angles)[None, :, None]
            return y if self.inner is None else self.inner(y, angles=angles * 1.5)

    class Model(layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.rotation = Rotation(3)
            self.speed = self.add_weight(shape=(), initializer="ones", name="speed")

        def build(self, shape):
            pass

        def call(self, x):
            angles = ops.cos(self.speed * ops.arange(4, dtype="float32"))
            return self.rotation(x, angles=angles)

    x = keras.Input((4, 3))
    model = keras.Model(x, layers.Dense(2)(layers.Flatten()(Model()(x))))
    im = nns.InstrumentedModel(model)
    values = RNG.normal(size=(3, 4, 3)).astype("f4")
    np.testing.assert_allclose(im.predict(values), model(values), rtol=1e-4, atol=1e-5)
    model.layers[1].speed.assign(0.3)
    np.testing.assert_allclose(im.predict(values), model(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", ["a product", "the result"])
def test_a_batch_axis_that_stays_elsewhere_is_refused(last):
    class Moved(layers.Layer):
        def call(self, x):
            y = ops.transpose(x, (1, 0))
            return ops.matmul(x, y) if last == "a product" else y

    x = keras.Input((5,))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="no batch axis in front"):
        nns.InstrumentedModel(keras.Model(x, Moved()(x)))
