"""Thresholds, p-values and scorers against closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from nnslicer_tf.detection import Vote, VotingDetector
from nnslicer_tf.detection.calibration import p_values, threshold_at
from nnslicer_tf.detection.scorers import ClassDistance, RidgeMargin, Scorer, TreeDisagreement
from nnslicer_tf.errors import InvalidArgumentError


def test_the_threshold_is_the_conformal_quantile():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 100))  # 1 … 99
    assert threshold_at(scores, 0.05) == 95  # ⌈100 · 0.95⌉-th
    assert threshold_at(scores, 0.10) == 90
    assert threshold_at(scores, 0.01) == 99
    with pytest.raises(InvalidArgumentError, match=r"at least 199 .* There are 99"):
        threshold_at(scores, 0.005)


def test_new_normal_scores_exceed_the_threshold_at_the_asked_rate():
    rng = np.random.default_rng(1)
    rates = [np.mean(rng.normal(size=400) > threshold_at(rng.normal(size=59), 0.1))
             for _ in range(400)]  # fmt: skip
    assert np.mean(rates) == pytest.approx(0.1, abs=0.01)


def test_p_values_in_closed_form():
    normal = np.array([3.0, 1.0, 2.0, 2.0])
    assert p_values(np.array([0.0, 2.0, 2.5, 9.0]), normal).tolist() == [1, 0.8, 0.4, 0.2]
    assert p_values(np.array([0.0, 2.0, 9.0]), normal, two_sided=True).tolist() == [0.4, 1, 0.4]


def test_fusion_is_half_of_fishers_statistic():
    from scipy.stats import combine_pvalues

    class Fused(VotingDetector):
        source = "slicer"  # no model is needed to fuse votes

        def votes(self):
            return []

    def vote(name, which, group=None):
        return Vote(name, lambda evidence: evidence.scores[which], group=group)

    scores = np.array([[3.0, 60.0], [90.0, 40.0]])
    evidence = SimpleNamespace(x=np.zeros(2), scores=scores, predicted=None)
    detector = Fused()
    detector.reference_ = dict.fromkeys("pqrs", np.arange(99.0))
    pairs = zip(*(p_values(scores, np.arange(99.0)) for scores in evidence.scores), strict=True)
    expected = [combine_pvalues(pair, method="fisher").statistic / 2 for pair in pairs]
    votes = [vote("p", 0), vote("q", 1)]
    np.testing.assert_allclose(detector.fuse(evidence, votes), expected)
    grouped = [vote("p", 0, "g"), vote("r", 0, "g"), vote("s", 0, "g"), vote("q", 1)]
    np.testing.assert_allclose(detector.fuse(evidence, grouped), expected)  # one vote a group


@pytest.fixture
def clusters():
    rng = np.random.default_rng(2)
    label = rng.integers(3, size=240)
    centres = rng.normal(size=(3, 8)) * 2
    return (centres[label] + rng.normal(size=(240, 8))).astype(np.float32), label


def test_the_tree_in_arrays_says_what_scikit_learns_says(clusters):
    x, label = clusters
    ours = TreeDisagreement().fit(x[:120], label[:120], 3)
    theirs = DecisionTreeClassifier(random_state=0).fit(x[:120], label[:120])
    assert np.array_equal(ours.classify(x), theirs.predict(x))
    assert np.array_equal(ours.score(x, label), theirs.predict(x) != label)


def test_the_ridge_margin_against_the_normal_equations(clusters):
    x, label = clusters
    scorer = RidgeMargin(alpha=10.0).fit(x, label, 3)
    centred, targets = x - x.mean(axis=0), 2.0 * np.eye(3)[label] - 1
    weights = np.linalg.solve(
        centred.T @ centred + 10 * np.eye(8), centred.T @ (targets - targets.mean(axis=0))
    )
    z = centred @ weights + targets.mean(axis=0)
    expected = [max(np.delete(row, p)) - row[p] for row, p in zip(z, label, strict=True)]
    np.testing.assert_allclose(scorer.score(x, label), expected, atol=1e-3)


def test_the_class_distance_against_its_formula(clusters):
    from sklearn.covariance import LedoitWolf

    x, label = clusters
    means = np.stack([x[label == c].mean(axis=0) for c in range(3)])
    precision = LedoitWolf(assume_centered=True).fit(x - means[label]).precision_
    expected = [d @ precision @ d for d in x - means[label]]
    scorer = ClassDistance().fit(x, label, 3)
    np.testing.assert_allclose(scorer.score(x, label), expected, rtol=1e-3)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_ties_do_not_depend_on_the_last_bits(two_sided, scale):
    """As those of one input in batches of other sizes; real differences count."""
    rng = np.random.default_rng(0)
    normal = scale * rng.integers(-3, 4, 200) / 7
    scores = np.unique(normal)
    expected = p_values(scores, normal, two_sided)
    for sign in (-1, 1):
        moved = scores * (1 + sign * 4e-16) + sign * scale * 1e-15
        np.testing.assert_array_equal(p_values(moved, normal, two_sided), expected)
    apart = p_values(scores + scale * 1e-4, normal)
    higher = (normal > scores[:, None] + scale * 1e-5).sum(axis=1)
    np.testing.assert_allclose(apart, (1 + higher) / 201)


class Learns(Scorer):
    """Its `fit` replaces a first value."""

    def __init__(self):
        self.centre = 0.0

    def fit(self, vectors, predicted, classes):
        self.centre = vectors.mean(axis=0)
        return self

    def score(self, vectors, predicted):
        return np.linalg.norm(vectors - self.centre, axis=1)


class Named(Learns):
    names = ("centre",)


class Misspelt(Learns):
    names = ("center",)


class Letters(Learns):
    names = "centre"


@pytest.mark.parametrize("scorer", [Learns, Named, Misspelt, Letters])
def test_every_fit_is_called_and_what_cannot_be_saved_is_said(scorer):
    """Without `names`, `fit` was left out, and scores were those of the first value."""
    rng = np.random.default_rng(0)
    learnt, evidence = (
        scorer(),
        SimpleNamespace(
            x=np.zeros((40, 2)), logits=rng.normal(5, 1, (40, 3)), predicted=np.zeros(40, int)
        ),
    )
    vote = Vote("distance", lambda evidence: evidence.logits, learnt)
    vote.fit(evidence, rng)
    expected = np.linalg.norm(evidence.logits - evidence.logits.mean(axis=0), axis=1)
    np.testing.assert_allclose(vote.score(evidence), expected)
    if scorer is Named:
        np.testing.assert_array_equal(vote.state()["centre"], learnt.centre)
        return
    with pytest.raises(InvalidArgumentError, match=f"{scorer.__name__}.names must name `fit`"):
        vote.state()
