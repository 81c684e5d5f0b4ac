"""Small models, one for each architecture or kind of input that users have."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
from keras import layers, ops

Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A kind of model.

    Attributes:
        build: Builds the model; weights are drawn after the global seed was set.
        draw: Draws inputs; by default of a standard normal distribution.
        labels: Number of classes of a classifier; 0 for other models.
    """

    build: Callable[[], keras.Model]
    draw: Draw | None = None
    classes: int = 0

    def samples(self, model: keras.Model, count: int, seed: int) -> np.ndarray | list[np.ndarray]:
        """Return inputs, one array for each input of the model."""
        rng = np.random.default_rng(seed)
        if self.draw is not None:
            return self.draw(rng, count)
        arrays = [rng.normal(size=(count, *t.shape[1:])).astype("f4") for t in model.inputs]
        return arrays if len(arrays) > 1 else arrays[0]


CASES: dict[str, Case] = {}


def case(name: str, classes: int = 0, draw: Draw | None = None) -> Callable[[Callable], Callable]:
    """Register a builder under a name."""

    def register(build: Callable) -> Callable:
        CASES[name] = Case(build, draw, classes)
        return build

    return register


def stack(
    shape: tuple[int | None, ...], *parts: layers.Layer, dtype: str = "float32"
) -> keras.Model:
    return keras.Sequential([keras.Input(shape, dtype=dtype), *parts])


def integers(below: int, shape: tuple[int, ...], dtype: str = "int32") -> Draw:
    return lambda rng, count: rng.integers(0, below, (count, *shape)).astype(dtype)


def head(classes: int = 3) -> list[layers.Layer]:
    return [layers.Flatten(), layers.Dense(classes)]


def image(*parts: layers.Layer, channels: int = 2, classes: int = 3) -> keras.Model:
    return stack((6, 6, channels), *parts, *head(classes))


# --- outputs ---------------------------------------------------------------------------------

case("logits", 3)(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(3)))
case("softmax", 3)(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(3, "softmax")))
case("one sigmoid", 2)(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")))
case("two logits", 2)(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(2)))
case("log-softmax", 3)(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(3, "log_softmax")))
case("multi-label")(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(3, "sigmoid")))
case("regression")(lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(1)))
case("mixed-precision recipe", 3)(
    lambda: stack(
        (5,),
        layers.Dense(8, "relu"),
        layers.Dense(3, "softmax"),
        layers.Activation("linear", dtype="float32"),
    )
)
case("softmax, then Reshape", 3)(
    lambda: stack((5,), layers.Dense(3), layers.Softmax(), layers.Reshape((3,)))
)
case("map of outputs")(
    lambda: stack(
        (6, 6, 1), layers.Conv2D(3, 3, padding="same", activation="relu"), layers.Conv2D(1, 3)
    )
)


case("hard sigmoid", 2)(
    lambda: stack((5,), layers.Dense(8, "relu"), layers.Dense(1, "hard_sigmoid"))
)
case("softmax of a 1 × 1 map", 3)(
    lambda: stack(
        (6, 6, 1), layers.Conv2D(3, 6), layers.Softmax(), layers.Reshape((3,), name="flat")
    )
)


@case("falling sigmoid", 2)
def falling_sigmoid() -> keras.Model:
    x = keras.Input((5,))
    return keras.Model(x, 1.0 - layers.Dense(1, "sigmoid")(layers.Dense(8, "relu")(x)))


@case("ensemble", 3)
def ensemble() -> keras.Model:
    x = keras.Input((5,))
    members = [layers.Dense(3, "softmax")(layers.Dense(8, "relu")(x)) for _ in range(3)]
    return keras.Model(x, layers.Average()(members))


@case("two outputs")
def two_outputs() -> keras.Model:
    x = keras.Input((5,))
    h = layers.Dense(8, "relu")(x)
    return keras.Model(x, [layers.Dense(3, name="class")(h), layers.Dense(1, name="value")(h)])


# --- activations -----------------------------------------------------------------------------


def with_activation(activation: object) -> Callable[[], keras.Model]:
    return lambda: stack((5,), layers.Dense(8, activation=activation), layers.Dense(3))


@keras.saving.register_keras_serializable("gauntlet")
def tf_relu(x: object) -> object:
    import tensorflow as tf

    return tf.nn.relu(x)


