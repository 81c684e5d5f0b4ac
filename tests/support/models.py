"""Small models with dyadic weights: a table for the oracle, and a random generator.

Means are over powers of two wherever an exact tie could be decided by rounding.
"""

import keras
import numpy as np
from keras import layers


def dyadic(rng, shape, low=-1.0, high=1.0):
    """Random multiples of 1/4."""
    return rng.integers(int(low * 4), int(high * 4) + 1, shape) / 4


def set_dyadic_weights(model, rng):
    """Give every layer dyadic weights; variances are powers of 4, so roots are exact."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.Model):
            continue
        if isinstance(layer, layers.BatchNormalization):
            gamma = rng.choice([-2, -1, -0.5, 0.5, 1, 2], layer.gamma.shape)
            variance = rng.choice([0.25, 1, 4], layer.moving_variance.shape)
            layer.set_weights([gamma, dyadic(rng, gamma.shape), dyadic(rng, gamma.shape), variance])
        elif layer.weights:
            layer.set_weights([dyadic(rng, w.shape) for w in layer.weights])
    return model


def chain(*stack, shape=(4, 4, 2), classes=3):
    """A sequential model that ends in logits."""
    tail = [layers.Flatten(), layers.Dense(classes)]
    return keras.Sequential([keras.Input(shape), *stack, *tail])


def graph(build, shape=(4, 4, 2), classes=3):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(build(inputs))))


def normalisation():
    return layers.BatchNormalization(epsilon=0)


def shared_convolution(x):
    conv = layers.Conv2D(2, 3, padding="same", activation="relu")
    return conv(conv(x))


def residual(x):
    h = layers.Conv2D(2, 3, padding="same")(x)
    h = layers.ReLU()(normalisation()(h))
    return layers.ReLU()(layers.Add()([layers.Conv2D(2, 3, padding="same")(h), x]))


def join_branches(x):
    a = layers.Conv2D(2, 1, activation="relu")(x)
    b = layers.Conv2D(3, 3, padding="same")(x)
    return layers.Concatenate()([a, b, layers.MaxPooling2D(3, 1, padding="same")(x)])


def squeeze_excite(x):
    h = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    s = layers.GlobalAveragePooling2D(keepdims=True)(h)
    s = layers.Conv2D(4, 1)(s)
    return layers.Multiply()([h, s])


def nested(x):
    inner = keras.Sequential([layers.Conv2D(2, 3, padding="same"), layers.ReLU()], name="inner")
    return inner(x) + inner(inner(x))


CONV = layers.Conv2D
MODELS = {
    "dense": lambda: chain(layers.Flatten(), layers.Dense(6, activation="relu")),
    "dense on positions": lambda: chain(layers.Dense(3, activation="relu")),
    "conv valid": lambda: chain(CONV(3, 3)),
    "conv same": lambda: chain(CONV(3, 3, padding="same", activation="relu")),
    "conv strides same": lambda: chain(CONV(3, 3, 2, padding="same"), shape=(5, 4, 2)),
    "conv strides valid": lambda: chain(CONV(3, 2, 3), shape=(7, 5, 2)),
    "conv even kernel same": lambda: chain(CONV(2, (2, 4), padding="same")),
    "conv dilated": lambda: chain(CONV(2, 2, dilation_rate=2, padding="same", activation="relu")),
    "conv groups": lambda: chain(CONV(6, 3, groups=2, padding="same"), shape=(4, 4, 4)),
    "conv 1x1": lambda: chain(CONV(4, 1, activation="relu"), CONV(2, 1)),
    "conv1d causal": lambda: chain(
        layers.Conv1D(3, 3, padding="causal", dilation_rate=2), shape=(8, 2)
    ),
    "conv3d": lambda: chain(layers.Conv3D(2, 2, padding="same"), shape=(2, 4, 2, 2)),
    "depthwise": lambda: chain(
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, activation="relu")
    ),
    "depthwise strides": lambda: chain(layers.DepthwiseConv2D(3, 2, padding="same")),
    "separable": lambda: chain(
        layers.SeparableConv2D(3, 3, padding="same", depth_multiplier=2, activation="relu")
    ),
    "transposed same": lambda: chain(
        layers.Conv2DTranspose(2, 3, strides=2, padding="same"), shape=(2, 2, 3)
    ),
    "transposed valid": lambda: chain(
        layers.Conv2DTranspose(2, 3, strides=2, activation="relu"), shape=(2, 2, 3)
    ),
    "transposed even": lambda: chain(
        layers.Conv2DTranspose(2, (4, 2), strides=(2, 1), padding="same"), shape=(3, 2, 2)
    ),
    "average pool": lambda: chain(layers.AveragePooling2D(2), CONV(2, 2)),
    "average pool overlap": lambda: chain(layers.AveragePooling2D(2, 1)),
    "average pool same": lambda: chain(layers.AveragePooling2D(2, padding="same"), shape=(5, 3, 2)),
    "max pool": lambda: chain(CONV(3, 3, padding="same"), layers.MaxPooling2D(2)),
    "max pool overlap": lambda: chain(layers.MaxPooling2D(3, 2, padding="same")),
    "global average": lambda: chain(CONV(4, 3, padding="same"), layers.GlobalAveragePooling2D()),
    "global max": lambda: chain(CONV(4, 3, padding="same"), layers.GlobalMaxPooling2D()),
    "batch norm": lambda: chain(CONV(3, 3, padding="same"), normalisation(), layers.ReLU()),
    "relu6": lambda: chain(CONV(3, 3, padding="same"), layers.ReLU(6.0)),
    "leaky relu": lambda: chain(CONV(3, 3, padding="same"), layers.LeakyReLU(0.25)),
    "padding": lambda: chain(layers.ZeroPadding2D(((1, 2), (0, 1))), CONV(2, (4, 2))),
    "cropping": lambda: chain(CONV(2, 3, padding="same"), layers.Cropping2D(((1, 0), (0, 2)))),
    "up sampling": lambda: chain(CONV(2, 3), layers.UpSampling2D(2), CONV(2, 2)),
    "permute": lambda: chain(layers.Permute((2, 1, 3)), CONV(2, (3, 1))),
    "reshape": lambda: chain(layers.Reshape((2, 8, 2)), CONV(2, (1, 3)), layers.Dropout(0.5)),
    "residual add": lambda: graph(residual),
    "subtract": lambda: graph(lambda x: layers.Subtract()([CONV(2, 3, padding="same")(x), x])),
    "multiply": lambda: graph(
        lambda x: layers.Multiply()([CONV(2, 3, padding="same")(x), CONV(2, 1)(x), x])
    ),
    "multiply broadcast": lambda: graph(squeeze_excite),
    "maximum": lambda: graph(lambda x: layers.Maximum()([CONV(2, 3, padding="same")(x), x])),
    "minimum": lambda: graph(lambda x: layers.Minimum()([CONV(2, 3, padding="same")(x), x])),
    "three-way add": lambda: graph(
        lambda x: layers.Add()([CONV(2, 3, padding="same")(x), CONV(2, 1)(x), x])
    ),
    "operators": lambda: graph(lambda x: CONV(2, 1)(x) * x - CONV(2, 3, padding="same")(x)),
    "concatenate": lambda: graph(join_branches),
    "concatenate rows": lambda: graph(lambda x: layers.Concatenate(axis=1)([CONV(2, 1)(x), x])),
    "shared layer": lambda: graph(shared_convolution),
    "nested": lambda: graph(nested),
    "softmax": lambda: keras.Sequential(
        [keras.Input((4, 4, 2)), layers.Flatten(), layers.Dense(3, activation="softmax")]
    ),
}


def random_model(rng):
    """A random branching model of up to four blocks, all shapes small."""
    inputs = keras.Input((4, 4, int(rng.integers(1, 4))))
    x = inputs
    for _ in range(rng.integers(1, 4)):
        x = random_block(rng, x)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def random_block(rng, x):
    channels = x.shape[-1]
    small = min(x.shape[1], x.shape[2]) < 2
    same = CONV(channels, int(rng.integers(1, 4)), padding="same", use_bias=bool(rng.integers(2)))
    choices = [
        lambda: CONV(int(rng.integers(1, 4)), 3, padding="same", activation="relu")(x),
        lambda: layers.ReLU()(normalisation()(same(x))),
        lambda: layers.Add()([same(x), x]),
        lambda: layers.ReLU()(layers.Subtract()([x, same(x)])),
        lambda: layers.Multiply()([same(x), x]),
        lambda: layers.Concatenate()([same(x), x]),
        lambda: layers.DepthwiseConv2D(3, padding="same")(x),
        lambda: same(same(x)),
    ]
    if not small:
        choices += [
            lambda: layers.MaxPooling2D(2)(x),
            lambda: layers.AveragePooling2D(2)(x),
            lambda: CONV(2, 2, strides=2, padding="same")(x),
            lambda: layers.UpSampling2D(2)(layers.MaxPooling2D(2)(x)),
        ]
    return choices[rng.integers(len(choices))]()


def data(rng, model, samples):
    """Dyadic samples."""
    return dyadic(rng, (samples, *model.inputs[0].shape[1:]), -2, 2).astype(np.float32)
