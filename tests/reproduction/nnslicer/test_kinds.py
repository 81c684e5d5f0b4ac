"""Kinds of evidence that were tried, and their scorers, against closed forms."""

import keras
import numpy as np
import pytest

from nnslicer_tf.detection import Evidence
from nnslicer_tf.detection.scorers import RidgeMargin
from reproduction.nnslicer.kinds import (
    EvidenceDetector,
    MembershipRatio,
    RidgeFall,
    ScaledRidgeMargin,
)


@pytest.fixture
def clusters():
    rng = np.random.default_rng(2)
    label = rng.integers(3, size=240)
    centres = rng.normal(size=(3, 8)) * 2
    return (centres[label] + rng.normal(size=(240, 8))).astype(np.float32), label


def test_the_scaled_margin_is_that_of_standardised_features(clusters):
    from sklearn.preprocessing import StandardScaler

    x, label = clusters
    x = np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)  # one feature is constant
    standardised = StandardScaler().fit_transform(x)
    expected = RidgeMargin(10.0).fit(standardised, label, 3).score(standardised, label)
    scorer = ScaledRidgeMargin(10.0).fit(x, label, 3)
    np.testing.assert_allclose(scorer.score(x, label), expected, rtol=1e-4, atol=1e-4)
    # The unit of a feature does not matter.
    units = np.float32([1e3, *np.ones(x.shape[1] - 2), 1e-1])
    other = ScaledRidgeMargin(10.0).fit(x * units, label, 3)
    np.testing.assert_allclose(other.score(x * units, label), expected, rtol=1e-3, atol=1e-3)
    smooth = np.asarray(scorer.score(keras.ops.convert_to_tensor(x), label))
    np.testing.assert_allclose(smooth, expected, rtol=1e-3, atol=1e-3)


def test_the_membership_ratio_is_that_of_normal_densities(clusters):
    from scipy.stats import multivariate_normal
    from sklearn.covariance import LedoitWolf

    x, label = clusters
    means = np.stack([x[label == c].mean(axis=0) for c in range(3)])
    covariance = LedoitWolf(assume_centered=True).fit(x - means[label]).covariance_
    logs = np.stack([multivariate_normal(mean, covariance).logpdf(x) for mean in means], axis=1)
    expected = [2 * (max(np.delete(row, p)) - row[p]) for row, p in zip(logs, label, strict=True)]
    scorer = MembershipRatio().fit(x, label, 3)
    np.testing.assert_allclose(scorer.score(x, label), expected, rtol=1e-3, atol=1e-3)
    smooth = np.asarray(scorer.score(keras.ops.convert_to_tensor(x), label))
    np.testing.assert_allclose(smooth, expected, rtol=1e-3, atol=1e-3)


def test_the_fall_is_the_difference_of_two_margins(clusters):
    vectors, label = clusters
    views = vectors + np.random.default_rng(3).normal(size=vectors.shape)
    ridge = RidgeMargin(1.0).fit(vectors, label, 3)
    pairs = np.concatenate([vectors, views], axis=1)
    fall = RidgeFall(1.0).fit(pairs, label, 3)
    expected = ridge.score(views, label) - ridge.score(vectors, label)
    np.testing.assert_allclose(fall.score(pairs, label), expected, atol=1e-5)
    smooth = np.asarray(fall.score(keras.ops.convert_to_tensor(np.float32(pairs)), label))
    np.testing.assert_allclose(smooth, expected, rtol=1e-3, atol=1e-3)


def test_slices_for_the_two_best_outputs_against_the_slicer(slicer, normal):
    x = normal[:6]
    logits = slicer.im.logits(x)
    first, second = logits.argsort(axis=1)[:, ::-1][:, :2].T
    detector = EvidenceDetector(slicer, kernels=("conv2",), max_synapses=64)
    (vote,) = detector.votes_of("slices for the two best outputs")
    vote.fit(Evidence(slicer.im, normal[:100], slicer), np.random.default_rng(0))
    columns = vote.columns
    found = vote.features(Evidence(slicer.im, x, slicer))
    assert found.shape == (6, 2)
    for i in range(6):
        a, b = (
            slicer.slice_each(x[i : i + 1], [int(label)], kernels=["conv2"], operations=())
            .matrix.toarray()[0, columns]
            .astype(np.float64)
            for label in (first[i], second[i])
        )
        cosine = a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-9)
        ratio = np.log((np.abs(a).sum() + 1) / (np.abs(b).sum() + 1))
        np.testing.assert_allclose(found[i], [cosine, ratio], rtol=1e-4, atol=1e-5)
