"""Attention, projections and products: captured values and slices against Keras and Dense."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

LENGTH, WORDS = 5, 9
TOKENS = np.array([[3, 1, 4, 0, 0], [2, 7, 1, 8, 5], [6, 0, 0, 0, 0]])


def embedded(mask):
    inputs = keras.Input((LENGTH,), dtype="int32")
    return inputs, layers.Embedding(WORDS, 6, mask_zero=mask)(inputs)


def keras_probabilities(layer, embedding, causal):
    """Return what Keras computes, layer by layer, with its own masks."""
    x = embedding(TOKENS)
    given = ([x, x],) if isinstance(layer, layers.Attention) else (x, x)
    return np.asarray(layer(*given, use_causal_mask=causal, return_attention_scores=True)[1])


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.MultiHeadAttention(2, 3, name="attention"),
        lambda: layers.MultiHeadAttention(2, 3, value_dim=5, use_bias=False, name="attention"),
        lambda: layers.GroupQueryAttention(3, 4, 2, name="attention"),
        lambda: layers.Attention(name="attention"),
        lambda: layers.Attention(use_scale=True, name="attention"),
        lambda: layers.AdditiveAttention(name="attention"),
        lambda: layers.AdditiveAttention(use_scale=False, name="attention"),
    ],
    ids=["multi_head", "value_dim", "grouped", "dot", "scaled", "additive", "additive_unscaled"],
)
def test_probabilities_are_those_of_keras(make, mask, causal):
    keras.utils.set_random_seed(1)
    inputs, x = embedded(mask)
    layer = make()
    given = ([x, x],) if isinstance(layer, layers.Attention) else (x, x)
    model = keras.Model(inputs, layer(*given, use_causal_mask=causal))
    im = nns.InstrumentedModel(model)
    found = im.capture(TOKENS)["attention/probabilities"]
    expected = keras_probabilities(layer, model.layers[1], causal)
    present = np.ones((3, LENGTH), bool) if not mask else TOKENS != 0
    rows = present[:, None] if found.ndim == 4 else present
    rows = np.broadcast_to(rows, found.shape[:-1])
    np.testing.assert_allclose(found[rows], expected[rows], atol=1e-6)
    np.testing.assert_allclose(found[rows].sum(axis=-1), 1, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("positions", [None, "pooled", "each"])
def test_means_of_a_causal_attention_are_those_of_each_pair(padded, positions):
    """The first position attends to itself alone: its probability is always 1, and so its mean."""
    keras.utils.set_random_seed(4)
    inputs, x = embedded(padded)
    y = layers.MultiHeadAttention(2, 3, name="attention")(x, x, use_causal_mask=True)
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(layers.Flatten()(y))))
    tokens = TOKENS if padded else np.maximum(TOKENS, 1)
    profile = nns.Profile.from_data(im, tokens, progress=False, positions=positions)
    values = im.capture(tokens)
    for name in ("attention/scores", "attention/probabilities"):
        mask = np.broadcast_to(values[im[name].mask] > 0, values[name].shape)
        count = mask.sum(axis=0)
        expected = np.where(mask, values[name], 0).sum(axis=0, dtype=float) / np.maximum(count, 1)
        np.testing.assert_allclose(profile.means[name][count > 0], expected[count > 0], atol=1e-6)
    np.testing.assert_allclose(profile.means["attention/probabilities"][:, 0, 0], 1, atol=1e-6)
    pooled = profile.means["attention/value"]
    assert padded == np.allclose(pooled[0], pooled[1]) or positions == "each"


def test_cross_attention_with_a_mask_of_pairs():
    keras.utils.set_random_seed(2)
    inputs = keras.Input((LENGTH, 4))
    query, pairs = layers.Dense(4)(inputs)[:, :2], ops.greater(inputs[:, :2, :1], 0.0)
    pairs = ops.logical_or(pairs, ops.not_equal(ops.transpose(inputs[:, :, :1], (0, 2, 1)), 0.0))
    attention = layers.MultiHeadAttention(2, 3, name="cross")
    model = keras.Model(inputs, attention(query, inputs, key=inputs, attention_mask=pairs))
    im = nns.InstrumentedModel(model)
    assert im["cross/scores"].shape == (2, 2, LENGTH)
    assert im["cross/scores"].mask == "cross/mask"
    assert im["cross"].mask is None


@pytest.mark.parametrize("lead", [(), (1,)])
def test_a_mask_of_keys_holds_for_all_queries_and_heads(lead):
    keras.utils.set_random_seed(2)
    x, keys = keras.Input((LENGTH, 4)), keras.Input((LENGTH,), dtype="bool")
    pairs = ops.reshape(keys, (-1, *lead, 1, LENGTH))
    layer = layers.MultiHeadAttention(2, 3, name="attention")
    model = keras.Model([x, keys], layer(x, x, attention_mask=pairs))
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(3, LENGTH, 4)).astype("f4"), TOKENS != 0]
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(data), model.predict(data, verbose=0), atol=1e-6)
    probabilities = im.capture(data)["attention/probabilities"]
    assert (probabilities[0, :, :, 3:] == 0).all() and (probabilities[1] > 0).all()


def test_a_mask_of_each_head_is_refused():
    x, pairs = keras.Input((LENGTH, 4)), keras.Input((2, LENGTH, LENGTH), dtype="bool")
    y = layers.MultiHeadAttention(2, 3, name="attention")(x, x, attention_mask=pairs)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'attention'.*one mask"):
        nns.InstrumentedModel(keras.Model([x, pairs], y))


@pytest.mark.parametrize(
    "mask",
    [
        np.tril(np.ones((1, LENGTH, LENGTH), bool)),
        np.tril(np.ones((LENGTH, LENGTH), np.float32)),
        ops.arange(LENGTH)[None, :, None] >= ops.arange(LENGTH),
    ],
)
def test_a_constant_mask_is_that_of_a_causal_attention(mask):
    slices = []
    for options in ({"attention_mask": mask}, {"use_causal_mask": True}):
        keras.utils.set_random_seed(4)
        inputs, x = embedded(False)
        y = layers.MultiHeadAttention(2, 3, name="attention")(x, x, **options)
        model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(y)))
        im = nns.InstrumentedModel(model)
        np.testing.assert_allclose(im.predict(TOKENS), model(TOKENS).numpy(), atol=1e-6)
        profile = nns.Profile.from_data(im, TOKENS, progress=False)
        np.testing.assert_allclose(profile.means["attention/probabilities"][:, 0, 0], 1, atol=1e-6)
        slicer = nns.Slicer(im, profile, theta=0.1, progress=False)
        slices.append(slicer.slice(TOKENS, outputs=[1]))
    for found, expected in zip(*(s.synapses.values() for s in slices), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_constant_mask_of_each_head_is_refused():
    inputs, x = embedded(False)
    mask = np.tril(np.ones((1, 2, LENGTH, LENGTH), bool))
    y = layers.MultiHeadAttention(2, 3, name="attention")(x, x, attention_mask=mask)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'attention'.*one mask"):
        nns.InstrumentedModel(keras.Model(inputs, y))


def test_several_axes_of_positions_are_refused():
    inputs = keras.Input((3, 4, 5))
    model = keras.Model(inputs, layers.MultiHeadAttention(1, 2)(inputs, inputs))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="only one axis of positions"):
        nns.InstrumentedModel(model)


def test_attention_that_sees_padding_since_keras_lost_the_mask_is_followed():
    """The second block's attention has no mask at run time; padding is no neuron all the same."""
    inputs, x = embedded(mask=True)
    for block in (1, 2):
        x = layers.Add()([x, layers.MultiHeadAttention(1, 3, name=f"attention{block}")(x, x)])
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    im = nns.InstrumentedModel(model)  # which compares its output with the model's
    assert im["attention2/scores"].mask is not None
    found = im.capture(TOKENS)
    seen = found["attention2/probabilities"][2, :, :1, 1:]  # of the only word, on the padding
    lost = getattr(_attended(), "_keras_mask", None) is None
    assert (seen.max() > 0) == lost
    profile = nns.Profile.from_data(im, TOKENS, progress=False)
    one = nns.Slicer(im, profile, 0.0, workers=0, progress=False).slice(TOKENS[2:], outputs=[0])
    for name, contributions in one.neurons.items():
        if im[name].mask and im[im[name].mask].shape == (LENGTH,):
            assert not contributions[1:].any(), name


