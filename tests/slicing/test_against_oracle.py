"""Every rule, both granularities and several thresholds, against the brute-force oracle."""

import math

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from support.amount_oracle import AmountOracle
from support.models import MODELS, data, random_model, set_dyadic_weights
from support.slices import check_complete, check_equal
from support.slicing_oracle import ChannelOracle, Oracle

THETAS = (0.0, 0.125, 0.5, 2.0)


class Case:
    """A wrapped model with dyadic weights, its profile and samples to slice."""

    def __init__(self, model, rng):
        set_dyadic_weights(model, rng)
        self.im = nns.InstrumentedModel(model)
        self.profile_data, self.x = data(rng, model, 4), data(rng, model, 2)
        self.profile = nns.Profile.from_data(self.im, self.profile_data, progress=False)
        self.activations = self.im.capture(self.x)
        self.slicers = {}
        self.seeds = {self.im.logit_operation: [(0,), (2,)]}

    def slicer(self, granularity, **options):
        """Return the slicer at θ = 0; it is kept with what it compiles."""
        key = granularity, tuple(options.items())
        if key not in self.slicers:
            options |= {"workers": 0, "progress": False}
            self.slicers[key] = nns.Slicer(self.im, self.profile, 0.0, granularity, **options)
        return self.slicers[key]

    def slice(self, theta, granularity, x=None, **options):
        slicer = self.slicer(granularity, **options).at_theta(theta)
        return slicer.slice(self.x if x is None else x, outputs=[0, 2])

    def check(self, granularity, thetas, **reading):
        """Compare all values, and all counts, with the oracle's."""
        oracles = {"activation": Oracle, "channel": ChannelOracle}
        oracle = oracles[granularity](self.im, self.profile_data, **reading)
        for sample, one in enumerate(self.x):
            for name, by_index in oracle.forward(one).items():
                for i, value in by_index.items():
                    found = self.activations[name][(sample, *i)]
                    assert math.isnan(value) or found == value, (name, i)
        for theta in thetas:
            for sample, one in enumerate(self.x):
                found = self.slice(theta, granularity, self.x[sample : sample + 1], **reading)
                check_equal(found, *oracle.slice(one, self.seeds, theta))

    def check_amounts(self, granularity):
        """Compare all amounts with the oracle's."""
        oracle = AmountOracle(self.im, self.profile_data)
        for sample, one in enumerate(self.x):
            x = self.x[sample : sample + 1]
            found = self.slice(0.0, granularity, x, contribution="amount")
            expected = oracle.slice(one, self.seeds, granularity == "channel")
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
def test_counts(case, granularity):
    case.check(granularity, THETAS)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_amounts(case, granularity):
    case.check_amounts(granularity)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_amounts_add_up_at_every_cut(case, granularity):
    mean = case.profile.means[case.im.input_operation][None].astype(np.float32)
    usual = case.im.logits(mean)[0, 1]
    for x in (case.x[:1], case.x[1:]):
        change = check_complete(case.slicer(granularity, contribution="amount"), x)
        assert change == pytest.approx(case.im.logits(x)[0, 1] - usual, abs=2e-5)


# What the paper's program computes where the paper says otherwise.
PROGRAM = {"relative_to": "sum", "rectify": "pass"}


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_counts_as_the_papers_program_computes(case, granularity):
    case.check(granularity, (0.0, 0.5), **PROGRAM)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("option", PROGRAM)
@pytest.mark.parametrize("seed", range(4))
def test_random_models_with_one_reading_changed(seed, option, granularity):
    rng = np.random.default_rng(3000 + seed)
    reading = {option: PROGRAM[option]}
    Case(random_model(rng), rng).check(granularity, (0.0, 0.25, 1.5), **reading)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("name", ["multiply", "multiply broadcast", "operators"])
def test_midpoints_of_products(name, granularity):
    rng = np.random.default_rng(sorted(MODELS).index(name))
    Case(MODELS[name](), rng).check(granularity, THETAS, product="midpoint")


def test_midpoints_of_a_product_add_up():
    """All is excluded where θ·|y| is above their sum, which is Δa·b and a·Δb together."""
    inputs = keras.Input((2,))
    im = nns.InstrumentedModel(keras.Model(inputs, inputs[:, :1] * inputs[:, 1:]))
    profile = nns.Profile.from_data(im, np.array([[2.0, 8.0]], np.float32), progress=False)
    x = np.array([[4.0, 5.0]], np.float32)  # y = 20, of the means 16: 20 − 16 = 2·6.5 − 3·3

    def kept(theta, product):
        slicer = nns.Slicer(im, profile, theta, workers=0, progress=False, product=product)
        return slicer.slice(x, outputs=[0]).neurons[im.input_operation].tolist()

    assert kept(0.19, "midpoint") == [1, -1]
    assert kept(0.21, "midpoint") == [0, 0]
    assert kept(0.09, "value") == [1, -1]  # 2·5 − 4·3 = −2
    assert kept(0.11, "value") == [0, 0]


@pytest.mark.parametrize("seed", range(24))
def test_random_models(seed):
    rng = np.random.default_rng(1000 + seed)
    Case(random_model(rng), rng).check("activation", (0.0, 0.25, 1.0))


@pytest.mark.parametrize("seed", range(12))
def test_random_models_by_channel(seed):
    rng = np.random.default_rng(2000 + seed)
    Case(random_model(rng), rng).check("channel", (0.0, 0.25))


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("seed", range(6))
def test_amounts_of_random_models(seed, granularity):
    rng = np.random.default_rng(4000 + seed)
    Case(random_model(rng), rng).check_amounts(granularity)
