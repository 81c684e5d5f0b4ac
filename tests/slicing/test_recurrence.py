"""Slices of recurrent models, at several thresholds, against the brute-force oracle."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from support.models import dyadic, set_dyadic_weights
from support.recurrent_oracle import RecurrentOracle, coarse, coarse_gate

THETAS = (0.0, 0.25, 1.5)
GATED = {"activation": coarse, "recurrent_activation": coarse_gate}
CONV = {"kernel_size": 2, "padding": "same", **GATED}


def sequential(*stack, shape=(4, 2), masked=False):
    first = [layers.Masking(0.0)] if masked else []
    return keras.Sequential([keras.Input(shape), *first, *stack, layers.Dense(3)])


def both_ways(layer, merge_mode):
    return layers.Bidirectional(layer, merge_mode=merge_mode)


MODELS = {
    "simple": lambda: sequential(layers.SimpleRNN(3, activation="relu")),
    "simple linear": lambda: sequential(layers.SimpleRNN(3, activation="linear")),
    "simple coarse": lambda: sequential(layers.SimpleRNN(3, activation=coarse, use_bias=False)),
    "lstm": lambda: sequential(layers.LSTM(2, **GATED)),
    "lstm without bias": lambda: sequential(layers.LSTM(2, use_bias=False, **GATED)),
    "gru": lambda: sequential(layers.GRU(2, **GATED)),
    "gru without bias": lambda: sequential(layers.GRU(2, use_bias=False, **GATED)),
    "gru linear": lambda: sequential(
        layers.GRU(2, activation="linear", recurrent_activation=coarse_gate)
    ),
    "gru reset before": lambda: sequential(layers.GRU(2, reset_after=False, **GATED)),
    "sequences": lambda: sequential(
        layers.LSTM(2, return_sequences=True, **GATED), layers.Flatten()
    ),
    "backwards": lambda: sequential(
        layers.GRU(2, go_backwards=True, return_sequences=True, **GATED), layers.Flatten()
    ),
    "two layers": lambda: sequential(
        layers.SimpleRNN(2, activation=coarse, return_sequences=True), layers.LSTM(2, **GATED)
    ),
    "stacked cells": lambda: sequential(
        layers.RNN(
            [
                layers.LSTMCell(2, **GATED),
                layers.GRUCell(3, **GATED),
                layers.SimpleRNNCell(2, activation="relu"),
            ]
        )
    ),
    "one cell": lambda: sequential(layers.RNN(layers.GRUCell(2, **GATED))),
    **{
        f"both ways {mode}": lambda mode=mode: sequential(
            both_ways(layers.SimpleRNN(2, activation=coarse, return_sequences=True), mode),
            layers.Flatten(),
        )
        for mode in ("concat", "sum", "mul", "ave")
    },
    "both ways, ends": lambda: sequential(both_ways(layers.LSTM(2, **GATED), "concat")),
    "conv 1d": lambda: sequential(layers.ConvLSTM1D(2, **CONV), layers.Flatten(), shape=(3, 3, 2)),
    "conv 1d strides": lambda: sequential(
        layers.ConvLSTM1D(2, 2, strides=2, return_sequences=True, **GATED),
        layers.Flatten(),
        shape=(2, 5, 1),
    ),
    "conv 2d": lambda: sequential(
        layers.ConvLSTM2D(1, **CONV), layers.Flatten(), shape=(2, 3, 2, 1)
    ),
    "time distributed": lambda: sequential(
        layers.TimeDistributed(layers.Dense(2)), layers.SimpleRNN(2, activation=coarse)
    ),
}
MASKED = {
    "simple": lambda: sequential(layers.SimpleRNN(2, activation="relu"), masked=True),
    "lstm": lambda: sequential(layers.LSTM(2, **GATED), masked=True),
    "gru backwards": lambda: sequential(layers.GRU(2, go_backwards=True, **GATED), masked=True),
    "stacked cells": lambda: sequential(
        layers.RNN([layers.LSTMCell(2, **GATED), layers.GRUCell(2, **GATED)]), masked=True
    ),
    "two layers": lambda: sequential(
        layers.LSTM(2, return_sequences=True, **GATED), layers.GRU(2, **GATED), masked=True
    ),
    "both ways": lambda: sequential(both_ways(layers.LSTM(2, **GATED), "concat"), masked=True),
    "both ways, sequences": lambda: sequential(
        both_ways(layers.SimpleRNN(2, activation=coarse, return_sequences=True), "sum"),
        layers.LSTM(2, **GATED),
        masked=True,
    ),
}


def check_equal(result, contrib, synapses):
    for found, expected in ((result.neurons, contrib), (result.synapses, synapses)):
        arrays = {name: np.zeros_like(values) for name, values in found.items()}
        for (name, index), value in expected.items():
            if name in arrays:
                arrays[name][index] = value
            else:
                assert name == "zero", name
        for name, values in found.items():
            np.testing.assert_array_equal(values, arrays[name], err_msg=name)


def pad(samples, lengths, rng, anywhere):
    """Set all but some entries of each sequence to 0, which stands for padding."""
    for sample, length in zip(samples, lengths, strict=True):
        sample[(sample == 0).all(axis=-1)] = 0.5
        places = rng.permutation(len(sample)) if anywhere else np.arange(len(sample))
        sample[places[length:]] = 0


def check_model(model, rng, padded=None, product="value"):
    set_dyadic_weights(model, rng)
    im = nns.InstrumentedModel(model)
    usual, x = (dyadic(rng, (n, *im.input_shape), -2, 2).astype(np.float32) for n in (4, 2))
    if padded:  # 8 entries in all: means are exact
        pad(usual, (4, 2, 1, 1), rng, padded == "anywhere")
        pad(x, (3, 2), rng, padded == "anywhere")
    profile = nns.Profile.from_data(im, usual, progress=False)
    oracle = RecurrentOracle(model, usual, pooled=padded is not None, product=product)
    acts = im.capture(x)
    for k, sample in enumerate(x):
        for (name, index), value in oracle.unroll(sample).y.items():
            assert acts[name][(k, *index)] == value, (name, index)
    starts = [(im.logit_operation, (0,)), (im.logit_operation, (2,))]
    for theta in THETAS:
        slicer = nns.Slicer(im, profile, theta, workers=0, progress=False, product=product)
        each = slicer.slice_each(x, outputs=[0, 2])
        for k, sample in enumerate(x):
            check_equal(each[k], *oracle.slice(sample, starts, theta))


@pytest.mark.parametrize("name", MODELS)
def test_table(name):
    check_model(MODELS[name](), np.random.default_rng(sorted(MODELS).index(name)))


# Padding at the end, as Keras pads, is a case of padding anywhere: one model shows that it is.
# Models that are made of others in this table take longest, and add little to them.
COMPOSED = ("both ways", "both ways, sequences", "stacked cells", "two layers")


@pytest.mark.parametrize(
    ("name", "padded"),
    [
        *(pytest.param(n, "anywhere", marks=[pytest.mark.slow] * (n in COMPOSED)) for n in MASKED),
        ("lstm", "end"),
        pytest.param("both ways, sequences", "end", marks=pytest.mark.slow),
    ],
)
def test_padding(name, padded):
    check_model(MASKED[name](), np.random.default_rng(50 + sorted(MASKED).index(name)), padded)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_midpoints_of_products(name):
    check_model(MODELS[name](), np.random.default_rng(70), product="midpoint")


def test_midpoints_of_products_with_padding():
    rng = np.random.default_rng(71)
    check_model(MASKED["lstm"](), rng, padded="anywhere", product="midpoint")


def random_recurrent(rng):
    """A stack of up to three layers, each of a random kind."""
    stack = []
    depth = int(rng.integers(1, 4))
    for place in range(depth):
        units = int(rng.integers(1, 4))
        last = place == depth - 1
        options = {"return_sequences": not last, "go_backwards": bool(rng.integers(2))}
        choices = [
            lambda u=units, o=options: layers.SimpleRNN(u, activation=coarse, **o),
            lambda u=units, o=options: layers.LSTM(u, **GATED, **o),
            lambda u=units, o=options: layers.GRU(u, reset_after=True, **GATED, **o),
            lambda u=units, o=options: layers.GRU(u, reset_after=False, **GATED, **o),
        ]
        stack.append(choices[rng.integers(len(choices))]())
    return sequential(*stack, shape=(int(rng.integers(2, 6)), int(rng.integers(1, 4))))


@pytest.mark.parametrize("seed", range(3))
def test_random_models(seed):
    rng = np.random.default_rng(400 + seed)
    check_model(random_recurrent(rng), rng)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 20))
def test_more_random_models(seed):
    rng = np.random.default_rng(400 + seed)
    check_model(random_recurrent(rng), rng)


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_sums_over_samples_and_any_number_of_workers(theta):
    rng = np.random.default_rng(1)
    model = set_dyadic_weights(sequential(layers.LSTM(2, **GATED)), rng)
    im = nns.InstrumentedModel(model)
    x = dyadic(rng, (5, 4, 2), -2, 2).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    together, each = slicer.slice(x, outputs=[1]), slicer.slice_each(x, outputs=[1])
    np.testing.assert_array_equal(together.to_vector(), each.sum().to_vector())
    for name, values in each.sum().neurons.items():
        np.testing.assert_array_equal(together.neurons[name], values, err_msg=name)
    threads = nns.Slicer(im, profile, theta, progress=False).slice(x, outputs=[1])
    np.testing.assert_array_equal(threads.to_vector(), together.to_vector())


@pytest.mark.parametrize("build", [layers.LSTM, layers.GRU])
def test_usual_activations(build):
    """Sigmoid and tanh round, so that values agree only nearly; signs and exclusion do."""
    rng = np.random.default_rng(9)
    model = set_dyadic_weights(sequential(build(3)), rng)
    im = nns.InstrumentedModel(model)
    usual, x = (rng.normal(size=(n, *im.input_shape)).astype(np.float32) for n in (5, 1))
    oracle = RecurrentOracle(model, usual)
    profile = nns.Profile.from_data(im, usual, progress=False)
    acts = im.capture(x)
    for (name, index), value in oracle.unroll(x[0]).y.items():
        assert acts[name][(0, *index)] == pytest.approx(value, rel=1e-4, abs=1e-5)
    for theta in (0.0, 0.3):
        found = nns.Slicer(im, profile, theta, workers=0, progress=False).slice(x, outputs=[1])
        check_equal(found, *oracle.slice(x[0], [(im.logit_operation, (1,))], theta))


def test_a_slice_of_a_gate_at_a_time():
    rng = np.random.default_rng(2)
    model = set_dyadic_weights(sequential(layers.LSTM(2, name="lstm", **GATED)), rng)
    im = nns.InstrumentedModel(model)
    usual, x = (dyadic(rng, (n, 4, 2), -2, 2).astype(np.float32) for n in (4, 1))
    profile = nns.Profile.from_data(im, usual, progress=False)
    oracle = RecurrentOracle(model, usual)
    for theta in (0.0, 0.25):
        slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
        found = slicer.slice(x, outputs={"lstm:f:pre": [5]})  # unit 1 at step 2
        check_equal(found, *oracle.slice(x[0], [("lstm:f:pre", (2, 1))], theta))
        assert not found.neurons["lstm:f:pre"][3].any()


def test_only_activations_have_a_granularity():
    im = nns.InstrumentedModel(sequential(layers.LSTM(2)))
    profile = nns.Profile.from_data(im, np.ones((2, 4, 2), np.float32), progress=False)
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"recurrent.*granularity='activation'"
    ):
        nns.Slicer(im, profile, 0.3, "channel")


def test_a_slice_applied_to_the_model_leaves_the_answer():
    """At θ = 0 what is left out of a slice has no Δ or no weight, so predictions stay."""
    rng = np.random.default_rng(5)
    model = set_dyadic_weights(sequential(layers.GRU(3, **GATED)), rng)
    im = nns.InstrumentedModel(model)
    x = dyadic(rng, (6, 4, 2), -2, 2).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    found = nns.Slicer(im, profile, 0.0, progress=False).slice(x, outputs=[0, 1, 2])
    kept = found.synapse_mask()
    small = nns.InstrumentedModel(found.apply(model, "zero"))
    for name, mask in kept.items():
        values = small.kernels[name].kernel()
        np.testing.assert_array_equal(values, im.kernels[name].kernel() * mask)
