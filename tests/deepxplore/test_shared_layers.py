"""Coverage of layers that are called several times, against a twin in which nothing is shared."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.deepxplore import (
    BoundaryCoverage,
    KMultisectionCoverage,
    NeuronCoverage,
    NeuronRanges,
    TopKCoverage,
)

CRITERIA = (
    lambda im, ranges: NeuronCoverage(im, 0.6, ranges.neurons.granularity),
    lambda im, ranges: TopKCoverage(im, 1, ranges.neurons.granularity),
    lambda im, ranges: KMultisectionCoverage(ranges, 7),
    lambda im, ranges: BoundaryCoverage(ranges),
    lambda im, ranges: BoundaryCoverage(ranges, "upper"),
)


def encoder(shape, name, inner):
    """Return a nested model that calls one of its layers twice, by `inner(name)`."""
    inputs = keras.Input(shape)
    first, again = inner(f"{name}_inner")
    x = again(layers.ReLU()(first(inputs)))
    return keras.Model(inputs, layers.Dense(3, activation="tanh", name="out")(x), name=name)


class Makers:
    """What makes layers: shared ones, of which a call is another call of one layer, or not."""

    def __init__(self, shared):
        self.shared = shared

    def __call__(self, make, calls):
        """Return a layer for each call, each with the weights of the first."""
        one = make("one")
        return [one if self.shared else make(f"call{k}") for k in range(calls)]


def dense(each):
    inputs = keras.Input((4,))
    x = inputs
    for layer in each(lambda name: layers.Dense(4, activation="relu", name=name), 3):
        x = layer(x)
    return inputs, layers.Dense(2)(x)


def convolution(each):
    """Beside each other, with an activation that is fused, and one that is not."""
    inputs = keras.Input((5, 5, 2))
    a, b = each(lambda name: layers.Conv2D(3, 2, activation="relu", name=name), 2)
    c, d = each(lambda name: layers.BatchNormalization(name=f"norm_{name}"), 2)
    x = layers.Add()([c(a(inputs)), d(b(inputs * -1.0))])
    return inputs, layers.Dense(2)(layers.Flatten()(x))


def nested(each):
    """An encoder with a shared layer of its own, called twice."""
    left, right = inputs = [keras.Input((4,)), keras.Input((4,))]

    def inner(name):
        return each(lambda own: layers.Dense(4, activation="sigmoid", name=f"{name}_{own}"), 2)

    a, b = each(lambda name: encoder((4,), name, inner), 2)
    return inputs, layers.Dense(2)(layers.Concatenate()([a(left), b(right)]))


def in_two_models(each):
    """The shared layer is one of an encoder, and called outside of it, too."""
    inputs = keras.Input((4,))
    inside, outside = each(lambda name: layers.Dense(4, activation="relu", name=name), 2)
    given = keras.Input((4,))
    whole = keras.Model(given, inside(layers.Dense(4, name="before")(given)), name="encoder")
    return inputs, layers.Dense(2)(layers.Add()([whole(inputs), outside(inputs)]))


def recurrent(each):
    inputs = keras.Input((5, 3))
    a, b = each(lambda name: layers.LSTM(3, return_sequences=True, name=name), 2)
    return inputs, layers.Dense(2)(layers.Flatten()(b(a(inputs))))


def attention(each):
    inputs = keras.Input((4, 6))
    a, b = each(lambda name: layers.MultiHeadAttention(2, 3, name=name), 2)
    x = a(inputs, inputs)
    return inputs, layers.Dense(2)(layers.Flatten()(b(x, inputs)))


MODELS = (dense, convolution, nested, in_two_models, recurrent, attention)


def twins(build):
    """Return a model that shares layers, and one with the same weights that does not."""
    keras.utils.set_random_seed(1)
    shared, twin = (keras.Model(*build(Makers(is_shared))) for is_shared in (True, False))
    return shared, twin


@pytest.mark.parametrize("granularity", ["channel", "activation"])
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_coverage_is_that_of_a_twin_that_shares_nothing(build, granularity):
    ims = [nns.InstrumentedModel(model) for model in twins(build)]
    # The twin's kernels are those of the operations of the same order in the model that shares.
    for own, other in zip(*(im.operations for im in ims), strict=True):
        assert (own.kind, own.shape, own.part) == (other.kind, other.shape, other.part)
        if getattr(own.keras_layer, "weights", None):
            other.keras_layer.set_weights(own.keras_layer.get_weights())
    rng = np.random.default_rng(0)
    data = [
        [rng.normal(size=(n, *shape)).astype(np.float32) for shape in ims[0].input_shapes.values()]
        for n in (20, 9)
    ]
    train, x = (part if len(part) > 1 else part[0] for part in data)
    ranges = [NeuronRanges.from_data(im, train, granularity, progress=False) for im in ims]
    for criterion in CRITERIA:
        own, other = (criterion(*pair) for pair in zip(ims, ranges, strict=True))
        assert own.update(x) == other.update(x) > 0
        assert own.total() == other.total()
        for a, b in zip(own.covered.values(), other.covered.values(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_neurons_of_a_layer_that_is_called_twice():
    """5 units twice, 7 once; not the sums before their activations."""
    inputs = keras.Input((5,))
    layer = layers.Dense(5, activation="relu", name="c")
    model = keras.Model(inputs, layers.Dense(7, name="d#1")(layer(layer(inputs))))
    coverage = NeuronCoverage(model)
    assert list(coverage.covered) == ["c", "c#1", "d#1"] and len(coverage.neurons) == 17
