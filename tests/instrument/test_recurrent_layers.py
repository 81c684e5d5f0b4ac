"""Recurrent layers and `TimeDistributed`: captured values against plain Keras."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument import backend

INNER = [layers.Conv2D, layers.BatchNormalization]


def randomised(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        value = rng.normal(0, 0.7, weight.shape)
        weight.assign(np.abs(value) + 0.5 if "variance" in weight.path else value)
    return model


def sequential(*stack, shape=(5, 3)):
    return randomised(keras.Sequential([keras.Input(shape), *stack]))


def frames():
    """A small network for images, to be applied at every time."""
    inputs = keras.Input((4, 4, 2))
    x = layers.Conv2D(3, 3, padding="same", activation="relu", name="conv")(inputs)
    x = layers.Add(name="sum")([layers.BatchNormalization(name="norm")(x), x])
    x = layers.MaxPooling2D(2, name="pool")(x)
    return keras.Model(inputs, layers.Flatten(name="flat")(x), name="frames")


MODELS = {
    "simple": lambda: sequential(layers.SimpleRNN(4, dropout=0.2, recurrent_dropout=0.1)),
    "lstm": lambda: sequential(layers.LSTM(4, unroll=True)),
    "lstm relu": lambda: sequential(layers.LSTM(4, activation="relu", return_sequences=True)),
    "gru": lambda: sequential(layers.GRU(4, return_sequences=True, go_backwards=True)),
    "gru reset before": lambda: sequential(layers.GRU(4, reset_after=False)),
    "stacked cells": lambda: sequential(
        layers.RNN([layers.SimpleRNNCell(2), layers.LSTMCell(4), layers.GRUCell(3)])
    ),
    "average of both ways": lambda: sequential(
        layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode="ave")
    ),
    "other way back": lambda: sequential(
        layers.Bidirectional(
            layers.LSTM(4), backward_layer=layers.GRU(4, go_backwards=True, name="back")
        )
    ),
    "conv 2d": lambda: sequential(
        layers.ConvLSTM2D(2, 3, strides=2, return_sequences=True), shape=(3, 6, 5, 2)
    ),
    "conv 1d": lambda: sequential(
        layers.ConvLSTM1D(2, 3, dilation_rate=2, padding="same"), shape=(3, 6, 2)
    ),
    "conv 3d": lambda: sequential(layers.ConvLSTM3D(2, 2), shape=(2, 3, 4, 3, 2)),
    "distributed model": lambda: sequential(
        layers.TimeDistributed(frames()), layers.GRU(3), shape=(3, 4, 4, 2)
    ),
    "distributed layers": lambda: sequential(
        layers.TimeDistributed(layers.SeparableConv2D(3, 3, activation="relu")),
        layers.TimeDistributed(layers.GlobalAveragePooling2D()),
        layers.TimeDistributed(layers.LayerNormalization()),
        shape=(3, 4, 4, 2),
    ),
    "masked": lambda: sequential(
        layers.Masking(0.0),
        layers.Bidirectional(layers.GRU(4, return_sequences=True)),
        layers.LSTM(3, go_backwards=True),
    ),
    "nested": lambda: sequential(
        keras.Sequential([keras.Input((5, 3)), layers.LSTM(4, name="lstm")], name="inner")
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_keras(name):
    model = MODELS[name]()
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(1).normal(size=(4, *im.input_shape)).astype(np.float32)
    x[1, -2:] = 0
    x[2, 0] = 0
    np.testing.assert_allclose(im.predict(x), model(x).numpy(), rtol=1e-4, atol=1e-5)
    for operation, values in im.capture(x).items():
        assert values.shape == (4, *im[operation].shape)
    exact = im.graph.run(x.astype(np.float64), im.output_operations)
    value = exact[im.output_operations[0]]
    np.testing.assert_allclose(value, im.predict(x), rtol=1e-3, atol=1e-4)


def test_names_of_operations_and_kernels():
    im = nns.InstrumentedModel(
        sequential(
            layers.Bidirectional(layers.LSTM(4), name="both"),
            layers.Reshape((2, 4)),
            layers.RNN([layers.SimpleRNNCell(2), layers.GRUCell(3)], name="rnn"),
            layers.Dense(2, name="out"),
        )
    )
    assert im["both:forward:f:pre"].shape == (5, 4)
    assert im["both:backward:h"].kind == "recurrence"
    assert im["rnn:cell1:g:reset"].shape == (2, 3)
    assert {name: kernel.shape for name, kernel in im.kernels.items()} == {
        "both/forward/kernel": (3, 16),
        "both/forward/recurrent_kernel": (4, 16),
        "both/backward/kernel": (3, 16),
        "both/backward/recurrent_kernel": (4, 16),
        "rnn/cell0/kernel": (4, 2),
        "rnn/cell0/recurrent_kernel": (2, 2),
        "rnn/cell1/kernel": (2, 9),
        "rnn/cell1/recurrent_kernel": (3, 9),
        "out": (3, 2),
    }


def test_gates_are_those_of_the_textbook():
    im = nns.InstrumentedModel(sequential(layers.LSTM(3, name="lstm")))
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype(np.float32)
    kernel, recurrent, bias = (np.asarray(w, np.float64) for w in im.model.layers[0].weights)
    acts = im.capture(x)
    h, c = np.zeros((2, 3)), np.zeros((2, 3))
    for t in range(5):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, axis=1)
        np.testing.assert_allclose(acts["lstm:f:pre"][:, t], f, rtol=1e-4, atol=1e-5)
        i, f, o = (1 / (1 + np.exp(-v)) for v in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        np.testing.assert_allclose(acts["lstm:c"][:, t], c, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(acts["lstm:h"][:, t], h, rtol=1e-4, atol=1e-5)


def test_states_from_one_layer_to_another():
    asked, said = keras.Input((5, 3), name="asked"), keras.Input((4, 2), name="said")
    _, *states = layers.LSTM(4, return_state=True, name="encoder")(asked)
    out = layers.LSTM(4, return_sequences=True, name="decoder")(said, initial_state=states)
    model = randomised(keras.Model([asked, said], layers.Dense(3, name="logits")(out)))
    im = nns.InstrumentedModel(model)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(3, *shape)).astype(np.float32) for shape in ((5, 3), (4, 2))]
    np.testing.assert_allclose(im.predict(x), model(x).numpy(), rtol=1e-4, atol=1e-5)
    profile = nns.Profile.from_data(im, x, progress=False)
    found = [
        nns.Slicer(im, profile, theta, workers=0, progress=False).slice(x, {"logits": [0]})
        for theta in (0.0, 1e-30)  # on the backend, and by exclusion
    ]
    assert found[0].neurons["asked"].any()
    for one, other in zip(*(s.neurons.values() for s in found), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[0].to_vector(), found[1].to_vector())


@pytest.mark.parametrize("merge_mode", [None, "concat"])
def test_all_outputs_of_a_layer(merge_mode):
    inputs = keras.Input((5, 3))
    layer = layers.Bidirectional(layers.GRU(2, return_state=True), merge_mode=merge_mode)
    model = randomised(keras.Model(inputs, list(layer(inputs))))
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).normal(size=(3, 5, 3)).astype(np.float32)
    expected = model(x)
    acts = im.capture(x, of=im.output_operations)
    for name, values in zip(im.output_operations, expected, strict=True):
        np.testing.assert_allclose(acts[name], values, rtol=1e-4, atol=1e-5)


class OwnCell(keras.layers.Layer):
    """A cell that the library does not know."""

    state_size = output_size = 2

    def call(self, inputs, states):
        return inputs, states


@pytest.mark.parametrize(
    "layer, shape, match",
    [
        (lambda: layers.RNN(OwnCell()), (5, 2), "has the cell OwnCell"),
        (lambda: layers.TimeDistributed(layers.LSTM(2)), (2, 3, 4), "distributes a recurrent"),
        (
            lambda: layers.ConvLSTM2D(2, 3, data_format="channels_first"),
            (2, 3, 4, 4),
            "channels_first",
        ),
    ],
)
def test_what_has_no_rule_is_refused(layer, shape, match):
    inputs = keras.Input(shape)
    model = keras.Model(inputs, layer()(inputs))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=match):
        nns.InstrumentedModel(model)


def test_stateful_layers_are_refused():
    model = keras.Sequential([keras.Input(batch_shape=(2, 3, 4)), layers.LSTM(2, stateful=True)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="stateful=False"):
        nns.InstrumentedModel(model)


def test_gradients_inside_are_refused_and_those_of_inputs_right():
    im = nns.InstrumentedModel(sequential(layers.GRU(3, name="gru"), layers.Dense(2)))
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    with pytest.raises(nns.errors.InvalidArgumentError, match="inside a recurrent layer"):
        im.gradients(x, 0, wrt=["gru:h"])
    gradient = im.gradients(x, 1)[im.input_operation]
    step = np.zeros_like(x)
    step[:, 2, 1] = 1e-2
    slope = (im.logits(x + step) - im.logits(x - step))[:, 1] / 2e-2
    np.testing.assert_allclose(gradient[:, 2, 1], slope, rtol=2e-2, atol=1e-3)


def test_exact_lines_refuse_recurrence_by_name():
    im = nns.InstrumentedModel(sequential(layers.LSTM(3, name="lstm"), layers.Dense(2)))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="lstm"):
        nns.exactline.exact_line(im, np.zeros((5, 3)), np.ones((5, 3)))


def test_coverage_counts_units_over_time():
    im = nns.InstrumentedModel(sequential(layers.LSTM(3, name="lstm"), layers.Dense(2)))
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    whole = nns.deepxplore.NeuronCoverage(im, granularity="activation", of=["lstm:h"])
    whole.update(x)
    assert whole.covered["lstm:h"].shape == (5, 3)
    np.testing.assert_array_equal(whole.covered["lstm:h"], _covered(im.capture(x)["lstm:h"]))


def _covered(values):
    """DeepXplore scales an operation's values of a sample to [0, 1]; above 0 is covered."""
    low = values.reshape(len(values), -1).min(axis=1)[:, None, None]
    return (values > low).any(axis=0)