@keras.saving.register_keras_serializable("gauntlet")
def own_softmax(x: object) -> object:
    return ops.softmax(x)


@keras.saving.register_keras_serializable("gauntlet")
def relu6(x: object) -> object:
    return ops.minimum(ops.maximum(x, 0.0), 6.0)


case("tf.nn.relu", 3)(with_activation(tf_relu))
case("own softmax inside", 3)(with_activation(own_softmax))
case("own ReLU6", 3)(with_activation(relu6))
case("tanh", 3)(with_activation("tanh"))
case("GELU", 3)(with_activation("gelu"))
case("LeakyReLU", 3)(
    lambda: stack((5,), layers.Dense(8), layers.LeakyReLU(negative_slope=0.25), layers.Dense(3))
)
case("PReLU", 3)(lambda: stack((5,), layers.Dense(8), layers.PReLU("uniform"), layers.Dense(3)))


@case("clipped by keras.ops", 3)
def clipped() -> keras.Model:
    x = keras.Input((6,))
    h = ops.minimum(layers.Dense(8, "relu")(ops.maximum(x, 0.0)), 6.0)
    return keras.Model(x, layers.Dense(3)(h))


# --- convolutions and pooling ----------------------------------------------------------------

case("Conv2D and MaxPooling2D", 3)(
    lambda: image(layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(2))
)
case("strides larger than the kernel", 3)(
    lambda: stack(
        (8, 8, 4), layers.Conv2D(4, 1, strides=2), layers.GlobalAveragePooling2D(), layers.Dense(3)
    )
)
case("dilated convolution", 3)(
    lambda: image(layers.Conv2D(4, 2, dilation_rate=2, activation="relu"))
)
case("grouped convolution", 3)(lambda: image(layers.Conv2D(4, 3, groups=2, activation="relu")))
case("depthwise convolution", 3)(
    lambda: image(layers.DepthwiseConv2D(3, depth_multiplier=2, activation="relu"))
)
case("separable convolution", 3)(lambda: image(layers.SeparableConv2D(4, 3, activation="relu")))
case("transposed convolution", 3)(
    lambda: image(layers.Conv2DTranspose(3, 2, strides=2, activation="relu"))
)
case("Conv1D", 3)(
    lambda: stack((8, 2), layers.Conv1D(4, 3, activation="relu"), layers.MaxPooling1D(2), *head())
)
case("causal Conv1D", 3)(
    lambda: stack((8, 2), layers.Conv1D(4, 3, padding="causal", activation="relu"), *head())
)
case("Conv3D", 3)(
    lambda: stack(
        (4, 4, 4, 1), layers.Conv3D(2, 2, activation="relu"), layers.AveragePooling3D(2), *head()
    )
)
case("AveragePooling2D, same", 3)(
    lambda: image(layers.Conv2D(3, 2), layers.AveragePooling2D(2, padding="same"))
)
case("GlobalMaxPooling2D", 3)(
    lambda: stack((6, 6, 2), layers.Conv2D(4, 3), layers.GlobalMaxPooling2D(), layers.Dense(3))
)
case("free height and width", 3, lambda rng, n: rng.normal(size=(n, 6, 6, 2)).astype("f4"))(
    lambda: stack(
        (None, None, 2),
        layers.Conv2D(4, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
    )
)

# --- routing and resizing --------------------------------------------------------------------

case("nearest UpSampling2D", 3)(lambda: image(layers.UpSampling2D(2), layers.Conv2D(3, 3)))
case("bilinear UpSampling2D", 3)(
    lambda: image(layers.UpSampling2D(2, interpolation="bilinear"), layers.Conv2D(3, 3))
)
case("Resizing", 3)(lambda: image(layers.Resizing(4, 4), layers.Conv2D(3, 3)))
case("padding and cropping", 3)(
    lambda: image(layers.ZeroPadding2D(1), layers.Conv2D(3, 3), layers.Cropping2D(1))
)
case("Permute and Reshape", 3)(
    lambda: stack((4, 3), layers.Permute((2, 1)), layers.Reshape((12,)), layers.Dense(3))
)
case("RepeatVector", 3)(lambda: stack((4,), layers.RepeatVector(3), *head()))
case("dropout and noise", 3)(
    lambda: stack(
        (5,),
        layers.GaussianNoise(0.1),
        layers.Dense(8, "relu"),
        layers.Dropout(0.5),
        layers.Dense(3),
    )
)

# --- normalisation and preprocessing ---------------------------------------------------------


def trained(layer: layers.BatchNormalization) -> layers.BatchNormalization:
    layer.build((None, 8))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.uniform(0.5, 2, w.shape) for w in layer.get_weights()])
    return layer


