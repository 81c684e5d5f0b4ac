"""Planted transformers compute what they are said to, and dead weight changes nothing."""

import numpy as np
import pytest

from nnslicer_tf.experiments.circuits.settings import TransformerCircuitSettings
from nnslicer_tf.experiments.circuits.transformer_networks import CIRCUITS, plant
from nnslicer_tf.experiments.circuits.transformers import transformers
from nnslicer_tf.instrument import InstrumentedModel


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


def test_the_experiment_on_one_network_of_each(tmp_path):
    sizes = {"networks": 1, "dead": 4, "samples": 20, "explained": 2, "points": 1}
    s = TransformerCircuitSettings(**sizes, thetas=(0.3,), channel_thetas=(0.0,), work=tmp_path)
    table = transformers(s).table("transformer")
    assert table["method"].tolist() == [
        *("slices, θ = 0.3", "slices, means of channels, θ = 0", "gradient × weight"),
        *("integrated gradients", "magnitude", "(accuracy of the networks)"),
    ]
    assert table[list(CIRCUITS)].stack().between(0, 1).all()
    assert (table[list(CIRCUITS)].iloc[-1] == 1).all()
