"""`ReconstructionError`: inputs that an autoencoder reconstructs badly are flagged."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import nnslicer_tf as nns
from nnslicer_tf.detection import ReconstructionError
from nnslicer_tf.errors import InvalidArgumentError, PlausibilityWarning


@pytest.fixture(scope="module")
def digits():
    return (load_digits().data[:900] / 16).astype(np.float32)


@pytest.fixture(scope="module")
def linear(digits):
    """Sixteen principal components, as an autoencoder with a second output."""
    pca = PCA(16, random_state=0).fit(digits)
    inputs = keras.Input((64,))
    code = layers.Dense(16, name="code")(inputs)
    model = keras.Model(inputs, {"code": code, "image": layers.Dense(64, name="image")(code)})
    model.get_layer("code").set_weights([pca.components_.T, -pca.mean_ @ pca.components_.T])
    model.get_layer("image").set_weights([pca.components_, pca.mean_])
    return model, pca


def test_scores_are_those_of_principal_components(digits, linear, tmp_path):
    model, pca = linear
    im = nns.InstrumentedModel(model)
    detector = ReconstructionError(im, output="image", false_positive_rate=0.1).fit(digits[:600])
    rest = digits[600:]
    expected = np.sqrt(np.square(pca.inverse_transform(pca.transform(rest)) - rest).mean(axis=1))
    np.testing.assert_allclose(detector.score_samples(rest), expected, atol=1e-5)
    assert detector.predict(rest).mean() < 0.2
    noise = np.random.default_rng(0).uniform(size=(50, 64)).astype(np.float32)
    assert detector.predict(noise).mean() == 1
    detector.save(tmp_path / "detector.npz")
    again = ReconstructionError.load(tmp_path / "detector.npz", im)
    np.testing.assert_array_equal(again.predict(rest), detector.predict(rest))


def test_what_does_not_reconstruct(digits, linear):
    model, _ = linear
    with pytest.raises(InvalidArgumentError, match=r"an output of shape \(16,\)"):
        ReconstructionError(model, output="code").fit(digits)
    scaled = keras.Model(model.input, 16 * model.output["image"])
    with pytest.warns(PlausibilityWarning, match="reconstructs its inputs, in the scale"):
        ReconstructionError(scaled).fit(digits)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlausibilityWarning)
        ReconstructionError(model, output="image").fit(digits)
