"""Mutated weights: a share of all, by a tenth, drawn by the seed."""

import keras
import numpy as np
import pytest

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.dflare.mutation import mutated


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_mutation_changes_a_share_by_a_tenth(share):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(6, 3), layers.Dense(9)])
    model.set_weights([w + 0.5 for w in model.get_weights()])
    changed = mutated(model, share, rng=1)
    kernels = [[w for w in m.get_weights() if w.ndim > 1] for m in (model, changed)]
    old, new = (np.concatenate([w.ravel() for w in of_model]) for of_model in kernels)
    assert (old != new).sum() == round(share * old.size)
    factors = (new / old)[old != new]
    np.testing.assert_allclose(np.abs(factors - 1), 0.1, rtol=1e-4)
    if share:
        assert 0.3 < (factors > 1).mean() < 0.7
    for a, b in zip(changed.get_weights(), mutated(model, share, rng=1).get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(model.get_weights(), changed.get_weights(), strict=True):
        assert a.ndim > 1 or np.array_equal(a, b)


def test_a_share_above_one_is_refused():
    with pytest.raises(InvalidArgumentError, match="ratio"):
        mutated(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]), 1.1)
