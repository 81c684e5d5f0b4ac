"""Slicers as objects in programs: they can be pickled, and say when a slice is empty."""

import pickle

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, instrument, zoo


@pytest.fixture(scope="module")
def digits():
    data = datasets.load("digits", "train[:200]")
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    return nns.Profile.from_data(im, data.x, progress=False), im, data.x


@pytest.mark.parametrize("options", [{"theta": 0.3}, {"theta": 0.0, "contribution": "amount"}])
def test_a_pickled_slicer_gives_the_same_slices(digits, options):
    profile, im, x = digits
    slicer = nns.Slicer(im, profile, workers=0, progress=False, **options)
    before = slicer.slice(x[:3])
    copy = pickle.loads(pickle.dumps(slicer))
    after = copy.slice(x[:3])
    assert after.info == before.info
    for name, values in before.synapses.items():
        np.testing.assert_allclose(after.synapses[name], values, rtol=1e-5, atol=1e-5)


def test_an_empty_slice_warns(digits):
    profile, im, x = digits
    slicer = nns.Slicer(im, profile, theta=1e9, workers=0, progress=False)
    with pytest.warns(UserWarning, match="slice is empty: no synapse contributes at θ = 1e"):
        slicer.slice(x[:2])
    with pytest.warns(UserWarning, match=r"slicer\.explain"):
        slicer.slice_each(x[:2])


def test_a_slicer_at_another_theta_shares_model_and_profile(digits):
    profile, im, x = digits
    slicer = nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
    other = slicer.at_theta(0.1)
    assert other.im is im and other.theta == 0.1 and slicer.theta == 0.3
    assert other.slice(x[:1]) == nns.Slicer(im, profile, 0.1, workers=0, progress=False).slice(
        x[:1]
    )
    with pytest.raises(nns.errors.InvalidArgumentError, match="at least 0"):
        slicer.at_theta(-1)


def test_a_masked_model_takes_integer_tokens():
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), keras.layers.Embedding(7, 3), keras.layers.Flatten()]
    )
    model.add(keras.layers.Dense(2, name="logits"))
    tokens = np.random.default_rng(0).integers(0, 7, (4, 5)).astype(np.int32)
    expected = model(tokens).numpy()
    for level in ("synapse", "input", "weight"):
        ablation = instrument.Ablation(model, "zero", level)
        np.testing.assert_allclose(ablation.outputs({}, tokens), expected, rtol=1e-5, atol=1e-6)


def test_a_profile_with_means_of_another_shape_is_refused(digits, tmp_path):
    profile, im, _ = digits
    name = im.operations[2].name
    means = {**profile.means, name: profile.means[name][:1]}
    nns.Profile(means, profile.samples, profile.fingerprint).save(tmp_path / "p.npz")
    damaged = nns.Profile.load(tmp_path / "p.npz")
    with pytest.raises(nns.errors.ProfileMismatchError, match=f"'{name}' have shape .*expected"):
        nns.Slicer(im, damaged, workers=0, progress=False)
