"""Attackers who know the detector: known cases, gradients, checks, resuming, errors."""

from dataclasses import dataclass
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import (
    LogitMargin,
    SliceDetector,
    Vote,
    VotingDetector,
)
from nnslicer_tf.detection.scorers import ClassDistance
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.adaptive import ADAPTIVE_ATTACKS, ChallengeResult, challenge, gradient
from reproduction.adaptive import result as checks
from reproduction.adaptive.pair import Pair, Values
from reproduction.adaptive.problem import NORMS
from reproduction.adaptive.result import MODEL, PAIR, Outcome

QUICK = {"steps": 20, "queries": 40, "rounds": 2}
SOME = ("orthogonal", "selective", "square")


@pytest.fixture(scope="module")
def normal():
    return datasets.load("digits", "train").x


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(zoo.load("digits_cnn"), bounds=(0, 1))


@pytest.fixture(scope="module")
def slicer(im, normal):
    return nns.Slicer(im, nns.Profile.from_data(im, normal), theta=0.0, progress=False)


@pytest.fixture(scope="module")
def data():
    return datasets.load("digits", "test[:12]")


@pytest.fixture(scope="module")
def fallen(im, data, normal):
    """The outcome for a detector that falls."""
    detector = LogitMargin(im).fit(normal)
    return attack(detector, im, data, normal, attacks=("selective", "square"))


def attack(detector, im, data, normal, **changes) -> ChallengeResult:
    given = {"norms": ["linf"], "attacks": SOME, "progress": False} | QUICK
    return challenge(detector, im, data.x, data.y, normal=normal[:200], **(given | changes))


# --- known cases -----------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class FeatureDistance(VotingDetector):
    """The Mahalanobis distance of the logits to those of their class (Lee et al., 2018)."""

    im: InstrumentedModel

    def votes(self):
        return [Vote("distance", lambda evidence: evidence.logits, ClassDistance())]


def is_array(x):
    return isinstance(x, np.ndarray)


@dataclass(eq=False, repr=False)
class Masked(FeatureDistance):
    """The same, whose gradient is hidden."""

    def anomaly_scores(self, evidence):
        scores = super().anomaly_scores(evidence)
        return scores if is_array(evidence.x) else keras.ops.stop_gradient(scores)


@dataclass(eq=False, repr=False)
class Misleading(FeatureDistance):
    """The same, whose surrogate points away."""

    def anomaly_scores(self, evidence):
        scores = super().anomaly_scores(evidence)
        return scores if is_array(evidence.x) else -scores


def test_no_defence_takes_no_larger_change(im, data, normal):
    detector = LogitMargin(im).fit(normal)
    detector.threshold_ = 1e6  # it never flags
    result = attack(detector, im, data, normal, attacks=["selective"])
    outcome = result.norms["linf"]
    assert result.false_positives == 0
    np.testing.assert_allclose(outcome.pair, outcome.undefended, rtol=0.15)
    assert result.credible, result.verdict


@pytest.mark.parametrize("kind", [LogitMargin, FeatureDistance])
def test_detectors_that_are_known_to_fall_do(kind, im, data, normal, fallen):
    result = fallen
    if kind is FeatureDistance:
        detector = FeatureDistance(im).fit(normal)
        result = attack(detector, im, data, normal, attacks=("selective", "square"))
    shares = result.success()
    assert result.credible, result.verdict
    assert shares[PAIR].iloc[-1] == 1  # at four times the median change
    row = result.to_frame().set_index("attack").loc[PAIR]
    assert 1 <= row["ratio"] < 2.5


@pytest.mark.parametrize(
    ("kind", "reason"), [(Masked, "has a gradient"), (Misleading, "like the true one")]
)
def test_hidden_gradients_are_not_taken_for_robustness(kind, reason, im, data, normal):
    result = attack(kind(im).fit(normal), im, data, normal, attacks=("orthogonal", "square"))
    assert not result.credible
    assert any(reason in said for said in result.reasons)
    assert result.verdict.startswith("not credible: ")
    assert "Not credible" in result.plot().get_suptitle()


