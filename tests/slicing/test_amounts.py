"""Contributions as amounts: completeness at every cut, and agreement with independent DeepLIFT."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from support import sequence_models
from support.amount_oracle import AmountOracle, ChannelAmountOracle
from support.models import MODELS, data, random_model, set_dyadic_weights


def cuts(im):
    """Return the operations through which every path from the inputs to the logits goes."""
    operations = {o.name: o for o in im.operations}

    def reaches_inputs(without):
        seen, waiting = set(), [im.logit_operation]
        while waiting:
            name = waiting.pop()
            if name not in seen and name != without and operations[name].kind != "mask":
                seen.add(name)
                waiting += operations[name].inputs
        return bool(seen & set(im.input_operations))

    return [name for name in operations if not reaches_inputs(name)]


def slicer_of(model, profile_data, theta=0.0, **options):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, profile_data, progress=False)
    options = {"workers": 0, "progress": False, "contribution": "amount", **options}
    return nns.Slicer(im, profile, theta, **options)


def check_complete(slicer, x, outputs=(1,)):
    """Check that the amounts at every cut, and of every kernel, add up to the change of y."""
    im = slicer.im
    found = slicer.slice(x, outputs=outputs)
    change = found.neurons[im.logit_operation].sum()
    for name in cuts(im):
        assert found.neurons[name].sum() == pytest.approx(change, abs=2e-5), name
    uses = [kernel.name for o in im.operations for kernel in o.kernels]
    for operation in im.operations:
        if operation.kind == "weighted_sum" and uses.count(operation.params.name) == 1:
            amounts = found.neurons[operation.name].sum()
            total = found.synapses[operation.params.name].sum()
            assert total == pytest.approx(amounts, abs=2e-5), operation.name
    return change


class Case:
    """A wrapped model with dyadic weights, its profile and two samples to slice."""

    def __init__(self, model, rng):
        set_dyadic_weights(model, rng)
        self.im = nns.InstrumentedModel(model)
        self.profile_data, self.x = data(rng, model, 4), data(rng, model, 2)
        self.profile = nns.Profile.from_data(self.im, self.profile_data, progress=False)

        options = {"workers": 0, "progress": False, "contribution": "amount"}
        self.slicers = {
            granularity: nns.Slicer(self.im, self.profile, 0.0, granularity, **options)
            for granularity in ("activation", "channel")
        }

    def check(self, granularity, thetas):
        """Compare all amounts with the oracle's."""
        oracles = {"activation": AmountOracle, "channel": ChannelAmountOracle}
        oracle = oracles[granularity](self.im, self.profile_data)
        seeds = {self.im.logit_operation: [(0,), (2,)]}
        for theta in thetas:
            slicer = self.slicers[granularity].at_theta(theta)
            for sample, one in enumerate(self.x):
                found = slicer.slice(self.x[sample : sample + 1], outputs=[0, 2])
                expected = oracle.slice(one, seeds, theta)
                for arrays, by_name in zip((found.neurons, found.synapses), expected, strict=True):
                    for name, values in arrays.items():
                        wanted = np.zeros_like(values)
                        for i, amount in by_name[name].items():
                            wanted[i] = amount
                        np.testing.assert_allclose(values, wanted, atol=2e-4, err_msg=name)


# Over the whole module, so that pytest orders the tests by model and wraps each only once.
@pytest.fixture(scope="module", params=MODELS)
def case(request):
    name = request.param
    return Case(MODELS[name](), np.random.default_rng(sorted(MODELS).index(name)))


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_amounts_add_up_at_every_cut(case, granularity):
    mean = case.profile.means[case.im.input_operation][None].astype(np.float32)
    changes = case.im.logits(case.x)[:, 1] - case.im.logits(mean)[0, 1]
    total = check_complete(case.slicers[granularity], case.x)
    assert total == pytest.approx(changes.sum(), abs=2e-5)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_table(case, granularity):
    case.check(granularity, (0.0, 0.125, 0.5))


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_amounts_of_attention_add_up(seed):
    rng = np.random.default_rng(seed)
    model = sequence_models.random_sequence_model(rng)
    slicer = slicer_of(model, sequence_models.tokens(rng, 6))
    check_complete(slicer, rng.integers(1, sequence_models.TOKENS, (3, sequence_models.LENGTH)))


@pytest.mark.parametrize(
    "layer",
    [
        layers.LayerNormalization(),
        layers.LayerNormalization(axis=[1, 2]),
        layers.GroupNormalization(2),
        layers.RMSNormalization(),
        layers.UnitNormalization(),
        layers.Softmax(),
        layers.Activation("gelu"),
        layers.Activation("tanh"),
    ],
    ids=lambda layer: layer.name,
)
def test_amounts_of_normalisations_and_activations_add_up(layer):
    rng = np.random.default_rng(0)
    inputs = keras.Input((3, 4))
    h = layers.Dense(4)(layer(layers.Dense(4)(inputs)))
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    slicer = slicer_of(model, rng.normal(size=(8, 3, 4)))
    check_complete(slicer, np.clip(rng.normal(size=(5, 3, 4)), -2, 2))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.LSTM(4),
        lambda: layers.GRU(4),
        lambda: layers.GRU(4, reset_after=False, go_backwards=True),
        lambda: layers.Bidirectional(layers.SimpleRNN(3)),
        lambda: layers.RNN([layers.LSTMCell(2), layers.GRUCell(3)]),
    ],
    ids=["lstm", "gru", "gru backwards", "both ways", "stacked"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_amounts_through_time_add_up(layer, masked):
    rng = np.random.default_rng(0)
    first = [layers.Masking(0.0)] if masked else []
    model = keras.Sequential([keras.Input((5, 3)), *first, layer(), layers.Dense(3)])
    profile_data, x = rng.normal(size=(8, 5, 3)), rng.normal(size=(4, 5, 3))
    if masked:
        profile_data[::2, 3:], x[::2, 2:] = 0, 0
    slicer = slicer_of(model, profile_data)
    found = slicer.slice(x, outputs=[1])
    change = found.neurons[slicer.im.logit_operation].sum()
    assert found.neurons[slicer.im.input_operation].sum() == pytest.approx(change, abs=2e-5)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("seed", range(6))
def test_random_models(seed, granularity):
    rng = np.random.default_rng(4000 + seed)
    Case(random_model(rng), rng).check(granularity, (0.25, 1.0))