def test_long_loops_are_compiled_with_equal_values(monkeypatch):
    """Also by the second direction, whose steps are read from the end."""
    stack = layers.Bidirectional(layers.GRU(3, return_sequences=True)), layers.LSTM(4)
    model = sequential(*stack, shape=(6, 3))
    im, x = nns.InstrumentedModel(model), np.random.default_rng(0).normal(size=(5, 6, 3))
    names = [operation.name for operation in im.operations]
    x = x.astype("float32")
    by_step = im.compute(keras.ops.convert_to_tensor(x), names)
    np.testing.assert_allclose(by_step[im.output_operations[0]], model(x), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(backend, "FEW_STEPS", 5)
    compiled = im.compute(keras.ops.convert_to_tensor(x), names)
    for name in names:
        np.testing.assert_allclose(compiled[name], by_step[name], rtol=1e-6, atol=1e-7)


def test_a_thousand_steps_are_wrapped_without_running_each_by_python(monkeypatch):
    """The layer's own loop and ours are traced once; ours asks for its weights once."""
    model = sequential(layers.LSTM(2, return_sequences=True), shape=(1000, 2))
    calls = []
    own = layers.LSTMCell.call
    monkeypatch.setattr(layers.LSTMCell, "call", lambda *a, **k: calls.append(1) or own(*a, **k))
    im = nns.InstrumentedModel(model)
    assert len(calls) < 10
    x = np.random.default_rng(0).normal(size=(2, 1000, 2)).astype("float32")
    np.testing.assert_allclose(im.predict(x), model.predict(x, verbose=0), atol=1e-5)
