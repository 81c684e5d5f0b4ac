"""Every rule, both granularities and several thresholds, against the brute-force oracle."""

import math

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from support.models import MODELS, data, random_model, set_dyadic_weights
from support.slices import check_equal
from support.slicing_oracle import ChannelOracle, Oracle

THETAS = (0.0, 0.125, 0.5, 2.0)


class Case:
    """A wrapped model with dyadic weights, its profile and two samples to slice."""

    def __init__(self, model, rng):
        set_dyadic_weights(model, rng)
        self.im = nns.InstrumentedModel(model)
        self.profile_data, self.x = data(rng, model, 4), data(rng, model, 2)
        self.profile = nns.Profile.from_data(self.im, self.profile_data, progress=False)
        self.activations = self.im.capture(self.x)

    def check(self, granularity, thetas, **reading):
        oracles = {"activation": Oracle, "channel": ChannelOracle}
        oracle = oracles[granularity](self.im, self.profile_data, **reading)
        for sample, one in enumerate(self.x):
            for name, by_index in oracle.forward(one).items():
                for i, value in by_index.items():
                    found = self.activations[name][(sample, *i)]
                    assert math.isnan(value) or found == value, (name, i)
        seeds = {self.im.logit_operation: [(0,), (2,)]}
        for theta in thetas:
            slicer = nns.Slicer(
                self.im, self.profile, theta, granularity, workers=0, progress=False, **reading
            )
            for sample, one in enumerate(self.x):
                result = slicer.slice(self.x[sample : sample + 1], outputs=[0, 2])
                check_equal(result, *oracle.slice(one, seeds, theta))


# Over the whole module, so that pytest orders the tests by model and wraps each only once.
@pytest.fixture(scope="module", params=MODELS)
def case(request):
    name = request.param
    return Case(MODELS[name](), np.random.default_rng(sorted(MODELS).index(name)))


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_table(case, granularity):
    case.check(granularity, THETAS)


# What the paper's program computes where the paper says otherwise.
PROGRAM = {"relative_to": "sum", "rectify": "pass"}


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_table_as_the_papers_program_computes(case, granularity):
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
