"""Slices against the profile of the predicted class."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from reproduction.nnslicer.class_profiles import ClassProfiles
from reproduction.nnslicer.class_slicer import slice_each_by_class
from support.models import MODELS, set_dyadic_weights
from support.slicing_oracle import Oracle


def test_slices_are_those_of_the_oracle_with_the_means_of_the_predicted_class():
    rng = np.random.default_rng(3)
    model = set_dyadic_weights(MODELS["conv same"](), rng)
    im = nns.InstrumentedModel(model)
    x = (rng.integers(-8, 9, (32, *im.input_shape)) / 4).astype(np.float32)
    predicted = im.logits(x).argmax(axis=1)
    # Means over powers of two are exact.
    chosen = [
        rows[: 2 ** int(np.log2(len(rows)))]
        for c in range(3)
        if len(rows := np.flatnonzero(predicted == c))
    ]
    profiles = ClassProfiles.from_data(im, x[np.concatenate(chosen)], progress=False)
    options = {"theta": 0.25, "workers": 0, "progress": False, "relative_to": "sum"}
    samples = x[np.concatenate([rows[:2] for rows in chosen])[::-1]]
    found = slice_each_by_class(im, profiles, samples, **options)
    assert len(set(found.predicted)) > 1
    total = {name: np.zeros(kernel.shape, int) for name, kernel in im.kernels.items()}
    for i, sample in enumerate(samples):
        c = int(found.predicted[i])
        oracle = Oracle(im, x[chosen[sorted(profiles).index(c)]], relative_to="sum")
        neurons, synapses = oracle.slice(sample, {im.logit_operation: [(c,)]}, 0.25)
        for name in im.kernels:
            expected = np.zeros(im.kernels[name].shape, int)
            for index, value in synapses[name].items():
                expected[index] = value
            np.testing.assert_array_equal(found[i].synapses[name], expected)
            total[name] += expected
        of_logits = found[i].neurons[im.logit_operation]
        assert of_logits[c] == neurons[im.logit_operation][(c,)] == 1
    together = found.sum()
    for name, expected in total.items():
        np.testing.assert_array_equal(together.synapses[name], expected)


def test_a_class_without_a_profile_is_refused():
    im, x = nns.InstrumentedModel(zoo.load("digits_cnn")), datasets.load("digits", "train[:60]").x
    profiles = ClassProfiles.from_data(im, x, progress=False)
    two = ClassProfiles({c: profiles[c] for c in (0, 1)})
    with pytest.raises(nns.errors.InvalidArgumentError, match="no profile of class"):
        slice_each_by_class(im, two, x, workers=0, progress=False)
