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


def check_model(model, rng, granularity, thetas, **reading):
    set_dyadic_weights(model, rng)
    im = nns.InstrumentedModel(model)
    profile_data, x = data(rng, model, 4), data(rng, model, 2)
    profile = nns.Profile.from_data(im, profile_data, progress=False)
    oracle = (Oracle if granularity == "activation" else ChannelOracle)(im, profile_data, **reading)

    activations = im.capture(x)
    for sample in range(len(x)):
        for name, by_index in oracle.forward(x[sample]).items():
            for i, value in by_index.items():
                assert math.isnan(value) or activations[name][(sample, *i)] == value, (name, i)

    logits = im.logit_operation
    for theta in thetas:
        slicer = nns.Slicer(im, profile, theta, granularity, workers=0, progress=False, **reading)
        for sample in range(len(x)):
            result = slicer.slice(x[sample : sample + 1], outputs=[0, 2])
            check_equal(result, *oracle.slice(x[sample], {logits: [(0,), (2,)]}, theta))


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("name", MODELS)
def test_table(name, granularity):
    seed = sorted(MODELS).index(name)
    check_model(MODELS[name](), np.random.default_rng(seed), granularity, THETAS)


# What the paper's program computes where the paper says otherwise.
PROGRAM = {"relative_to": "sum", "rectify": "pass"}


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("name", MODELS)
def test_table_as_the_papers_program_computes(name, granularity):
    rng = np.random.default_rng(sorted(MODELS).index(name))
    check_model(MODELS[name](), rng, granularity, (0.0, 0.5), **PROGRAM)


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("option", PROGRAM)
@pytest.mark.parametrize("seed", range(4))
def test_random_models_with_one_reading_changed(seed, option, granularity):
    rng = np.random.default_rng(3000 + seed)
    check_model(random_model(rng), rng, granularity, (0.0, 0.25, 1.5), **{option: PROGRAM[option]})


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("name", ["multiply", "multiply broadcast", "operators"])
def test_midpoints_of_products(name, granularity):
    rng = np.random.default_rng(sorted(MODELS).index(name))
    check_model(MODELS[name](), rng, granularity, THETAS, product="midpoint")


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
    check_model(random_model(rng), rng, "activation", (0.0, 0.25, 1.0))


@pytest.mark.parametrize("seed", range(12))
def test_random_models_by_channel(seed):
    rng = np.random.default_rng(2000 + seed)
    check_model(random_model(rng), rng, "channel", (0.0, 0.25))