def _attended():
    """An embedded sequence to which attention was applied."""
    x = layers.Embedding(2, 1, mask_zero=True)(np.ones((1, 2)))
    layers.MultiHeadAttention(1, 1)(x, x)
    return x


EQUATIONS = {
    # equation, output shape and axes of the bias → the same by Permute, Dense and Reshape
    "...x,xy->...y": ((3,), "y", lambda dense, x: dense(3)(x)),
    "abc,cde->abde": ((4, 2, 3), "de", lambda dense, x: layers.Reshape((4, 2, 3))(dense(6)(x))),
    "abc,bd->adc": (
        (3, 5),
        "d",
        lambda dense, x: layers.Permute((2, 1))(dense(3)(layers.Permute((2, 1))(x))),
    ),
    "abc,bcd->ad": ((3,), "d", lambda dense, x: dense(3)(layers.Flatten()(x))),
}


@pytest.mark.parametrize("theta", [0.0, 0.3])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_projection_slices_as_the_same_dense_layer(equation, theta):
    shape, bias_axes, build = EQUATIONS[equation]
    rng = np.random.default_rng(3)
    inputs = keras.Input((4, 5))
    einsum = layers.EinsumDense(equation, shape, bias_axes=bias_axes, name="sum")
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(einsum(inputs))))
    made = []

    def dense(units):
        made.append(layers.Dense(units, name="sum"))
        return made[-1]

    twin = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(build(dense, inputs))))
    for weight, other in zip(model.weights, twin.weights, strict=True):
        weight.assign(rng.normal(size=weight.shape))
        other.assign(np.reshape(weight, other.shape))
    x = rng.normal(size=(6, 4, 5)).astype(np.float32)
    found = []
    for one in (model, twin):
        im = nns.InstrumentedModel(one)
        profile = nns.Profile.from_data(im, x, progress=False)
        found.append(nns.Slicer(im, profile, theta, workers=0, progress=False).slice(x))
    ours, theirs = found
    np.testing.assert_array_equal(*(next(iter(s.neurons.values())) for s in found))
    np.testing.assert_array_equal(ours.synapses["sum"].ravel(), theirs.synapses["sum"].ravel())
    assert ours.synapses["sum"].any()