def test_slices_are_attacked_by_every_attack(slicer, data, normal):
    detector = SliceDetector(slicer, "margin", max_synapses=256).fit(normal)
    other = SliceDetector(slicer, "margin", max_synapses=256, rng=1).fit(normal[::2])
    result = attack(
        detector,
        slicer.im,
        data,
        normal,
        attacks=None,
        substitute=other,
        steps=15,
        queries=20,
        rounds=2,
        budgets={"l2": [1.5]},
        norms=["l2"],
    )
    outcome = result.norms["l2"]
    assert set(outcome.attacks) == set(ADAPTIVE_ATTACKS)
    found = np.isfinite(outcome.pair)
    assert found.all()  # without a bound, if nothing else
    examples = outcome.examples
    assert examples.min() >= 0 and examples.max() <= 1
    wrong = slicer.im.logits(examples).argmax(axis=1) != data.y[result.index]
    assert wrong.all() and not detector.predict(examples).any()
    moved = (examples - data.x[result.index]).reshape(len(examples), -1)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), outcome.pair, rtol=1e-4)
    assert (outcome.undefended <= outcome.pair).all()


# --- any detector ----------------------------------------------------------------------


def test_an_outlier_estimator_of_scikit_learn(im, data, normal):
    forest = IsolationForest(random_state=0, n_estimators=5, contamination=0.05)
    forest.fit(normal.reshape(len(normal), -1))
    result = attack(
        forest,
        im,
        data,
        normal,
        attacks=["selective"],
        steps=8,
        budgets={"linf": [0.3]},
    )
    examples = result.norms["linf"].examples[np.isfinite(result.norms["linf"].pair)]
    assert len(examples) and (forest.predict(examples.reshape(len(examples), -1)) == 1).all()
    assert {check.name for check in result.checks} >= {"the score has a gradient"}


def test_an_object_with_score_and_threshold(im, data, normal):
    bright = float(np.quantile(normal.mean(axis=(1, 2, 3)), 0.95))
    judge = SimpleNamespace(decision_function=lambda x: x.mean(axis=(1, 2, 3)) - bright)
    result = attack(judge, im, data, normal, attacks=("selective",))
    outcome = result.norms["linf"]
    found = np.isfinite(outcome.pair)
    assert found.mean() > 0.5
    assert (outcome.examples[found].mean(axis=(1, 2, 3)) <= bright).all()


# --- gradients -------------------------------------------------------------------------


def test_the_surrogates_gradients_are_slopes(im, data, normal):
    detector = FeatureDistance(im).fit(normal)
    pair = Pair(im, detector)
    rng = np.random.default_rng(0)
    x = 0.05 + 0.8 * data.x + rng.uniform(0, 0.1, data.x.shape)  # no ties in maxima
    x = x.astype(np.float32)
    values = pair.values(x, data.y, 1.0, 0.1)
    np.testing.assert_allclose(values.excess, detector.decision_function(x), rtol=1e-2)
    way = rng.normal(size=x.shape).astype(np.float32) * 1e-3
    up, down = (pair.values(x + sign * way, data.y, 1.0, 0.1) for sign in (1, -1))
    for name in ("margin", "excess"):
        slope = (getattr(values, f"{name}_gradient") * way).sum(axis=(1, 2, 3)) * 2
        found = getattr(up, name) - getattr(down, name)
        # Not exactly: a rectifier may switch between the two.
        np.testing.assert_allclose(found, slope, atol=0.1 * np.abs(slope).max())
        assert np.corrcoef(found, slope)[0, 1] > 0.99


def test_orthogonal_steps_leave_the_other_score_as_it_is():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 6, 4, 4, 1)).astype(np.float32)
    margin = np.array([1, -1, 1, -1, 1, -1], np.float32)
    values = Values(margin, one, np.ones(6), other)
    way = gradient.orthogonal_way(values, one, np.arange(6), 0.0)
    kept = np.where((margin < 0)[:, None, None, None], one, other)
    np.testing.assert_allclose((way * kept).sum(axis=(1, 2, 3)), 0, atol=1e-4)
    assert ((way * np.where(kept is one, other, one)).sum() > 0).all()