case("BatchNormalization", 3)(
    lambda: stack(
        (5,), layers.Dense(8), trained(layers.BatchNormalization()), layers.ReLU(), layers.Dense(3)
    )
)
case("LayerNormalization", 3)(
    lambda: stack((5,), layers.Dense(8), layers.LayerNormalization(), layers.Dense(3))
)
case("GroupNormalization", 3)(lambda: image(layers.Conv2D(4, 3), layers.GroupNormalization(2)))
case("UnitNormalization", 3)(
    lambda: stack((5,), layers.Dense(8), layers.UnitNormalization(), layers.Dense(3))
)


@case("adapted Normalization", 2)
def normalised() -> keras.Model:
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(3.0, 2.0, (100, 5)).astype("f4"))
    return stack((5,), layer, layers.Dense(8, "relu"), layers.Dense(1, "sigmoid"))


@case("integer columns", 3, integers(9, (5,), "int64"))
def integer_columns() -> keras.Model:
    layer = layers.Normalization()
    layer.adapt(np.arange(50.0).reshape(10, 5))
    return stack((5,), layer, layers.Dense(8, "relu"), layers.Dense(3), dtype="int64")


case("uint8 images", 3, integers(256, (6, 6, 3), "uint8"))(
    lambda: stack((6, 6, 3), layers.Rescaling(1 / 255), layers.Conv2D(3, 3), *head(), dtype="uint8")
)


@case(
    "TextVectorization inside",
    2,
    lambda rng, n: np.array(["good film", "bad film"])[rng.integers(0, 2, n)],
)
def text_vectorised() -> keras.Model:
    vectorise = layers.TextVectorization(output_sequence_length=3)
    vectorise.adapt(["good film", "bad film"])
    x = keras.Input((), dtype="string")
    h = layers.Flatten()(layers.Embedding(5, 3)(vectorise(x)))
    return keras.Model(x, layers.Dense(2)(h))


# --- merges and graphs -----------------------------------------------------------------------


def graph(build: Callable, shape: tuple[int, ...] = (6,)) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        x = keras.Input(shape)
        return keras.Model(x, build(x))

    return make


@case("residual additions", 3)
def residual() -> keras.Model:
    x = keras.Input((6, 6, 2))
    h = layers.Conv2D(2, 3, padding="same", activation="relu")(x)
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.Add()([x, h]))))


case("x + y, x - y", 3)(graph(lambda x: layers.Dense(3)(layers.Dense(6)(x) + x - 0.5)))
case("Concatenate", 3)(
    graph(lambda x: layers.Dense(3)(layers.Concatenate()([layers.Dense(4, "relu")(x), x])))
)
case("gates", 3)(
    graph(lambda x: layers.Dense(3)(layers.Multiply()([x, layers.Dense(6, "sigmoid")(x)])))
)
case("Maximum and Minimum", 3)(
    graph(
        lambda x: layers.Dense(3)(layers.Maximum()([layers.Dense(6)(x), layers.Minimum()([x, -x])]))
    )
)


@case("shared layer", 3)
def shared() -> keras.Model:
    x, layer = keras.Input((6,)), layers.Dense(6, "relu")
    return keras.Model(x, layers.Dense(3)(layer(layer(x))))


@case("base and head", 3)
def base_and_head() -> keras.Model:
    base = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
        ],
        name="base",
    )
    top = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(3)], name="head"
    )
    x = keras.Input((6, 6, 2))
    return keras.Model(x, top(base(x)))


@case("two inputs", 3)
def two_inputs() -> keras.Model:
    a, b = keras.Input((4,)), keras.Input((3,))
    h = layers.Concatenate()([layers.Dense(5, "relu")(a), b])
    return keras.Model([a, b], layers.Dense(3)(h))


@keras.saving.register_keras_serializable("gauntlet")
class Subclassed(keras.Model):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.hidden, self.out = layers.Dense(8, "relu"), layers.Dense(3)

    def call(self, x: object) -> object:
        return self.out(self.hidden(x))


