"""Removal of units: a small model gives what a model with zeros in their place gives."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import pruning
from support.models import MODELS, data, random_model, set_dyadic_weights


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def random_units(model, rng, share=0.5):
    """Keep masks for the units of all layers but the last, at least one unit each."""
    im = nns.InstrumentedModel(model)
    sums = [o for o in im.operations if o.kind == "weighted_sum" and ":depth" not in o.name]
    keep = {}
    for operation in sums:
        if operation.name != im.logit_operation:
            mask = rng.random(operation.shape[-1]) > share
            mask[rng.integers(len(mask))] = True
            keep[operation.layer] = mask
    return keep


def dyadic_model(name, rng):
    return set_dyadic_weights(MODELS[name](), rng)


@pytest.mark.parametrize("name", MODELS)
def test_removing_equals_masking(name):
    rng = np.random.default_rng(7)
    model = dyadic_model(name, rng)
    x = data(rng, model, 5)
    keep = random_units(model, rng)
    masked = pruning.mask_units(model, keep)
    small = pruning.remove_units(model, keep)
    np.testing.assert_allclose(outputs(small, x), outputs(masked, x), rtol=1e-5, atol=1e-5)
    assert small.count_params() <= model.count_params()


@pytest.mark.parametrize("seed", range(12))
def test_compacting_random_models_keeps_the_outputs(seed):
    rng = np.random.default_rng(seed)
    model = set_dyadic_weights(random_model(rng), rng)
    x = data(rng, model, 5)
    im = nns.InstrumentedModel(model)
    masks = {name: rng.random(k.shape) > 0.8 for name, k in im.kernels.items()}
    masked = pruning.apply_masks(model, masks)
    small = pruning.compact(masked)
    np.testing.assert_allclose(outputs(small, x), outputs(masked, x), rtol=1e-5, atol=1e-5)
