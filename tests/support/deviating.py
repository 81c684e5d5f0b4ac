"""Pairs of models whose deviations are known in closed form, as fixtures; a shorter search."""

import dataclasses

import keras
import numpy as np
import pytest

from nnslicer_tf.dflare import DFlare, ModelPair, find_deviations
from nnslicer_tf.instrument import copy_model


def find(original, compressed, seeds, preprocess=None, *, search=None, **options):
    """`find_deviations` of two models: options of the pair, the budget and the call in one."""
    pair = {key: options.pop(key) for key in ("domain", "batch_size") if key in options}
    budget = [field.name for field in dataclasses.fields(DFlare)]
    budget = {key: options.pop(key) for key in budget if key in options}
    return find_deviations(
        ModelPair(original, compressed, preprocess, **pair),
        seeds,
        search=dataclasses.replace(search or DFlare(), **budget),
        **{"progress": False, **options},
    )


def threshold_model(threshold, steepness=0.05):
    """Two classes by the mean grey value: class 1 above `threshold`."""

    def probabilities(x):
        mean = x.reshape(len(x), -1).mean(axis=1, dtype=np.float64)
        one = 1 / (1 + np.exp(-steepness * (mean - threshold)))
        return np.stack([1 - one, one], axis=1)

    return probabilities


@pytest.fixture
def pair():
    """Models that deviate exactly where the mean grey value lies in 128 … 131."""
    return threshold_model(128.0), threshold_model(131.0)


@pytest.fixture
def seeds():
    """Twelve dark and bright random images, none of them near the thresholds."""
    rng = np.random.default_rng(7)
    images = rng.integers(0, 120, (12, 8, 8, 1), dtype=np.uint8)
    images[6:] += 135
    return images


def mutated(model, ratio, rng=0):
    """A copy in which a share of the kernels' weights grows or shrinks by 10 %."""
    generator = np.random.default_rng(rng)
    copy = copy_model(model)
    for kernel in (weight for weight in copy.weights if weight.ndim > 1):
        values = keras.ops.convert_to_numpy(kernel)
        factors = generator.choice([0.9, 1.1], values.shape)
        chosen = generator.random(values.shape) < ratio
        kernel.assign(np.where(chosen, factors, 1) * values)
    return copy