# --- norms, checks ---------------------------------------------------------------------


def test_norms_in_closed_form():
    delta = np.array([[3.0, -4.0], [0.3, 0.4]])
    linf, l2 = NORMS["linf"], NORMS["l2"]
    assert linf.distance(delta).tolist() == [4, 0.4] and l2.distance(delta).tolist() == [5, 0.5]
    assert linf.project(delta, 1.0).tolist() == [[1, -1], [0.3, 0.4]]
    np.testing.assert_allclose(l2.project(delta, 1.0), [[0.6, -0.8], [0.3, 0.4]])
    assert linf.unit(delta).tolist() == [[1, -1], [1, 1]]
    np.testing.assert_allclose(l2.unit(delta), [[0.6, -0.8], [0.6, 0.8]])
    assert (linf.spread((2, 2)), l2.spread((2, 2))) == (1, 2)


def outcome(white, black, runs) -> Outcome:
    import pandas as pd

    frame = pd.DataFrame(runs, columns=["attack", "budget", "success", "together"])
    distances = {"orthogonal": np.array(white), "square": np.array(black)}
    return Outcome(np.array([1.0, 2.0]), np.zeros(4), distances, frame, np.zeros((4, 1)))


def test_checks_find_weak_attacks():
    good = [("orthogonal", 1, 0.5, 0.5), ("orthogonal", 2, 1, 1), ("orthogonal", np.inf, 1, 1)]
    fine = {"linf": outcome([1, 1, 2, 2], [2, 2, 3, 3], good)}
    assert all(check.passed for check in checks.check_outcomes(fine))
    bad = [("orthogonal", 1, 0.5, 0.5), ("orthogonal", 2, 0.2, 0.2), ("orthogonal", np.inf, 1, 0.9)]
    weak = {"linf": outcome([2, 2, 3, 3], [1, 1, 2, 2], bad)}
    unbounded, monotone, strongest = checks.check_outcomes(weak)
    assert unbounded.said == "90% in linf"
    assert "from 50% to 20% at 2" in monotone.said
    assert "0% against 50% at 1" in strongest.said
    assert not checks.check_scores(np.arange(9.0), -np.arange(9.0)).passed
    assert not checks.check_gradients(np.zeros((3, 2, 2))).passed


# --- seeds, resuming, errors -----------------------------------------------------------


def test_a_challenge_resumes_and_repeats(tmp_path, im, data, normal, monkeypatch):
    detector = LogitMargin(im).fit(normal)
    given = {"attacks": ("selective", "square"), "budgets": {"linf": [0.1, 0.2]}}
    first = attack(detector, im, data, normal, folder=tmp_path / "a", **given)
    kept = sorted(path.name for path in (tmp_path / "a").glob("*.npz"))
    for path in list((tmp_path / "a").glob("linf-square*.npz")):
        path.unlink()  # as if it had been interrupted before these
    monkeypatch.setattr(gradient, "descend", None)  # what is kept is not made again
    again = attack(detector, im, data, normal, folder=tmp_path / "a", **given)
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "a").glob("*.npz")) == kept
    other = attack(detector, im, data, normal, **given)
    for result in (again, other):
        for name, distances in first.norms["linf"].attacks.items():
            np.testing.assert_allclose(result.norms["linf"].attacks[name], distances, rtol=1e-4)
    with pytest.raises(ProfileMismatchError, match="seed"):
        attack(detector, im, data, normal, folder=tmp_path / "a", rng=1)


