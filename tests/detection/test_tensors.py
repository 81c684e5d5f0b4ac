"""Evidence, scores and slices of tensors: those of arrays, with gradients."""

import keras
import numpy as np
import pytest
from scipy.stats import spearmanr

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf.detection import Evidence, SliceDetector
from nnslicer_tf.detection.calibration import p_values, surprise
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.slicing import SmoothSlices


@pytest.fixture(scope="module")
def data():
    return datasets.load("digits", "test[:12]")


def test_smooth_evidence_is_the_evidence(slicer, data):
    exact = Evidence(slicer.im, data.x, slicer)
    smooth = Evidence(slicer.im, keras.ops.convert_to_tensor(data.x), slicer)
    pairs = [(exact.logits, smooth.logits), (exact.margins, smooth.margins)]
    for view in ("mirror", "shift", "zoom"):
        pairs.append((exact.view_margins(view), smooth.view_margins(view)))
    for name in ("rings", "blocks"):
        pairs.append((exact.spectrum(name), smooth.spectrum(name)))
    pairs.append((exact.residuals, smooth.residuals))
    pairs.append((exact.channel_statistics("conv2"), smooth.channel_statistics("conv2")))
    for one, other in pairs:
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("preset", ["margin", "fused", "stable", "slices", "lean", "photos"])
def test_smooth_scores_rank_like_the_true_ones(preset, slicer, normal):
    x = datasets.load("digits", "test[:60]").x
    x = np.concatenate([x, np.clip(x + 0.3 * np.random.default_rng(0).normal(size=x.shape), 0, 1)])
    x = x.astype(np.float32)
    detector = SliceDetector(slicer, preset, max_synapses=256).fit(normal)
    evidence = detector.evidence(keras.ops.convert_to_tensor(x), 1.0)
    smooth = np.asarray(detector.anomaly_scores(evidence))
    # Noise is far beyond the residuals of all digits, where p-values are constant.
    least = 0.9 if preset == "photos" else 0.98
    assert spearmanr(smooth, detector.score_samples(x)).statistic > least


def test_smooth_slices_have_the_values_of_slices_and_a_gradient(slicer, data):
    import tensorflow as tf

    smooth = SmoothSlices(slicer, "predicted", ["conv1", "conv2"], steepness=2.0)
    x = tf.constant(data.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = smooth(x)
        total = tf.reduce_sum(found["conv1"] ** 2, axis=(1, 2, 3, 4))
    slices = slicer.slice_each(data.x)
    for name, values in found.items():
        exact = np.stack([slices[i].synapses[name] for i in range(len(data.x))])
        np.testing.assert_allclose(values.numpy(), exact, atol=1e-3)
    assert (np.abs(tape.gradient(total, x).numpy()).max(axis=(1, 2, 3)) > 0).all()


def test_smooth_slices_need_activations_as_neurons(slicer):
    channels = nns.Slicer(slicer.im, slicer.profile, 0.0, "channel", progress=False)
    with pytest.raises(InvalidArgumentError, match="granularity"):
        SmoothSlices(channels, "predicted", ["conv1"])


def test_surprise_is_minus_the_logarithm_of_the_p_value():
    reference = np.random.default_rng(0).normal(size=400)
    inside = np.linspace(-2, 2, 50).astype(np.float32)
    for two_sided in (False, True):
        smooth = np.asarray(surprise(keras.ops.convert_to_tensor(inside), reference, two_sided))
        exact = surprise(inside, reference, two_sided)
        np.testing.assert_array_equal(exact, -np.log(p_values(inside, reference, two_sided)))
        np.testing.assert_allclose(smooth, exact, atol=0.25)
    beyond = keras.ops.convert_to_tensor(np.float32([5, 6]))
    low, high = np.asarray(surprise(beyond, reference))
    assert high > low  # there is a slope where the p-value is constant
