"""Static slices: what they leave out has no effect."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.debugging.static import output_interval, static_slice


def sparse(im, rng, share=0.6):
    """Set many weights to zero, and one filter to a constant."""
    for kernel in im.kernels.values():
        weights = kernel.kernel() * (rng.random(kernel.shape) > share)
        kernel.variable().assign(weights)
    first = im.model.get_layer("first")
    weights, bias = first.get_weights()
    weights[..., 1] = 0
    bias[1] = 1.0
    first.set_weights([weights, bias])


@pytest.fixture
def sparse_im(im):
    copy = nns.InstrumentedModel(nns.instrument.copy_model(im.model))
    sparse(copy, np.random.default_rng(0))
    return copy


@pytest.mark.parametrize("outputs", [[0], [1, 2], None])
def test_dynamic_slices_are_inside(sparse_im, data, outputs):
    x, _ = data
    static = static_slice(sparse_im, outputs)
    profile = nns.Profile.from_data(sparse_im, x, progress=False)
    dynamic = nns.Slicer(sparse_im, profile, 0.0, progress=False).slice(x, outputs or [0, 1, 2])
    outside = dynamic - static
    assert not any(v.any() for v in (*outside.neurons.values(), *outside.synapses.values()))
    assert any((v == 0).any() for v in static.synapses.values())


def test_weights_outside_have_no_effect(sparse_im, data):
    """Those that are not constant: constants act through what the bias could as well be."""
    x, _ = data
    static = static_slice(sparse_im, [2])
    before = sparse_im.logits(x)[:, 2]
    fed_by_constant = np.zeros(sparse_im.kernels["inner"].shape, bool)
    fed_by_constant[:, :, 1] = True
    changed = 0
    for name, members in static.synapses.items():
        kernel = sparse_im.kernels[name]
        free = (members == 0) & (kernel.kernel() != 0)
        if name == "inner":
            free &= ~fed_by_constant
        changed += int(free.sum())
        kernel.variable().assign(np.where(free, 5.0, kernel.kernel()))
    assert changed > 0
    np.testing.assert_array_equal(sparse_im.logits(x)[:, 2], before)


def test_members_have_an_effect_in_a_linear_network():
    """Without activations a member's weight changes the output, so that nothing is too much."""
    inputs = keras.Input((5,))
    x = layers.Dense(4, name="a")(inputs)
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(3, name="b")(x)))
    rng = np.random.default_rng(0)
    for kernel in im.kernels.values():
        kernel.variable().assign(kernel.kernel() * (rng.random(kernel.shape) > 0.5))
    static = static_slice(im, [1])
    x = rng.normal(size=(3, 5)).astype(np.float32)
    for name, kernel in im.kernels.items():
        weights = kernel.kernel()
        for place in np.ndindex(kernel.shape):
            other = weights.copy()
            other[place] += 0.5 * (weights[place] != 0)
            before = im.logits(x)[:, 1]
            kernel.variable().assign(other)
            effect = (im.logits(x)[:, 1] != before).any()
            kernel.variable().assign(weights)
            assert effect == bool(static.synapses[name][place])


def test_a_box_shows_dead_units():
    """In [0, 1] a unit -x0 - 0.5 is always negative, and 2 - x1 always positive."""
    inputs = keras.Input((2,))
    x = layers.Dense(2, activation="relu", name="hidden")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="out")(x))
    model.set_weights([np.diag([-1.0, -1.0]), np.array([-0.5, 2.0]), np.ones((2, 2)), np.zeros(2)])
    im = nns.InstrumentedModel(model)
    assert static_slice(im).neurons["hidden"].tolist() == [1, 1]
    inside = static_slice(im, box=(0.0, 1.0))
    assert inside.neurons["hidden"].tolist() == [0, 1]
    assert inside.synapses["out"].tolist() == [[0, 0], [1, 1]]
    assert inside.synapses["hidden"].tolist() == [[0, 0], [0, 1]]
    assert inside.neurons[im.input_operation].tolist() == [0, 1]
    pinned = static_slice(im, box=(np.array([-2.0, 0.5]), np.array([1.0, 0.5])))
    assert pinned.neurons["hidden"].tolist() == [1, 0]
    bounded = nns.InstrumentedModel(model, bounds=(0, 1))
    assert static_slice(bounded).neurons["hidden"].tolist() == [0, 1]


def test_intervals_contain_what_is_computed(im, data):
    """Of random inputs of a box, at every operation."""
    low, high = (np.full(im.input_shape, end) for end in (-0.5, 1.0))
    bounds = {im.input_operation: (low, high)}
    x = np.random.default_rng(0).uniform(-0.5, 1.0, (200, *im.input_shape)).astype(np.float32)
    values = im.capture(x)
    for operation in im.operations[1:]:
        bounds[operation.name] = output_interval(operation, [bounds[n] for n in operation.inputs])
        low, high = bounds[operation.name]
        own, slack = values[operation.name], 1e-4 * np.abs(values[operation.name]).max()
        assert (own >= low - slack).all(), operation
        assert (own <= high + slack).all(), operation


RISING = ("sigmoid", "tanh", "softplus", "softsign", "elu", "selu", "exponential", "hard_sigmoid")


@pytest.mark.parametrize("function", RISING)
def test_without_a_box_everything_is_live(function):
    """Each unit of a dense network changes the output, by any activation."""
    inputs = keras.Input((3,))
    x = layers.Dense(4, activation=function, name="hidden")(inputs)
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2, name="out")(x)))
    static = static_slice(im)
    assert all(members.all() for members in static.neurons.values())
    assert all(members.all() for members in static.synapses.values())


def test_softsign_has_its_own_bounds():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, layers.Activation("softsign", name="out")(inputs))
    operation = nns.InstrumentedModel(model)["out"]
    low, high = output_interval(operation, [(np.array([-np.inf, 1.0]), np.array([np.inf, 3.0]))])
    np.testing.assert_allclose(low, [-1, 0.5])
    np.testing.assert_allclose(high, [1, 0.75])


def test_what_is_not_known_is_live():
    """Behind a value of which no bound can be computed, everything may vary."""
    inputs = keras.Input((3,))
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2, name="out")(inputs)))
    unknown = np.full(3, np.nan)
    low, high = output_interval(im["out"], [(unknown, unknown)])
    assert (low == -np.inf).all() and (high == np.inf).all()
    assert static_slice(im, box=None).neurons["out"].all()


def test_bad_arguments(im):
    with pytest.raises(InvalidArgumentError, match=r"0 … 2.*Received: \[3\]"):
        static_slice(im, [3])
    with pytest.raises(InvalidArgumentError, match="one or more"):
        static_slice(im, [])
    with pytest.raises(InvalidArgumentError, match="box is empty"):
        static_slice(im, box=(1.0, 0.0))
    with pytest.raises(InvalidArgumentError, match="of shape"):
        static_slice(im, box=(np.zeros(7), np.ones(7)))
