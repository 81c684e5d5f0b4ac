"""Detectors against attackers who know them, and what each evidence tells, whole, on the digits."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import PRESETS, SliceDetector
from nnslicer_tf.detection.calibration import threshold_at
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer import evidence
from reproduction.nnslicer import kinds as judging
from reproduction.nnslicer.challenge import challenge_detectors
from reproduction.nnslicer.evidence import area, compare_evidence
from reproduction.nnslicer.kinds import EVIDENCE
from reproduction.nnslicer.settings import (
    ChallengeSettings,
    ChoiceSettings,
    EvidenceSettings,
)


@pytest.fixture(scope="module")
def normal():
    return datasets.load("digits", "train").x


@pytest.fixture(scope="module")
def slicer(normal):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"), bounds=(0, 1))
    return nns.Slicer(im, nns.Profile.from_data(im, normal), theta=0.0, progress=False)


FEW = {
    "model": "digits_cnn",
    "dataset": "digits",
    "train": 500,
    "skip": 0,
    "images": 8,
    "methods": "logit margin",
    "norms": "linf",
    "attacks": "selective,transfer",
    "steps": 10,
}


def test_detectors_are_challenged_and_it_goes_on(tmp_path, monkeypatch):
    found = challenge_detectors(ChallengeSettings(**FEW, work=tmp_path))
    table = found.table("digits_cnn-digits").set_index("attack")
    assert table.loc["model alone", "ratio"] == 1
    assert table.loc["model and detector", "ratio"] >= 1
    assert set(table.index) == {"model alone", "model and detector", "selective", "transfer"}
    curves = found.table("digits_cnn-digits-curves")
    assert (curves["model alone"] >= curves["model and detector"]).all()
    assert len(found.table("digits_cnn-digits-checks")) == 5
    assert found.write(tmp_path / "results")
    # What is on file is not computed again.
    monkeypatch.setattr("nnslicer_tf.detection.LogitMargin.fit", None)
    monkeypatch.setattr("reproduction.adaptive.gradient.descend", None)
    again = challenge_detectors(ChallengeSettings(**FEW, work=tmp_path))
    assert again.table("digits_cnn-digits-images").equals(found.table("digits_cnn-digits-images"))
    with pytest.raises(InvalidArgumentError, match="Unknown method 'margins'"):
        challenge_detectors(ChallengeSettings(**FEW | {"methods": "margins"}, work=tmp_path))


def test_other_attacks_get_nothing_that_depends_on_those_before(tmp_path):
    def images(attacks, work):
        few = FEW | {"attacks": attacks}
        found = challenge_detectors(ChallengeSettings(**few, work=tmp_path / work))
        return found.table("digits_cnn-digits-images")["model and detector"].to_numpy()

    images("minimum,approach", "again")  # the last attack starts from what those before found
    again, expected = (images("selective,approach", work) for work in ("again", "new"))
    np.testing.assert_allclose(again, expected, rtol=1e-4)


def test_evidences_are_compared(tmp_path):
    few = FEW | {"attacks": "selective", "known": "FGSM_8", "attacked": 20, "normals": 60}
    found = compare_evidence(
        EvidenceSettings(**few, errors=350, resamples=20, outside="", work=tmp_path)
    )
    table = found.table("digits_cnn-digits").set_index(["against", "evidence"])
    groups = table.index.get_level_values("against").unique()
    assert set(groups) >= {"attacks that know nothing", "near", "far", "plain errors"}
    assert table["auroc"].between(0, 1).all() and (table["low"] <= table["high"]).all()
    assert table.loc[("plain errors", "softmax"), "auroc"] > 0.9
    without = found.table("digits_cnn-digits-without").set_index(
        ["against", "detector", "left out"]
    )
    # Without all but one evidence, a detector is the other one.
    rest = without.loc[("far", "slices", "local slices, early")]
    other = table.loc[("far", "joint slices of views"), "auroc"]
    assert rest["auroc"] + rest["change"] == pytest.approx(other)
    pairs = found.table("digits_cnn-digits-pairs")
    kinds = len(EVIDENCE)
    assert len(pairs) == len(groups) * kinds * (kinds - 1) / 2


def test_the_area_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    normal, others = rng.integers(0, 9, 80), rng.integers(3, 12, 50)
    labels = np.repeat([0, 1], [80, 50])
    expected = roc_auc_score(labels, np.concatenate([normal, others]))
    assert area(normal.astype(float), others.astype(float)) == pytest.approx(expected)


def test_intervals_are_as_wide_as_samples_vary():
    rng = np.random.default_rng(0)

    def draw(size, mean):
        return {"a": rng.normal(mean, 1, size)}

    comparison = evidence.Comparison(draw(300, 0), {"g": {"s": draw(60, 1)}}, 300, 0)
    row = comparison.by_group({"a": ("a",)}).iloc[0]
    assert row["recall"] == pytest.approx(0.26, abs=0.1)  # Φ(1 - 1.645), of 60
    spread = np.std([area(draw(300, 0)["a"], draw(60, 1)["a"]) for _ in range(300)])
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * spread, rel=0.3)


def test_detectors_are_made_of_known_evidence():
    assert all(
        set(kinds) <= set(EVIDENCE)
        for name, kinds in PRESETS.items()
        if name not in ("paper", "margin")
    )
    assert set(PRESETS["fused"]) <= set(PRESETS["stable"])
    assert set(PRESETS["slices"]) <= set(judging.SLICES)


def test_inputs_from_elsewhere():
    x = np.random.default_rng(0).random((3, 8, 8, 1), np.float32)
    grey = np.full((2, 4, 4, 3), [0.0, 0.3, 0.6], np.float32)
    assert np.allclose(evidence.resized(grey, (8, 8, 1)), 0.3, atol=1e-6)
    assert evidence.resized(x, (16, 16, 3)).shape == (3, 16, 16, 3)
    coloured = evidence.coloured(x, np.random.default_rng(1))
    assert coloured.min() >= 0 and coloured.max() <= 1
    for one, other in zip(x, coloured):  # linear in the grey values, up or down
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) == pytest.approx(1, abs=1e-3)
    near = [evidence.is_near(name, "mnist") for name in ("digits", "fashion_mnist", "cifar10")]
    assert near == [True, True, False] and evidence.is_near("svhn_cropped", "cifar10")


def test_the_best_sets_of_evidence_are_found():
    rng = np.random.default_rng(0)
    kinds = list(EVIDENCE)
    # One kind of slices sees everything, one that is none sees half; the others see nothing.
    seeing, half = judging.SLICES[1], next(k for k in kinds if k not in judging.SLICES)

    def draw(size, of):
        return {kind: rng.normal(size=size) + 8 * of.get(kind, 0) for kind in kinds}

    normal = draw(400, {})
    attacked = {"a": draw(60, {seeing: 1, half: 1}), "b": draw(60, {seeing: 1})}
    choice = evidence.Choice(normal, attacked, 20, 0)
    best = choice.best().set_index(["among", "kinds"])
    assert best.loc[("slices", 1), "evidence"] == best.loc[("everything", 1), "evidence"] == seeing
    assert best.loc[("slices", 1), "recall"] == 1
    assert set(best.index.get_level_values("kinds")) == set(range(1, len(kinds) + 1))
    other = best.loc["no slices"]["recall"].max()
    assert other < 0.8  # half, and a few more by chance
    gains = best.loc[("slices", 1), ["gain", "gain_low", "gain_high"]]
    assert gains["gain"] == pytest.approx(1 - other) and 0 < gains["gain_low"] <= gains["gain_high"]
    assert best.loc["no slices"]["gain"].max() == 0  # that of the best such set itself
    without = choice.without().set_index(["preset", "left out"])
    for (_, left), row in without.iterrows():
        assert row["low"] <= row["change"] + 0.1 and row["change"] <= row["high"] + 0.1
        if left == seeing:
            assert row["change"] < -0.4  # nothing else sees all of it
    assert ("slices", "all slices") not in without.index  # nothing would be left
    single = choice.single().set_index("evidence")
    threshold = threshold_at(normal[half], 0.05)
    assert single.loc[half, "b"] == np.mean(attacked["b"][half] > threshold)
    assert single.loc[half, "mean"] == pytest.approx(single.loc[half, ["a", "b"]].mean())


def test_a_judge_says_what_the_detector_sums(tmp_path, slicer, normal):
    s = ChoiceSettings(model="digits_cnn", dataset="digits", train=500, work=tmp_path)
    said = judging.Judge(s, slicer, normal[:500])("first", normal[500:520])
    assert list(said) == list(EVIDENCE)
    fused = SliceDetector(slicer, "fused").fit(normal[:500])
    # The first votes draw the same columns in both, and see the same inputs.
    scores = judging.together(said, PRESETS["fused"])
    np.testing.assert_allclose(scores, fused.score_samples(normal[500:520]), rtol=1e-4)
    for name in ("first", "again"):  # from the scores on file, from the detector on file
        again = judging.Judge(s, slicer, None)(name, normal[500:520])
        for kind in EVIDENCE:
            np.testing.assert_allclose(again[kind], said[kind])