FIRST_AND_THEN = {
    "budgets": ({"budgets": {"linf": [0.02]}}, {"budgets": {"linf": [0.3]}}),
    "largest budget": ({"budgets": {"linf": [0.1]}}, {"budgets": {"linf": [0.1, 0.4]}}),
    "attacks to start from": (
        {"attacks": ("minimum", "approach")},
        {"attacks": ("selective", "approach")},
    ),
    # The second attack is run without a bound on the images that the first one has not reached.
    "attacks before": (
        {"attacks": ("selective", "orthogonal")},
        {"attacks": ("orthogonal", "selective")},
    ),
    "bounds": ({"bounds": (0, 1)}, {"bounds": (-0.5, 1.5)}),
}


@pytest.mark.parametrize("changed", FIRST_AND_THEN)
def test_a_folder_gives_nothing_that_was_made_for_other_settings(
    changed, tmp_path, im, data, normal
):
    def run(settings, folder):
        bounds = settings.get("bounds", (0, 1))
        same = InstrumentedModel(im.model, bounds=bounds)
        given = {"attacks": ("selective", "square"), "budgets": {"linf": [0.1]}} | settings
        given.pop("bounds", None)
        detector = LogitMargin(same).fit(normal)
        few = {"steps": 8, "queries": 20, "rounds": 2, "folder": folder}
        return attack(detector, same, data, normal, **few, **given).norms["linf"]

    first, then = FIRST_AND_THEN[changed]
    run(first, tmp_path)
    found, expected = run(then, tmp_path), run(then, None)
    for name, distances in expected.attacks.items():
        np.testing.assert_allclose(found.attacks[name], distances, rtol=1e-4, err_msg=name)
        assert (found.attacks[name] > 0).all()  # an unchanged image evades nothing
    np.testing.assert_allclose(found.undefended, expected.undefended, rtol=1e-4)
    np.testing.assert_allclose(found.runs["success"], expected.runs["success"])
    assert np.isfinite(found.pair).any()


def test_bad_input_is_refused(im, data, normal):
    detector = LogitMargin(im).fit(normal)

    def refused(error, match, detector=detector, x=data.x, y=data.y, **given):
        with pytest.raises(error, match=match):
            challenge(detector, im, x, y, progress=False, **(QUICK | given))

    refused(NotFittedError, "not fitted", detector=LogitMargin(im))
    refused(InvalidArgumentError, "must have decision_function", SimpleNamespace(score=lambda x: x))
    refused(InvalidArgumentError, "A detector must have", detector=object())
    refused(InvalidArgumentError, "Class labels", y=data.y + 5)
    refused(InputRangeError, "0 … 1|range", x=data.x * 2)
    refused(InvalidArgumentError, "norm", norms=["l1"])
    refused(InvalidArgumentError, "attack", attacks=["orthogonl"])
    refused(InvalidArgumentError, "substitute", attacks=["transfer"])
    refused(InvalidArgumentError, "ascending", norms=["linf"], budgets={"linf": [0.2, 0.1]})
    refused(InvalidArgumentError, "steps", steps=0)
    refused(
        InvalidArgumentError, "misclassifies all", y=(im.logits(data.x).argmax(axis=1) + 1) % 10
    )
    refused(InvalidArgumentError, "in l2 must be", norms=["l2"], budgets={"linf": [0.2]})
    refused(InvalidArgumentError, "rng", rng=-1)
    refused(InvalidArgumentError, "rng must be an int", rng=np.random.default_rng(0))
    alike = data.y == data.y[0]
    refused(InvalidArgumentError, "another class", x=data.x[alike], y=data.y[alike])
    detector.threshold_ = -1e6
    refused(InvalidArgumentError, "flags 100%", detector=detector)


def test_the_result_says_what_it_is(fallen):
    result = fallen
    assert result.success(norm="linf").columns.tolist() == ["norm", "budget", MODEL, PAIR]
    assert result.success(0.0)[PAIR].tolist() == [0]
    assert result.success(1.0)[MODEL].tolist() == [1]
    with pytest.raises(InvalidArgumentError, match="norm"):
        result.success(norm="l3")
    assert f"{len(result.index)} images" in repr(result) and "table" in result._repr_html_()
    assert len(result.plot().axes) == 1
