"""The layer-level baseline."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.neusemslice.deeparc import remove_layers
from support import transformers
from support.classifiers import make, randomise, samples


def stack(width=4):
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, padding="same", name="c1"),
            layers.ReLU(),
            layers.Conv2D(width, 3, padding="same", use_bias=False, name="c2"),
            layers.BatchNormalization(name="n2"),
            layers.ReLU(name="r2"),
            layers.Conv2D(5, 3, strides=2, padding="same", name="c3"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(7, name="d"),
            layers.ReLU(),
            layers.Dense(3, name="logits"),
        ]
    )
    return randomise(model, np.random.default_rng(0))


def test_functional_and_subclassed_models_lose_layers():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.logits, self.hidden = layers.Dense(3, name="logits"), layers.Dense(6, name="h")

        def call(self, x):
            return self.logits(keras.ops.tanh(self.hidden(x)))

    inputs = keras.Input((6,))  # without a name
    functional = keras.Model(inputs, Two().call(inputs))
    subclassed = Two()
    subclassed(np.zeros((1, 6)))
    for model, last in ((functional, functional.layers[-1]), (subclassed, subclassed.logits)):
        x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
        small = remove_layers(model, ["h"], x)
        np.testing.assert_allclose(small(x), last(np.tanh(x)), rtol=1e-5, atol=1e-6)


def test_a_layer_before_a_normalisation_called_as_a_function_is_left_out():
    """Such a call keeps its options (`mask`), which the layer in its place does not know."""
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same", name="c1")(inputs)
    x = layers.BatchNormalization(name="n1")(x)
    x = layers.ReLU(name="r1")(x)
    x = layers.Conv2D(4, 3, padding="same", name="c2")(x)
    x = layers.BatchNormalization(name="n2")(x, training=False)
    x = layers.ReLU(name="r2")(x)
    x = layers.GlobalAveragePooling2D(name="p")(x)
    outputs = layers.Dense(3, name="logits")(x)
    model = randomise(keras.Model(inputs, outputs), np.random.default_rng(0))
    x, _ = samples(model, 9)
    expected = x
    for name in ("c1", "n1", "r1", "r2", "p", "logits"):
        expected = model.get_layer(name)(expected)
    np.testing.assert_allclose(remove_layers(model, ["c2"], x)(x), expected, rtol=1e-5, atol=1e-6)


def test_a_layer_of_equal_shapes_is_left_out():
    model = stack()
    x, _ = samples(model, 12)
    small = remove_layers(model, ["c2"], x)
    assert small.count_params() == model.count_params() - 3 * 3 * 4 * 4 - 4 * 4
    without = keras.Sequential(
        [model.inputs[0], *(layer for layer in model.layers if layer.name not in ("c2", "n2"))]
    )
    np.testing.assert_allclose(small(x), without(x), rtol=1e-5)


@pytest.mark.parametrize("name", ["c2", "c3", "d"])
def test_a_sewing_layer_reproduces_an_affine_layer(name):
    """Nothing is lost by the replacement of a layer that is a 1×1 map itself."""
    model = stack(width=6)
    if name != "d":
        kernel = np.zeros(model.get_layer(name).kernel.shape)
        middle = 1 if name == "c2" else 0  # the position that strides of 2 on 6 pixels read
        kernel[middle, middle] = np.random.default_rng(0).normal(size=kernel.shape[2:])
        model.get_layer(name).kernel.assign(kernel)
    x, _ = samples(model, 200)
    small = remove_layers(model, [name], x)
    np.testing.assert_allclose(small(x), model(x), rtol=1e-2, atol=1e-2)


def test_a_layers_own_activation_stays():
    model = make("perceptron")  # b has a ReLU of its own
    x, _ = samples(model, 200)
    np.testing.assert_allclose(remove_layers(model, ["b"], x)(x), model(x), rtol=1e-3, atol=1e-3)
    square = keras.Sequential(
        [keras.Input((5,)), layers.Dense(5, activation="tanh", name="d"), layers.Dense(3)]
    )
    last = square.layers[-1]
    without = remove_layers(square, ["d"], x[:, :5])
    np.testing.assert_allclose(without(x[:, :5]), last(np.tanh(x[:, :5])), rtol=1e-5, atol=1e-6)


def test_a_dense_sewing_layer_saves_nothing():
    """As the paper found for its perceptron."""
    model = stack()
    x, _ = samples(model, 200)
    assert remove_layers(model, ["d"], x).count_params() == model.count_params()


def test_bad_layers_are_refused():
    model = stack()
    x, _ = samples(model, 3)
    with pytest.raises(InvalidArgumentError, match="Unknown hidden layer 'logits'"):
        remove_layers(model, ["logits"], x)
    tokens = np.ones((3, transformers.LENGTH), int)
    with pytest.raises(InvalidArgumentError, match="hidden layer"):  # its neurons are heads
        remove_layers(transformers.classifier(), ["block_attention"], tokens)
    with pytest.raises(nns.errors.UnsupportedLayerError, match="1×1 convolution"):
        remove_layers(make("convolutional"), ["c2"], samples(make("convolutional"), 3)[0])