def test_a_kernel_for_each_position_is_a_grouped_sum():
    rng = np.random.default_rng(4)
    inputs = keras.Input((4, 5))
    h = layers.EinsumDense("abc,bcd->abd", (4, 3), bias_axes="bd", name="own")(inputs)
    model = keras.Model(inputs, layers.Flatten()(h))
    im = nns.InstrumentedModel(model)
    assert im["own:sum"].params.groups == 4
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    one = slicer.slice(x[:1], outputs=[3 * 2 + 1])  # position 2, channel 1
    sources = one.neurons[im.input_operation]
    assert sources[2].any() and not np.delete(sources, 2, axis=0).any()
    delta = x[0, 2] - profile.means[im.input_operation][2]
    kernel = np.asarray(model.get_layer("own").kernel)[2, :, 1]
    sign = np.sign(one.neurons["own"][2, 1] * (kernel @ delta))
    np.testing.assert_array_equal(sources[2], sign * np.sign(kernel * delta))


def test_products_and_softmax_of_functional_models():
    rng = np.random.default_rng(5)
    inputs = keras.Input((4, 3))
    a, b = layers.Dense(3, name="a")(inputs), layers.Dense(3, name="b")(inputs)
    scores = ops.matmul(a, ops.swapaxes(b, 1, 2))
    mixed = ops.einsum("bqk,bkd->bqd", ops.softmax(scores, axis=-1), inputs)
    cosine = layers.Dot(axes=2, normalize=True)([a, b])
    flat = layers.Dot(axes=1)([layers.Flatten()(a), layers.Flatten()(b)])
    joined = layers.Concatenate()([layers.Flatten()(mixed), layers.Flatten()(cosine), flat])
    model = keras.Model(inputs, joined)
    im = nns.InstrumentedModel(model)
    x = rng.normal(size=(3, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(im.predict(x), np.asarray(model(x)), atol=1e-5)
    kinds = [o.kind for o in im.operations]
    assert kinds.count("product_sum") == 4 and kinds.count("softmax") == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.dot(x, ops.swapaxes(x, 1, 2)), "every other"),
        (lambda x: ops.einsum("abc,dbc->ad", x, x), "mixes samples"),
    ],
)
def test_products_without_a_rule_are_named(build, message):
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, build(inputs))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=message):
        nns.InstrumentedModel(model)


def test_a_softmax_at_the_end_stays_elementwise():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax", name="end")(inputs))
    im = nns.InstrumentedModel(model)
    assert im["end"].kind == "elementwise" and im.logit_operation == "end:pre"