@case("subclassed", 3)
def subclassed() -> keras.Model:
    model = Subclassed()
    model(np.zeros((1, 5), "f4"))
    model.inputs_of_tests = ((5,),)
    return model


case("very deep", 3)(
    lambda: stack(
        (5,),
        *(layers.Dense(5, "relu", bias_initializer="ones") for _ in range(40)),
        layers.Dense(3),
    )
)

# --- sequences -------------------------------------------------------------------------------

case("Embedding and average", 2, integers(9, (5,)))(
    lambda: stack(
        (5,),
        layers.Embedding(9, 4),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
        dtype="int32",
    )
)
case("masked tokens and LSTM", 2, integers(9, (5,)))(
    lambda: stack(
        (5,), layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3), layers.Dense(2), dtype="int32"
    )
)
case("SimpleRNN", 3)(lambda: stack((4, 3), layers.SimpleRNN(4), layers.Dense(3)))
case("LSTM", 3)(lambda: stack((4, 3), layers.LSTM(4), layers.Dense(3)))
case("GRU", 3)(lambda: stack((4, 3), layers.GRU(4), layers.Dense(3)))
case("Bidirectional", 3)(
    lambda: stack((4, 3), layers.Bidirectional(layers.LSTM(3)), layers.Dense(3))
)
case("stacked LSTMs", 3)(
    lambda: stack((4, 3), layers.LSTM(3, return_sequences=True), layers.LSTM(3), layers.Dense(3))
)
case("TimeDistributed", 3)(
    lambda: stack((4, 3), layers.TimeDistributed(layers.Dense(3, "relu")), *head())
)


@case("self-attention", 3)
def self_attention() -> keras.Model:
    x = keras.Input((4, 6))
    h = layers.Add()([x, layers.MultiHeadAttention(2, 3)(x, x)])
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.LayerNormalization()(h))))


@case("causal attention", 3)
def causal_attention() -> keras.Model:
    x = keras.Input((4, 6))
    h = layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(h)))


# --- kernels of other kinds ------------------------------------------------------------------


@case("LoRA", 3)
def lora() -> keras.Model:
    layer = layers.Dense(8, "relu")
    model = stack((5,), layer, layers.Dense(3))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.1))
    return model


@case("quantised to int8", 3)
def quantised() -> keras.Model:
    model = stack((5,), layers.Dense(8, "relu"), layers.Dense(3))
    with warnings.catch_warnings():  # Keras warns that an InputLayer has nothing to quantise
        warnings.simplefilter("ignore")
        model.quantize("int8")
    return model


case("constrained kernels", 3)(
    lambda: stack(
        (5,),
        layers.Dense(8, "relu", kernel_constraint=keras.constraints.MaxNorm(1.0)),
        layers.Dense(3),
    )
)

# --- what cannot be analysed -----------------------------------------------------------------

case("Lambda", 3)(lambda: stack((5,), layers.Lambda(lambda x: x * 2), layers.Dense(3)))
case("spectral normalisation", 3)(
    lambda: stack((5,), layers.SpectralNormalization(layers.Dense(8, "relu")), layers.Dense(3))
)
case("CategoryEncoding", 3, integers(4, (1,)))(
    lambda: stack((1,), layers.CategoryEncoding(4, "one_hot"), layers.Dense(3), dtype="int32")
)


class Doubled(layers.Layer):
    def call(self, x: object) -> object:
        return 2 * x


case("layer without rules", 3)(lambda: stack((5,), Doubled(), layers.Dense(3)))


@case("always-on dropout", 3)
def always_on() -> keras.Model:
    x = keras.Input((5,))
    return keras.Model(x, layers.Dense(3)(layers.Dropout(0.5)(x, training=True)))


@keras.saving.register_keras_serializable("gauntlet")
class Branching(keras.Model):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.out = layers.Dense(3)

    def call(self, x: object) -> object:
        import tensorflow as tf

        return self.out(tf.nn.relu(x)) if tf.reduce_sum(0 * x) >= 0 else self.out(x)


@case("control flow in call", 3)
def branching() -> keras.Model:
    model = Branching()
    model(np.zeros((1, 5), "f4"))
    return model
