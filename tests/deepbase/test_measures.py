"""Scores of streamed blocks against NumPy, SciPy and scikit-learn on all data at once."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import f1_score, mutual_info_score
from sklearn.preprocessing import StandardScaler

from nnslicer_tf.deepbase import MEASURES
from nnslicer_tf.deepbase.measures import find_measures
from nnslicer_tf.deepbase.measures.base import Block, jackknife, lots
from nnslicer_tf.deepbase.measures.logistic_probe import LogisticProbe
from nnslicer_tf.deepbase.measures.mutual_information import (
    MutualInformation,
    bin_edges,
    bin_numbers,
)
from nnslicer_tf.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def data():
    """400 records of 6 units, one of them dead, and 3 hypotheses of 0 and 1."""
    rng = np.random.default_rng(0)
    units = (100 + rng.normal(size=(400, 6)) * [1, 2, 5, 0.1, 3, 0]).astype(np.float32)
    drive = units[:, :3] @ np.array([[1, 0, 1], [0, 0.5, 0.2], [0.1, 0, 0.1]])
    noisy = drive + rng.normal(size=(400, 3))
    return units, (noisy > noisy.mean(axis=0)).astype(np.float64)


def run(measure, units, hypotheses, size=37, confidence=0.95):
    """Score behaviours that come in blocks."""
    whole = Block(units[:, None], hypotheses[:, None], np.arange(len(units)))
    blocks = [whole[i : i + size] for i in range(0, len(units), size)]
    calibration = measure.calibrate(blocks[0])
    total = measure.summarise(blocks[0], calibration)
    for block in blocks[1:]:
        total = measure.merge(total, measure.summarise(block, calibration))
    return measure.result(total, calibration, confidence), calibration


def test_correlation(data):
    units, h = data
    scores, _ = run(MEASURES["correlation"], units, h)
    expected = [[stats.pearsonr(u, c).statistic for c in h.T] for u in units.T[:5].astype(float)]
    np.testing.assert_allclose(scores.score[:5], expected, rtol=1e-9)
    assert np.isnan(scores.score[5]).all() and np.isnan(scores.error[5]).all()


def test_difference_of_means(data):
    units, h = data
    scores, _ = run(MEASURES["difference_of_means"], units, h)
    for i, u in enumerate(units.T[:5].astype(float)):
        for j, c in enumerate(h.T):
            expected = (u[c == 1].mean() - u[c == 0].mean()) / u.std()
            assert scores.score[i, j] == pytest.approx(expected, rel=1e-9)
    assert np.isnan(scores.score[5]).all()


def test_mutual_information(data):
    units, h = data
    scores, (u_edges, h_edges) = run(MutualInformation(bins=5), units, h)
    u_bins, h_bins = bin_numbers(units.astype(float), u_edges), bin_numbers(h, h_edges)
    for i in range(5):
        for j in range(3):
            expected = mutual_info_score(u_bins[:, i], h_bins[:, j])
            assert scores.score[i, j] == pytest.approx(expected, abs=1e-7)
    assert np.isnan(scores.score[5]).all()


def test_bins():
    values = np.array([[0, 1.0], [1, 2.0], [0, 3.0], [0, 4.0]])
    np.testing.assert_array_equal(bin_edges(values, 2), [[0.5, 2.5]])
    np.testing.assert_array_equal(bin_edges(values, 4), [[0.5, 1.5], [1, 2.5], [1, 3.5]])
    numbers = bin_numbers(np.array([[0, 9.0], [1, 1.0], [2, 2.0]]), bin_edges(values, 4))
    np.testing.assert_array_equal(numbers, [[0, 3], [1, 0], [3, 1]])


def test_linear_probe(data):
    units, h = data
    scores, _ = run(MEASURES["linear_probe"], units, h)
    x = units.astype(float)
    fitted = LinearRegression().fit(x, h)
    expected = [LinearRegression().fit(x, c).score(x, c) for c in h.T]
    np.testing.assert_allclose(scores.score, [expected], rtol=1e-6)
    scaled = fitted.coef_.T * x.std(axis=0)[:, None]
    np.testing.assert_allclose(scores.weights[:5], scaled[:5], rtol=1e-5)
    np.testing.assert_allclose(scores.weights[5], 0, atol=1e-9)


def test_logistic_probe(data):
    units, h = data
    scores, _ = run(LogisticProbe(), units, h)
    held = lots(np.arange(400)) % 5 == 0
    scale = StandardScaler().fit(units[~held].astype(float))
    x, test = scale.transform(units[~held]), scale.transform(units[held])
    for j in range(3):
        fitted = LogisticRegression(tol=1e-8, max_iter=1000).fit(x, h[~held, j])
        expected = f1_score(h[held, j], fitted.predict(test))
        assert scores.score[0, j] == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(scores.weights[:, j], fitted.coef_[0], atol=1e-3)


@pytest.mark.parametrize("cycle", [5, 20])
def test_classes_in_turn_are_scored_as_shuffled_ones(cycle):
    """One class in `cycle` comes at every `cycle`-th record, and a unit sees it well."""
    rng = np.random.default_rng(4)
    h = (np.arange(2000) % cycle == 0).astype(np.float64)[:, None]
    u = (3 * h + rng.normal(size=h.shape)).astype(np.float32)
    order = rng.permutation(len(h))
    for name in ("logistic_probe", "correlation", "difference_of_means"):
        (cyclic, _), (mixed, _) = (
            run(MEASURES[name], u[rows], h[rows]) for rows in (slice(None), order)
        )
        assert cyclic.score == pytest.approx(mixed.score, abs=2 * mixed.error.item())
        assert 0.5 < cyclic.error.item() / mixed.error.item() < 2


def test_a_bounded_sample_does_not_depend_on_the_blocks(data):
    units, h = data
    probe = LogisticProbe(max_rows=100)
    first, _ = run(probe, units, h, size=30)
    second, _ = run(probe, units, h, size=171)
    np.testing.assert_array_equal(first.weights, second.weights)
    everything, _ = run(LogisticProbe(), units, h)
    assert not np.array_equal(first.weights, everything.weights)
    part = Block(units[:300, None], h[:300, None], np.arange(300))
    kept = probe.summarise(part, None).indices
    assert len(kept) == 100 and len(set(kept)) == 100 and kept.max() < 300
    # Uniform: thirds of the records are kept alike.
    assert stats.chisquare(np.bincount(kept // 100)).pvalue > 1e-4


@pytest.mark.parametrize("name", [m for m in MEASURES if m != "logistic_probe"])
def test_blocks_do_not_matter(data, name):
    units, h = data
    whole, _ = run(MEASURES[name], units, h, size=400)
    if name == "mutual_information":
        return_to = MEASURES[name].calibrate(Block(units[:, None], h[:, None], np.arange(len(h))))
        assert return_to[0].shape == (7, 6)
        return
    parts, _ = run(MEASURES[name], units, h, size=23)
    np.testing.assert_allclose(parts.score, whole.score, rtol=1e-7)
    np.testing.assert_allclose(parts.error, whole.error, rtol=1e-4, atol=1e-9)


def test_errors_are_those_of_the_score():
    """Over many samples, 95 % intervals hold the true correlation about so often."""
    rng = np.random.default_rng(1)
    truth, records, inside = 0.6, 300, []
    for _ in range(200):
        u = rng.normal(size=(records, 1))
        h = truth * u + np.sqrt(1 - truth**2) * rng.normal(size=(records, 1))
        scores, _ = run(MEASURES["correlation"], u.astype(np.float32), h, size=300)
        inside.append(abs(scores.score[0, 0] - truth) <= scores.error[0, 0])
    assert 0.90 <= np.mean(inside) <= 0.995


def test_jackknife_of_a_mean():
    """For equal groups it is the standard error of the groups' means, without bias."""
    groups = np.random.default_rng(2).normal(size=10)
    without = (groups.sum() - groups) / 9
    error = jackknife(np.array(groups.mean()), without, 0.9)
    expected = stats.t.ppf(0.95, 9) * groups.std(ddof=1) / np.sqrt(10)
    assert error == pytest.approx(expected, rel=1e-9)


def test_positions_of_a_record_stay_together():
    """Copies of a record's behaviour at many positions make nothing more certain."""
    rng = np.random.default_rng(3)
    u, h = rng.normal(size=(2, 200, 1, 1))
    measure = MEASURES["correlation"]
    errors = []
    for copies in (1, 16):
        block = Block(u.repeat(copies, axis=1), h.repeat(copies, axis=1), np.arange(200))
        calibration = measure.calibrate(block)
        errors.append(measure.result(measure.summarise(block, calibration), calibration, 0.95))
    np.testing.assert_allclose(errors[0].error, errors[1].error, rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: find_measures("corelation"), "correlation, mutual_information"),
        (lambda: find_measures([]), "different names"),
        (lambda: find_measures(["correlation", "correlation"]), "different names"),
        (lambda: MutualInformation(bins=1), "bins must be an integer of at least 2"),
        (lambda: LogisticProbe(max_rows=10), "max_rows must be an integer of at least 100"),
    ],
)
def test_wrong_measures(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
