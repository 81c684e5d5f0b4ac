"""Two models that compute the same have the same slices: of their inputs, amounts and counts.

Neither is known to be right, so no oracle is shared with the library: a rule that is wrong for one
form of a layer gives the two different answers.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

SERIES, IMAGE, ROW = (5, 3), (6, 6, 2), (5,)


def sequential(shape, *stack):
    return keras.Sequential([keras.Input(shape), *stack])


def same_weights(model, twin):
    twin.set_weights(model.get_weights())
    return model, twin


def permuted_units():
    model, twin = (
        sequential(ROW, layers.Dense(8, "relu"), layers.Dense(6, "relu"), layers.Dense(3))
        for _ in range(2)
    )
    kernel, bias, following, *others = model.get_weights()
    order = np.random.default_rng(0).permutation(8)
    twin.set_weights([kernel[:, order], bias[order], following[order], *others])
    return model, twin


def rescaled_units():
    """A ReLU passes a positive factor on; the next kernel divides by it."""
    model, twin = (sequential(ROW, layers.Dense(8, "relu"), layers.Dense(3)) for _ in range(2))
    kernel, bias, following, last = model.get_weights()
    factor = np.random.default_rng(0).uniform(0.5, 2, 8)
    twin.set_weights([kernel * factor, bias * factor, following / factor[:, None], last])
    return model, twin


def nested_encoder():
    model = sequential(ROW, layers.Dense(8, "relu"), layers.Dense(6, "relu"), layers.Dense(3))
    x = keras.Input(ROW)
    encoder = sequential(ROW, layers.Dense(8, "relu"), layers.Dense(6, "relu"))
    return same_weights(model, keras.Model(x, layers.Dense(3)(encoder(x))))


def einsum():
    model = sequential(ROW, layers.Dense(8, "relu"), layers.Dense(3))
    dense = layers.EinsumDense("ab,bc->ac", 8, bias_axes="c", activation="relu")
    return same_weights(model, sequential(ROW, dense, layers.Dense(3)))


def convolution_of_one_pixel():
    model = sequential(ROW, layers.Dense(8, "relu"), layers.Dense(3))
    convolution = layers.Conv2D(8, 1, activation="relu")
    twin = sequential(
        ROW, layers.Reshape((1, 1, 5)), convolution, layers.Flatten(), layers.Dense(3)
    )
    kernel, *others = model.get_weights()
    twin.set_weights([kernel[None, None], *others])
    return model, twin


def folded_normalization():
    normalization = layers.BatchNormalization()
    model = sequential(ROW, layers.Dense(8), normalization, layers.ReLU(), layers.Dense(3))
    scale, offset, mean, variance = np.random.default_rng(0).uniform(0.5, 1.5, (4, 8))
    normalization.set_weights([scale, offset, mean, variance])
    kernel, bias, *_, following, last = model.get_weights()
    factor = scale / np.sqrt(variance + normalization.epsilon)
    twin = sequential(ROW, layers.Dense(8), layers.ReLU(), layers.Dense(3))
    twin.set_weights([kernel * factor, (bias - mean) * factor + offset, following, last])
    return model, twin


def explicit_padding():
    rest = [lambda: layers.MaxPooling2D(2), layers.Flatten, lambda: layers.Dense(3)]
    same = layers.Conv2D(3, 3, padding="same", activation="relu")
    valid = layers.Conv2D(3, 3, activation="relu")
    model = sequential(IMAGE, same, *(make() for make in rest))
    twin = sequential(IMAGE, layers.ZeroPadding2D(1), valid, *(make() for make in rest))
    return same_weights(model, twin)


def dense_kernel_of(layer, fill):
    """The twin has a kernel of 3×3 that is 0 where the layer has no weights."""
    model = sequential(IMAGE, layer, layers.Flatten(), layers.Dense(3))
    kernel, *others = model.get_weights()
    whole = np.zeros((3, 3, 2, layer.output.shape[-1]))
    fill(whole, kernel)
    convolution = layers.Conv2D(whole.shape[-1], 3, activation="relu")
    twin = sequential(IMAGE, convolution, layers.Flatten(), layers.Dense(3))
    twin.set_weights([whole, *others])
    return model, twin


def dilated_kernel():
    def fill(whole, kernel):
        whole[::2, ::2] = kernel

    return dense_kernel_of(layers.Conv2D(3, 2, dilation_rate=2, activation="relu"), fill)


def grouped_kernel():
    def fill(whole, kernel):
        whole[:, :, 0, :2], whole[:, :, 1, 2:] = kernel[:, :, 0, :2], kernel[:, :, 0, 2:]

    return dense_kernel_of(layers.Conv2D(4, 3, groups=2, activation="relu"), fill)


def depthwise_kernel():
    def fill(whole, kernel):
        whole[:, :, 0, :2], whole[:, :, 1, 2:] = kernel[:, :, 0], kernel[:, :, 1]

    layer = layers.DepthwiseConv2D(3, depth_multiplier=2, activation="relu")
    return dense_kernel_of(layer, fill)


def mean_as_a_kernel():
    def network(pooling):
        convolution = layers.Conv2D(4, 3, activation="relu")
        return sequential(IMAGE, convolution, pooling, layers.Flatten(), layers.Dense(3))

    model = network(layers.AveragePooling2D(2))
    twin = network(layers.DepthwiseConv2D(2, strides=2, use_bias=False))
    kernel, bias, *others = model.get_weights()
    twin.set_weights([kernel, bias, np.full((2, 2, 4, 1), 0.25), *others])
    return model, twin


def causal_series():
    causal = layers.Conv1D(4, 3, padding="causal", activation="relu")
    model = sequential(SERIES, causal, layers.Flatten(), layers.Dense(3))
    kernel, *others = model.get_weights()
    stack = [
        layers.Reshape((5, 1, 3)),
        layers.ZeroPadding2D(((2, 0), (0, 0))),
        layers.Conv2D(4, (3, 1), activation="relu"),
    ]
    twin = sequential(SERIES, *stack, layers.Flatten(), layers.Dense(3))
    twin.set_weights([kernel[:, None], *others])
    return model, twin


def dense_of_each_step():
    model, twin = (
        sequential(SERIES, layer, layers.Flatten(), layers.Dense(3))
        for layer in (layers.TimeDistributed(layers.Dense(4, "relu")), layers.Dense(4, "relu"))
    )
    return same_weights(model, twin)


def attention_by_hand():
    x = keras.Input(SERIES)
    attended = layers.MultiHeadAttention(1, 4)(x, x)
    model = keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(attended)))
    query, key, value, after, head = (layers.Dense(n) for n in (4, 4, 4, 3, 3))
    x = keras.Input(SERIES)
    scores = ops.softmax(ops.matmul(query(x) / 2, ops.transpose(key(x), (0, 2, 1))))
    attended = after(ops.matmul(scores, value(x)))
    twin = keras.Model(x, head(layers.GlobalAveragePooling1D()(attended)))
    weights = model.get_weights()
    for layer, kernel, bias in zip(
        (query, key, value, after, head), weights[::2], weights[1::2], strict=True
    ):
        shapes = [variable.shape for variable in layer.weights]
        layer.set_weights([kernel.reshape(shapes[0]), bias.reshape(shapes[1])])
    return model, twin


PAIRS = [
    permuted_units,
    rescaled_units,
    nested_encoder,
    einsum,
    convolution_of_one_pixel,
    folded_normalization,
    explicit_padding,
    dilated_kernel,
    grouped_kernel,
    depthwise_kernel,
    mean_as_a_kernel,
    causal_series,
    dense_of_each_step,
    attention_by_hand,
]


def check_equal(model, twin, x, twin_x=None, of_twin=np.asarray):
    """Assert equal answers, amounts and counts of the inputs."""
    results, twin_x = [], x if twin_x is None else twin_x
    for each, samples in ((model, x), (twin, twin_x)):
        im = nns.InstrumentedModel(each)
        profile = nns.Profile.from_data(im, samples, progress=False)
        amounts = nns.Slicer(im, profile, contribution="amount", progress=False)
        counts = nns.Slicer(im, profile, theta=0.0, progress=False)
        slices = [slicer.slice(samples[:12]) for slicer in (amounts, counts)]
        of_inputs = [s.neurons[next(iter(s.neurons))] for s in slices]
        results.append((each.predict(samples, verbose=0), *of_inputs))
    (answers, amounts, counts), (twin_answers, twin_amounts, twin_counts) = results
    np.testing.assert_allclose(answers, twin_answers, atol=1e-5)
    assert amounts.any() and counts.any()
    np.testing.assert_allclose(amounts, of_twin(twin_amounts), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(counts, of_twin(twin_counts))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_pairs(pair):
    keras.utils.set_random_seed(3)
    model, twin = pair()
    x = np.random.default_rng(1).normal(size=(60, *model.input_shape[1:])).astype(np.float32)
    check_equal(model, twin, x)


def test_channels_first():
    keras.utils.set_random_seed(3)
    stacks = (
        [layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(3)]
        for _ in range(2)
    )
    model = sequential(IMAGE, *next(stacks))
    twin = sequential((2, 6, 6), layers.Permute((2, 3, 1)), *next(stacks))
    same_weights(model, twin)
    x = np.random.default_rng(1).normal(size=(60, *IMAGE)).astype(np.float32)
    check_equal(model, twin, x, np.moveaxis(x, -1, 1), lambda v: np.moveaxis(v, 0, -1))


@pytest.mark.parametrize("form", ["cell", "unrolled", "backwards", "both directions"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
def test_forms_of_recurrence(name, form):
    keras.utils.set_random_seed(3)
    layer, cell = getattr(layers, name), getattr(layers, f"{name}Cell")
    x = np.random.default_rng(1).normal(size=(60, *SERIES)).astype(np.float32)
    model = sequential(SERIES, layer(4), layers.Dense(3))
    if form == "cell":
        twin = sequential(SERIES, layers.RNN(cell(4)), layers.Dense(3))
    elif form == "both directions":
        model = sequential(SERIES, layers.Bidirectional(layer(4)), layers.Dense(3))
        inputs = keras.Input(SERIES)
        both = layers.Concatenate()([layer(4)(inputs), layer(4, go_backwards=True)(inputs)])
        twin = keras.Model(inputs, layers.Dense(3)(both))
    else:
        options = {"unrolled": {"unroll": True}, "backwards": {"go_backwards": True}}[form]
        twin = sequential(SERIES, layer(4, **options), layers.Dense(3))
    same_weights(model, twin)
    if form == "backwards":
        check_equal(model, twin, x, x[:, ::-1].copy(), lambda v: v[::-1])
    else:
        check_equal(model, twin, x)


class OwnMask(layers.Layer):
    """Masks the steps that equal a marker, and passes its input on as it is."""

    def __init__(self, marker):
        super().__init__()
        self.marker, self.supports_masking = marker, True

    def compute_mask(self, x, mask=None):
        return ops.any(ops.not_equal(x, self.marker), axis=-1)

    def call(self, x):
        return x


@pytest.mark.parametrize("between", ["nothing", "dense", "normalization", "recurrence"])
def test_the_marker_of_padding_does_not_matter(between):
    rng = np.random.default_rng(1)
    x, lengths = rng.normal(size=(60, *SERIES)), rng.integers(1, 6, 60)
    is_padding = np.arange(5) >= lengths[:, None]
    pair, inputs = [], []
    for marker in (-7.0, 50.0):
        keras.utils.set_random_seed(3)
        stack = {
            "nothing": [],
            "dense": [layers.Dense(4, "relu")],
            "normalization": [layers.Dense(4), layers.LayerNormalization()],
            "recurrence": [layers.Bidirectional(layers.GRU(3, return_sequences=True))],
        }[between]
        pair.append(sequential(SERIES, OwnMask(marker), *stack, layers.LSTM(4), layers.Dense(3)))
        inputs.append(np.where(is_padding[..., None], marker, x).astype(np.float32))
    check_equal(*pair, *inputs)
