"""Evidence, scores and slices of tensors: those of arrays, with gradients."""

import keras
import numpy as np
import pytest
from keras import layers
from scipy.stats import spearmanr

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf.detection import Evidence, SliceDetector
from nnslicer_tf.detection.calibration import p_values
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.adaptive.smooth import SmoothSlices
from reproduction.adaptive.surrogate import (
    TensorEvidence,
    is_differentiable,
    smooth_scores,
    smooth_surprise,
)


@pytest.fixture(scope="module")
def data():
    return datasets.load("digits", "test[:12]")


@pytest.fixture(scope="module")
def made():
    """A sum of two inputs, means of 0, and a sample."""
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, name="sum")])
    model.set_weights([np.array([[1.0], [-2.0]]), np.zeros(1)])
    im = nns.InstrumentedModel(model)
    x = np.array([[1.0, 0.5], [-1.0, -0.5]], np.float32)
    return im, nns.Profile.from_data(im, x, progress=False), np.array([[2.0, -1.0]], np.float32)


def test_smooth_evidence_is_the_evidence(slicer, data):
    exact = Evidence(slicer.im, data.x, slicer)
    smooth = TensorEvidence(slicer.im, keras.ops.convert_to_tensor(data.x), slicer)
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
    smooth = np.asarray(smooth_scores(detector, keras.ops.convert_to_tensor(x)))
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


def test_smooth_surprise_is_minus_the_logarithm_of_the_p_value():
    reference = np.random.default_rng(0).normal(size=400)
    inside = np.linspace(-2, 2, 50).astype(np.float32)
    for two_sided in (False, True):
        smooth = smooth_surprise(keras.ops.convert_to_tensor(inside), reference, two_sided)
        exact = -np.log(p_values(inside, reference, two_sided))
        np.testing.assert_allclose(np.asarray(smooth), exact, atol=0.25)
    beyond = keras.ops.convert_to_tensor(np.float32([5, 6]))
    low, high = np.asarray(smooth_surprise(beyond, reference))
    assert high > low  # there is a slope where the p-value is constant


@pytest.mark.parametrize("steepness", [None, 1.0, 3.0])
def test_gradients_of_smooth_slices_are_those_of_a_tanh(made, steepness):
    """CONTRIB of the first synapse is s(x₀) · s(y), with s' the derivative of tanh(k · / size).

    The size of values is the mean of their absolutes; the default of k is 1.
    """
    import tensorflow as tf

    im, profile, x = made
    slicer = nns.Slicer(im, profile, theta=0, workers=0, progress=False)
    options = {} if steepness is None else {"steepness": steepness}
    smooth, k = SmoothSlices(slicer, [0], ["sum"], **options), steepness or 1.0
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        contribution = smooth(tensor)["sum"][0, 0, 0]
    assert float(contribution) == 1

    def slope(value, size):
        return k / size * (1 - np.tanh(k * value / size) ** 2)

    y = 4.0  # 2 · 1 − 1 · −2
    expected = slope(y, y) * np.array([1.0, -2.0]) + np.array([slope(2.0, 1.5), 0])
    gradient = tape.gradient(contribution, tensor).numpy()[0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_one_sigmoid_is_two_classes():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    values = layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(values))
    x = np.random.default_rng(0).normal(size=(500, 6)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), 0, progress=False)
    detector = SliceDetector(slicer, "fused").fit(x[:400])
    smooth = np.asarray(smooth_scores(detector, keras.ops.convert_to_tensor(x[400:])))
    assert spearmanr(smooth, detector.score_samples(x[400:])).statistic > 0.98
    amounts = nns.Slicer(im, slicer.profile, 0, contribution="amount", progress=False)
    assert is_differentiable(detector)
    assert not is_differentiable(SliceDetector(amounts, "fused").fit(x[:400]))
