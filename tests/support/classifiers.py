"""Small classifiers with random weights, one of each wiring."""

import keras
import numpy as np
from keras import layers

import nnslicer_tf as nns


def perceptron():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(7, name="a"),
            layers.ReLU(),
            layers.Dense(5, activation="relu", name="b"),
            layers.Dense(3, name="logits"),
        ]
    )


def convolutional():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, padding="same", name="c1"),
            layers.BatchNormalization(name="n1"),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(5, 2, use_bias=False, name="c2"),
            layers.BatchNormalization(name="n2"),
            layers.Activation("tanh"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(6, activation="relu", name="d"),
            layers.Dense(3, activation="softmax", name="probabilities"),
        ]
    )


def residual():
    inputs = keras.Input((6, 6, 2))
    x = layers.ReLU()(layers.Conv2D(4, 3, padding="same", name="c1")(inputs))
    h = layers.ReLU()(
        layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same", name="c2")(x))
    )
    h = layers.Conv2D(4, 3, padding="same", name="c3")(h)
    x = layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(h)]))
    h = layers.Concatenate()([x, layers.Conv2D(3, 1, activation="relu", name="c4")(x)])
    x = layers.GlobalAveragePooling2D()(layers.MaxPooling2D(3, 1)(h))
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


def inverted():
    """An expansion with a depthwise convolution and a squeeze-and-excitation gate."""
    inputs = keras.Input((6, 6, 2))
    h = layers.Conv2D(6, 1, use_bias=False, name="expand")(inputs)
    h = layers.Activation("hard_swish")(layers.BatchNormalization(name="n1")(h))
    h = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(layers.ZeroPadding2D(1)(h))
    h = layers.Activation("hard_swish")(layers.BatchNormalization(name="n2")(h))
    s = layers.GlobalAveragePooling2D(keepdims=True)(h)
    s = layers.Conv2D(3, 1, activation="relu", name="squeeze")(s)
    s = layers.Conv2D(6, 1, activation="hard_sigmoid", name="gate")(s)
    h = layers.Conv2D(4, 1, name="project")(layers.Multiply()([h, s]))
    x = layers.GlobalAveragePooling2D()(h)
    return keras.Model(inputs, layers.Dense(3, name="logits")(x))


MODELS = {f.__name__: f for f in (perceptron, convolutional, residual, inverted)}


def randomise(model, rng):
    """Give all weights values of their size, biases and statistics included."""
    for variable in model.variables:
        if "seed" in variable.path:
            continue
        value = rng.normal(size=variable.shape) * 0.6
        if "variance" in variable.path or "gamma" in variable.path:
            value = rng.uniform(0.5, 1.5, variable.shape)
        variable.assign(value)
    return model


def make(name, seed=0):
    return randomise(MODELS[name](), np.random.default_rng(seed))


def samples(model, count, seed=1):
    """Samples, and labels of which every class occurs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, *model.inputs[0].shape[1:])).astype(np.float32)
    return x, np.arange(count) % 3


def instrumented(name):
    return nns.InstrumentedModel(make(name))
