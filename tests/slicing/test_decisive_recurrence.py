"""Decisive slices of recurrent layers, against a network in NumPy and against Keras."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import instrument


def slicer_of(model, data):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, data, progress=False)
    return nns.Slicer(im, profile, workers=0, progress=False)


def masked_rnn(x, model, means, masks):
    """Logits of a SimpleRNN and a dense layer; ablated synapses carry what they do on average."""
    (kernel, recurrent, bias), (out, out_bias) = (layer.get_weights() for layer in model.layers)
    keep, keep_recurrent, keep_out = masks
    usual = means["input_layer"]
    states = np.vstack([np.zeros((1, 4)), means["rnn:h"]])  # before each step, and at the end
    h = np.zeros((len(x), 4))
    for t in range(x.shape[1]):
        total = x[:, t] @ (keep * kernel) + usual[t] @ (~keep * kernel) + bias
        total += h @ (keep_recurrent * recurrent) + states[t] @ (~keep_recurrent * recurrent)
        h = np.tanh(total)
    return h @ (keep_out * out) + states[-1] @ (~keep_out * out) + out_bias


def test_synapses_of_recurrent_layers_are_those_of_every_step():
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5, 3), name="input_layer")
    rnn = layers.SimpleRNN(4, name="rnn", bias_initializer="random_normal")
    model = keras.Sequential([inputs, rnn, layers.Dense(3)])
    slicer = slicer_of(model, rng.normal(size=(32, 5, 3)))
    x = rng.normal(size=(4, 5, 3)).clip(-1.5, 1.5).astype(np.float32)
    found = slicer.decisive(x, max_share=1.0, others=0)
    table = found.to_frame()
    assert table["size"].max() > 1
    for index, one in enumerate(x):
        masks = list(found.masks(index).values())
        for side, kept in (("alone", masks), ("removed", [~mask for mask in masks])):
            (logits,) = masked_rnn(one[None], model, slicer.profile.means, kept)
            answer, chances = table["answer"][index], np.exp(logits) / np.exp(logits).sum()
            assert logits.argmax() == table[f"answer with slice {side}"][index]
            expected = table[f"probability with slice {side}"][index]
            assert chances[answer] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        *("lstm", "padded", "convolution"),
        *(pytest.param(kind, marks=pytest.mark.whole) for kind in ("gru", "both ways", "states")),
    ],
)
def test_without_means_recurrent_slices_are_weights_of_zero(kind):
    """Any masked recurrent layer is Keras's own with the ablated weights at zero."""
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(2)
    shape = (5, 4, 4, 1) if kind == "convolution" else (5, 3)
    x = entry = keras.Input(shape)
    if kind == "padded":
        x = layers.Masking()(x)
    if kind == "convolution":
        x = layers.Flatten()(layers.ConvLSTM2D(2, 3)(x))
    elif kind == "states":
        x = layers.LSTM(4)(x, initial_state=[layers.Dense(4)(x[:, 0]), layers.Dense(4)(x[:, 1])])
    elif kind == "both ways":
        x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
        x = layers.GRU(3, reset_after=False)(x)
    else:
        x = (layers.GRU if kind == "gru" else layers.LSTM)(4)(x)
    model = keras.Model(entry, layers.Dense(3)(x))
    data = rng.normal(size=(40, *shape)).astype(np.float32)
    if kind == "padded":
        data[::2, 3:] = 0
    slicer = slicer_of(model, data)
    found = slicer.decisive(data[:2], reference="zero", max_share=1.0, others=0)
    table = found.to_frame()
    kernels = slicer.im.kernels
    assert set(found.masks(0)) == set(kernels)
    for index in (0, 1):
        before = model.get_weights()
        for name, mask in found.masks(index).items():
            variable = kernels[name].variable()
            variable.assign(variable * mask)
        (logits,) = model.predict(data[index : index + 1], verbose=0).astype(float)
        model.set_weights(before)
        chances = np.exp(logits) / np.exp(logits).sum()
        expected = table["probability with slice alone"][index]
        assert chances[table["answer"][index]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("level", ["neuron", "channel"])
def test_recurrent_units_have_their_means_for_the_next_step_too(level):
    rng = np.random.default_rng(0)
    rnn = layers.SimpleRNN(4, name="rnn", bias_initializer="random_normal")
    model = keras.Sequential([keras.Input((5, 3)), rnn, layers.Dense(3)])
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    slicer = slicer_of(model, rng.normal(size=(32, 5, 3)))
    x = rng.normal(size=(4, 5, 3)).clip(-1.5, 1.5).astype(np.float32)
    found = slicer.decisive(x, level=level, max_share=1.0, others=0)
    (kernel, recurrent, bias), (out, out_bias) = (layer.get_weights() for layer in model.layers)
    means = slicer.profile.means["rnn:h"]
    for index, one in enumerate(x):
        mask = np.broadcast_to(found.masks(index)["rnn:h"], (5, 4))
        assert mask.any() and not mask.all()
        h = np.zeros(4)
        for t in range(5):
            h = np.tanh(one[t] @ kernel + h @ recurrent + bias)
            h = means[t] + mask[t] * (h - means[t])
        logits = h @ out + out_bias
        chances = np.exp(logits) / np.exp(logits).sum()
        expected = found.certificate["probability with slice alone"][index]
        assert chances[found.certificate["answer"][index]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru", "padded"])
def test_without_means_recurrent_units_are_rows_of_zero(kind):
    """A unit that is always 0 is one whose outgoing weights are 0."""
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(2)
    first = [layers.Masking()] if kind == "padded" else []
    layer = (layers.GRU if kind == "gru" else layers.LSTM)(6)
    model = keras.Sequential([keras.Input((5, 3)), *first, layer, layers.Dense(3)])
    data = rng.normal(size=(40, 5, 3)).astype(np.float32)
    data[::2, 3:] = 0 if kind == "padded" else data[::2, 3:]
    slicer = slicer_of(model, data)
    options = {"level": "channel", "reference": "zero", "max_share": 1.0, "others": 0}
    found = slicer.decisive(data[:3], **options)
    before = model.get_weights()
    for index in range(3):
        (mask,) = found.masks(index).values()
        assert mask.any() and not mask.all()
        for variable in (layer.cell.recurrent_kernel, model.layers[-1].kernel):
            variable.assign(variable * mask[:, None])
        (logits,) = model.predict(data[index : index + 1], verbose=0).astype(float)
        model.set_weights(before)
        chances = np.exp(logits) / np.exp(logits).sum()
        expected = found.certificate["probability with slice alone"][index]
        assert chances[found.certificate["answer"][index]] == pytest.approx(expected, abs=1e-5)


def test_recurrent_synapses_carry_what_they_do_for_each_donor():
    """The NumPy network above, with a donor's values in place of the means."""
    rng = np.random.default_rng(3)
    inputs = keras.Input((5, 3), name="input_layer")
    rnn = layers.SimpleRNN(4, name="rnn", bias_initializer="random_normal")
    model = keras.Sequential([inputs, rnn, layers.Dense(3)])
    im = nns.InstrumentedModel(model)
    x, donors = rng.normal(size=(2, 2, 5, 3)).astype(np.float32)
    ablation = instrument.Ablation(im, instrument.Samples(donors))
    masks = [rng.random((2, *shape)) < 0.5 for shape in ablation.shapes.values()]  # of each sample
    found = ablation.outputs(dict(zip(ablation.shapes, masks, strict=True)), x)
    for place, donor in enumerate(donors):
        means = {name: value[0] for name, value in im.capture(donor[None]).items()}
        for index in range(2):
            own = [mask[index] for mask in masks]
            (expected,) = masked_rnn(x[index][None], model, means, own)
            np.testing.assert_allclose(found[index, place], expected, rtol=1e-4, atol=1e-5)
