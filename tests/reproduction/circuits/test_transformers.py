"""Planted transformers compute what they are said to, and dead weight changes nothing."""

import numpy as np
import pytest

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile
from reproduction.amounts import amounts
from reproduction.circuits.finding import NET, deletion_effects, transformers
from reproduction.circuits.settings import Reading, TransformerCircuitSettings
from reproduction.circuits.transformer_networks import CIRCUITS, plant


@pytest.mark.parametrize("name", CIRCUITS)
def test_the_circuit_alone_computes_the_function(name):
    planted = plant(name, 8, 3)
    x = planted.draw(64, np.random.default_rng(4))
    with_dead = planted.model.predict(x, verbose=0)
    np.testing.assert_array_equal(with_dead.argmax(axis=1), planted.answer(x))
    kernels = InstrumentedModel(planted.model).kernels
    assert set(kernels) == set(planted.planted)
    sorts = np.sum([sum(w.sum() for w in of.values()) for of in planted.dead.values()])
    nonzero = sum(np.count_nonzero(kernel.kernel()) for kernel in kernels.values())
    assert sum(mask.sum() for mask in planted.planted.values()) + sorts == nonzero
    for kernel, mask in planted.planted.items():
        variable = kernels[kernel].variable()
        variable.assign(np.where(mask, variable, 0))
    alone = planted.model.predict(x, verbose=0)
    np.testing.assert_array_equal(alone.argmax(axis=1), planted.answer(x))
    # Twins cancel up to rounding; spectators and stuck units are not read.
    np.testing.assert_allclose(alone, with_dead, atol=1e-2)


@pytest.mark.parametrize("name", CIRCUITS)
def test_rounding_that_grows_is_no_difference(name):
    """Sharp attention between near ties amplifies rounding to more than 5 % of an output."""
    for seed in range(3):  # the networks of the experiment
        InstrumentedModel(plant(name, 16, seed).model)


@pytest.fixture(scope="module")
def small():
    return plant("copy", 4, 0)


def test_the_experiment_on_one_network_of_each(tmp_path):
    sizes = {"networks": 1, "dead": 4, "samples": 20, "explained": 2, "points": 1}
    readings = (
        Reading("slices", (0.3,)),
        Reading("slices, both", (0.0,), of_channels=True, product="midpoint"),
    )
    s = TransformerCircuitSettings(**sizes, readings=readings, work=tmp_path)
    table = transformers(s).table("transformer")
    assert table["method"].tolist() == [
        *("slices, θ = 0.3", "slices, both, θ = 0", "amounts", "gradient × weight"),
        *("integrated gradients", "one synapse deleted", "magnitude"),
        "(accuracy of the networks)",
    ]
    assert table[[*CIRCUITS, NET]].stack().between(0, 1).all()
    assert (table[list(CIRCUITS)].iloc[-1] == 1).all()


def test_amounts_add_up_and_are_gradients_where_the_network_is_linear(small):
    """From the values to the logits: attention apart, the network of one block is linear there."""
    im = InstrumentedModel(small.model)
    rng = np.random.default_rng(0)
    usual, x = small.draw(20, rng), small.draw(3, rng)
    profile = Profile.from_data(im, usual, progress=False)
    classes = im.logits(x).argmax(axis=1)
    kernels = ["logits", "block0/output", "block0/query"]
    neurons = amounts(im, profile, x, classes, ["logits", "block0/context"])
    synapses = amounts(im, profile, x, classes, kernels=kernels)
    change = im.logits(x) - profile.means["logits"]
    rows = np.arange(3)
    np.testing.assert_allclose(neurons["logits"][rows, classes], change[rows, classes], atol=1e-4)
    by_input = synapses["logits"].sum(axis=(1, 2))
    np.testing.assert_allclose(by_input, change[rows, classes], atol=1e-4)
    # What leaves the heads is what their synapses to the answer carry.
    context = neurons["block0/context"].sum(axis=(1, 2, 3))
    np.testing.assert_allclose(synapses["block0/output"].sum(axis=(1, 2, 3)), context, atol=1e-4)
    assert np.abs(synapses["block0/query"]).sum() > 0


def test_deleting_a_synapse_is_what_it_says(small):
    im = InstrumentedModel(small.model)
    x = small.draw(2, np.random.default_rng(1))
    classes = im.logits(x).argmax(axis=1)
    variable = im.kernels["logits"].variable()
    (fell,) = deletion_effects(small.model, [variable], x, classes)
    # The last layer is linear: a synapse carries its weight times the value that it reads.
    read = im.capture(x, of=[im["logits"].inputs[0]])[im["logits"].inputs[0]]
    expected = np.zeros_like(fell)
    for k, c in enumerate(classes):
        expected[k, :, c] = read[k] * np.asarray(variable)[:, c]
    np.testing.assert_allclose(fell, expected, atol=1e-4)
    assert np.array_equal(np.asarray(variable), im.kernels["logits"].kernel())
