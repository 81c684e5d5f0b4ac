"""Detectors on a real model: thresholds, p-values, presets, scikit-learn's contract, errors."""

from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers
from scipy import ndimage
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._archive import read_archive, write_archive
from nnslicer_tf.baselines import EffectivePath, FeatureMap, FlagEverything, LogitMargin
from nnslicer_tf.detection import (
    PRESETS,
    ClassDistance,
    Detector,
    Evidence,
    Features,
    Identity,
    RidgeMargin,
    SliceDetector,
    TreeDisagreement,
    Vote,
    evaluate,
)
from nnslicer_tf.detection.attacks import MNIST_ATTACKS, generate
from nnslicer_tf.detection.calibration import fuse, p_values, threshold_at, two_sided
from nnslicer_tf.detection.evaluation import average
from nnslicer_tf.detection.spectra import SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, ProfileMismatchError

SAVED = Path(__file__).parent / "saved"


@pytest.fixture(scope="module")
def normal():
    return datasets.load("digits", "train").x


@pytest.fixture(scope="module")
def slicer(normal):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, normal, progress=False)
    return nns.Slicer(im, profile, theta=0.0, progress=False)


@pytest.fixture(scope="module")
def fgsm(slicer):
    """Test images that FGSM turned, and what it made of them."""
    data = datasets.load("digits", "test")
    spec = MNIST_ATTACKS["FGSM_4"]
    made = generate(slicer.im.model, spec, data.x, data.y, progress=False)
    return data.x[made.success], made.x[made.success]


@pytest.fixture(scope="module")
def fitted(slicer, normal):
    """A fitted detector for each preset, made when it is first asked for."""
    made = {}

    def get(preset: str) -> SliceDetector:
        if preset not in made:
            made[preset] = SliceDetector(slicer, preset, max_synapses=512).fit(normal)
        return made[preset]

    return get


# --- thresholds and p-values -----------------------------------------------------------


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
    assert two_sided(np.array([0.0, 2.0, 9.0]), normal).tolist() == [0.4, 1, 0.4]


def test_fusion_is_half_of_fishers_statistic():
    from scipy.stats import combine_pvalues

    p, q = np.array([0.5, 0.01]), np.array([0.1, 0.2])
    expected = [combine_pvalues(pair, method="fisher").statistic / 2 for pair in zip(p, q)]
    np.testing.assert_allclose(fuse([[p], [q]]), expected)
    np.testing.assert_allclose(fuse([[p, p, p], [q]]), expected)  # one vote a group


# --- scorers ---------------------------------------------------------------------------


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


# --- evidence --------------------------------------------------------------------------


def test_views_against_indexing():
    x = np.arange(2 * 3 * 4 * 1, dtype=np.float32).reshape(2, 3, 4, 1)
    views = list(VIEWS["shift"](x))
    inner = {tuple(np.argwhere(v[0, :, :, 0] == x[0, 1, 1, 0])[0] - 1) for v in views}
    assert inner == {(0, 1), (1, 0), (-1, -1), (-1, 1)}
    assert all(v.shape == x.shape for v in views)
    down = next(v for v in views if v[0, 2, 1, 0] == x[0, 1, 1, 0])
    np.testing.assert_array_equal(down[:, 0], x[:, 0])
    mirrored = list(VIEWS["mirror"](x))
    for view, expected in zip(mirrored, VIEWS["shift"](x[:, :, ::-1]), strict=True):
        np.testing.assert_array_equal(view, expected)


def test_zoomed_views_against_scipy():
    x = np.random.default_rng(0).random((2, 7, 9, 3)).astype(np.float32)
    for view, factor in zip(VIEWS["zoom"](x), (1.12, 0.9), strict=True):
        rows, columns = ((np.arange(n) - (n - 1) / 2) / factor + (n - 1) / 2 for n in (7, 9))
        places = np.meshgrid(rows, columns, indexing="ij")
        for sample in range(2):
            for channel in range(3):
                expected = ndimage.map_coordinates(
                    x[sample, :, :, channel], places, order=1, mode="nearest"
                )
                np.testing.assert_allclose(view[sample, :, :, channel], expected, atol=1e-5)
        assert view.dtype == np.float32


def test_channel_statistics_against_loops(slicer, normal):
    im, x = slicer.im, normal[:3]
    values = im.capture(x, of=["conv1"])["conv1"]
    found = Evidence(im, x).channel_statistics("conv1")
    channels = values.shape[-1]
    assert found.shape == (3, 4 * channels)
    for sample in range(3):
        for channel in range(channels):
            seen = values[sample, :, :, channel].astype(np.float64)
            expected = [seen.mean(), np.log(seen.std() + 1e-3), seen.max(), seen.min()]
            np.testing.assert_allclose(found[sample, channel::channels], expected, atol=1e-5)


def test_margins_of_views_against_the_models_logits(slicer, normal):
    im, x = slicer.im, normal[:20]
    evidence, rows = Evidence(im, x), np.arange(20)
    predicted = im.logits(x).argmax(axis=1)
    margins = []
    for seen in VIEWS["shift"](x):
        others = im.logits(seen)
        own = others[rows, predicted].copy()
        others[rows, predicted] = -np.inf
        margins.append(others.max(axis=1) - own)
    np.testing.assert_allclose(evidence.view_margins("shift"), np.mean(margins, axis=0), rtol=1e-5)
    some = evidence.rows(np.array([3, 11]))
    assert np.array_equal(some.logits, im.logits(x[[3, 11]]))
    assert np.array_equal(some.view_margins("shift"), evidence.view_margins("shift")[[3, 11]])


def test_slices_of_evidence_are_the_slicers(slicer, normal):
    evidence = Evidence(slicer.im, normal[:4], slicer)
    columns = np.array([0, 7, 30])
    rows = slicer.slice_each(normal[:4], kernels=["conv2"], operations=()).matrix
    found = evidence.slices(["conv2"], columns)
    assert np.array_equal(found, rows[:, columns].toarray())
    assert evidence.slices(["conv2"], columns) is found
    local = nns.Criterion({"conv2": "all"}, until="conv2")
    rows = slicer.slice_each(normal[:4], local, kernels=["conv2"], operations=()).matrix
    assert np.array_equal(
        evidence.slices(["conv2"], columns, local=True), rows[:, columns].toarray()
    )
    with pytest.raises(InvalidArgumentError, match="no slicer"):
        Evidence(slicer.im, normal[:4]).slices(["conv2"], columns)
    with pytest.raises(InvalidArgumentError, match=r"no view 'shfit'. Did you mean 'shift'"):
        evidence.view_margins("shfit")


def test_what_scorers_share_is_computed_once(slicer, normal, monkeypatch):
    asked = {"logits": [], "iterate": []}

    def counted(owner, name):
        plain = getattr(owner, name)

        def count(self, x, *args, **kwargs):
            asked[name].append(len(x))
            return plain(self, x, *args, **kwargs)

        monkeypatch.setattr(owner, name, count)

    counted(nns.InstrumentedModel, "logits")
    counted(nns.Slicer, "iterate")
    views = sum(len(list(view(normal[:1]))) for view in VIEWS.values())
    detector = SliceDetector(slicer, "stable", max_synapses=64).fit(normal[:400])
    # Of 400 inputs 225 are learned from, 75 are the p-values' reference, 100 are held out.
    # Views are not learned from; slices: for the prediction, and the two layers' own.
    assert asked["logits"] == [400] + views * [75] + views * [100]
    assert asked["iterate"] == 3 * [225] + 3 * [75] + 3 * [100]
    for calls in asked.values():
        calls.clear()
    detector.predict(normal[:50])
    assert asked == {"logits": [50] * (1 + views), "iterate": [50] * 3}


def test_powers_of_rings_against_a_direct_fourier_sum():
    x = np.random.default_rng(0).random((2, 6, 9, 3))
    height, width = 6, 9
    window = np.sin(np.pi * np.arange(1, 7) / 7)[:, None] ** 2
    window = window * np.sin(np.pi * np.arange(1, 10) / 10) ** 2
    rings = [[] for _ in range(13)]
    for u in range(height):
        for v in range(width // 2 + 1):
            plane = (x.mean(axis=3) - x.mean(axis=(1, 2, 3))[:, None, None]) * window
            wave = np.exp(
                -2j * np.pi * (u * np.arange(6)[:, None] / height + v * np.arange(9) / width)
            )
            frequency = np.hypot(min(u, height - u) / height, v / width)
            power = np.abs((plane * wave).sum(axis=(1, 2))) ** 2
            rings[min(int(frequency * 24), 12)].append(power)
    expected = [np.log(1e-6 + np.mean(ring, axis=0)) for ring in rings if ring]
    found = SPECTRA["rings"](x)
    assert found.shape == (2, 3 * len(expected))
    np.testing.assert_allclose(found[:, ::3], np.transpose(expected), rtol=1e-6)


def test_amplitudes_of_blocks_against_a_direct_cosine_sum():
    x = np.random.default_rng(0).random((2, 16, 16, 1))
    k, n = np.arange(16)[:, None], np.arange(16)
    cosines = np.cos(np.pi * (2 * n + 1) * k / 32) * np.sqrt(2 / 16)
    cosines[0] /= np.sqrt(2)
    logs = np.log(1e-4 + np.abs(cosines @ x[:, :, :, 0] @ cosines.T))
    expected = [logs[:, i : i + 2, j : j + 2].mean((1, 2)) for i in range(0, 16, 2) for j in n[::2]]
    np.testing.assert_allclose(SPECTRA["blocks"](x), np.transpose(expected), rtol=1e-6)
    assert SPECTRA["blocks"](x[:, :5, :7]).shape == (2, 5 * 7)  # fewer frequencies than blocks


def test_noise_and_blur_move_the_power_of_high_frequencies():
    x = datasets.load("digits", "train[:50]").x
    noise = np.random.default_rng(0).choice([-0.05, 0.05], x.shape)
    plain, noisy = (SPECTRA["rings"](image)[:, -1] for image in (x, x + noise))
    blurred = SPECTRA["rings"](ndimage.gaussian_filter(x, (0, 1, 1, 0)))[:, -1]
    assert np.median(noisy) > np.median(plain) > np.median(blurred)


def test_the_votes_of_views_texture_and_spectrum_are_added_to_the_fused_ones(fitted, slicer, fgsm):
    x, _ = fgsm
    fused, stable = fitted("fused"), fitted("stable")
    added = [vote for vote in stable.votes_ if vote.name not in fused.reference_]
    assert len(added) == 2 * len(VIEWS) + 1 + len(SPECTRA)  # the model has two convolutions
    evidence = Evidence(slicer.im, x)
    votes = [-np.log(p_values(v.score(evidence), stable.reference_[v.name])) for v in added]
    np.testing.assert_allclose(stable.score_samples(x), fused.score_samples(x) + sum(votes))


@dataclass(eq=False, repr=False)
class Bright(Detector):
    """A detector of one's own: how far the mean value is from that of normal inputs."""

    im: nns.InstrumentedModel
    power: float = 1.0

    def learn(self, evidence, rng):
        self.mean = evidence.x.mean(dtype=np.float64)

    def anomaly_scores(self, evidence):
        return np.abs(evidence.x.mean(axis=(1, 2, 3), dtype=np.float64) - self.mean) ** self.power

    def state(self):
        return {"mean": np.array(self.mean)}

    def restore(self, state):
        self.mean = float(state["mean"])


def test_a_detector_of_ones_own(slicer, normal, tmp_path):
    detector = Bright(slicer.im, power=2.0, false_positive_rate=0.1, held_out=0.5, rng=3)
    assert clone(detector).get_params() == detector.get_params()
    detector.fit(normal)
    assert 0.05 < np.mean(detector.normal_scores_ > detector.threshold_) <= 0.1
    assert len(detector.normal_scores_) == len(normal) - round(len(normal) * 0.5)
    assert detector.predict(np.ones_like(normal[:3])).tolist() == [1, 1, 1]
    detector.save(tmp_path / "bright.npz")
    loaded = Bright.load(tmp_path / "bright.npz", slicer.im)
    assert np.array_equal(loaded.decision_function(normal), detector.decision_function(normal))


def test_a_preset_of_ones_own(slicer, normal, fgsm, monkeypatch):
    def preset(im, kernels, max_synapses, alpha):
        margin = Vote("margin", Features(lambda evidence: evidence.margins), Identity())
        spectrum = Vote("rings", Features(lambda evidence: evidence.spectrum("rings")),
                        ClassDistance(), two_sided=True)  # fmt: skip
        return [margin, spectrum]

    monkeypatch.setitem(PRESETS, "own", preset)
    detector = SliceDetector(slicer, "own").fit(normal)
    margin = LogitMargin(slicer.im).fit(normal)
    evidence, reference = Evidence(slicer.im, fgsm[1]), detector.reference_
    first = p_values(margin.score_samples(fgsm[1]), reference["margin"])
    second = two_sided(detector.votes_[1].score(evidence), reference["rings"])
    np.testing.assert_allclose(
        detector.score_samples(fgsm[1]), -np.log(first) - np.log(second), rtol=1e-12
    )


def test_stability_needs_images():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    slicer = nns.Slicer(
        model_im := nns.InstrumentedModel(model), nns.Profile.from_data(model_im, x)
    )
    for preset in ("stable", "slices"):
        with pytest.raises(InvalidArgumentError, match=f"'{preset}' mirrors and shifts images"):
            SliceDetector(slicer, preset).fit(x)


# --- the detector on a real model ------------------------------------------------------


def test_presets_on_fgsm(fitted, fgsm):
    _, adversarial = fgsm
    assert len(adversarial) > 200
    tables = {p: evaluate(fitted(p), {"FGSM_4": fgsm}).iloc[0] for p in PRESETS}
    for preset in ("margin", "fused"):
        assert tables[preset]["auroc"] > 0.93
        assert tables[preset]["f1"] > 0.85
        assert tables[preset]["false_positives"] < 0.1
    # The tree copies the prediction from the last layer: it flags little, though more
    # of the adversarial inputs than of their originals.
    assert tables["paper"]["auroc"] > 0.5


def test_the_papers_rule_is_disagreement_of_tree_and_model(fitted, slicer, fgsm):
    _, adversarial = fgsm
    detector = fitted("paper")
    slices = slicer.slice_each(adversarial, "predicted", operations=())
    state = detector.state()
    tree = TreeDisagreement().restore(state)
    said = tree.classify(slices.matrix[:, state["columns"]].toarray())
    assert np.array_equal(detector.predict(adversarial), said != slices.predicted)


def test_the_threshold_holds_back_what_was_asked(fitted):
    for preset in ("margin", "fused", "stable"):
        detector = fitted(preset)
        above = np.mean(detector.normal_scores_ > detector.threshold_)
        assert 0.03 < above <= 0.05


@pytest.mark.parametrize("preset", PRESETS)
def test_a_saved_detector_decides_alike(fitted, slicer, fgsm, tmp_path, preset):
    fitted(preset).save(tmp_path / "detector.npz")
    loaded = SliceDetector.load(tmp_path / "detector.npz", slicer)
    assert loaded.get_params() == fitted(preset).get_params()
    x = np.concatenate(fgsm)[::5]
    assert np.array_equal(loaded.decision_function(x), fitted(preset).decision_function(x))


def test_a_saved_detector_goes_with_its_model_and_profile(fitted, slicer, normal, tmp_path):
    path = tmp_path / "detector.npz"
    fitted("margin").save(path)
    other = nns.Profile.from_data(slicer.im, normal[:50], progress=False)
    with pytest.raises(ProfileMismatchError, match="another profile"):
        SliceDetector.load(path, nns.Slicer(slicer.im, other, progress=False))
    reading = nns.Slicer(slicer.im, slicer.profile, progress=False, rectify="pass")
    with pytest.raises(ProfileMismatchError, match="another"):
        SliceDetector.load(path, reading)
    with pytest.raises(InvalidArgumentError, match=r"SliceDetector\.load"):
        FeatureMap.load(path, slicer.im)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CorruptFileError):
        SliceDetector.load(path, slicer)


STABLE_STATE = {
    *("reference|distance", "reference|local conv1", "reference|local conv2", "reference|logits"),
    *(f"reference|view {view}" for view in ("mirror", "shift", "zoom")),
    *(f"reference|view {view} change" for view in ("mirror", "shift", "zoom")),
    *("reference|texture conv2", "reference|spectrum rings", "reference|spectrum blocks"),
    *("distance|columns", "distance|means", "distance|whitening"),
    *(f"local conv{i}|{name}" for i in (1, 2) for name in ("columns", "weights", "bias")),
    *("texture conv2|means", "texture conv2|whitening"),
    *(f"spectrum {s}|{name}" for s in ("rings", "blocks") for name in ("means", "whitening")),
}


def test_slices_of_views_are_local_slices_that_ignore_the_prediction(fitted, slicer, normal):
    detector, x = fitted("slices"), normal[:4]
    vote = next(v for v in detector.votes_ if v.name == "local conv2, mirror")
    found = vote.features(Evidence(slicer.im, x, slicer))
    columns = vote.features.state()["columns"]
    operation = next(o.name for o in slicer.im.operations if o.synapses and o.layer == "conv2")
    local = nns.Criterion({operation: "all"}, until=operation)
    expected = np.zeros(found.shape)
    views = list(VIEWS["mirror"](x))
    for images in views:
        slices = slicer.slice_each(images, local, kernels=["conv2"], operations=())
        expected += slices.matrix.toarray()[:, columns] / len(views)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # Judged by the inputs' own predictions, whatever the views' would be.
    one = next(Evidence(slicer.im, x, slicer).views("mirror"))
    np.testing.assert_array_equal(one.predicted, slicer.im.logits(x).argmax(axis=1))


def test_the_names_of_saved_arrays_stay(fitted):
    assert set(fitted("stable").state()) == STABLE_STATE
    tree = {"columns", "feature", "cut", "left", "right", "label"}
    assert set(fitted("paper").state()) == tree
    assert set(fitted("margin").state()) == {"columns", "weights", "bias"}


@pytest.fixture(scope="module")
def same_identity(tmp_path_factory):
    """Copy a committed file, as of a model and profile whose last bits are this machine's."""

    def copy(name: str, identity: str):
        header, arrays = read_archive(SAVED / name, "nnslicer_tf detector 1", "detector")
        path = tmp_path_factory.mktemp("saved") / name
        kind = header.pop("format")
        write_archive(path, kind, header | {"identity": identity}, arrays)
        return path

    return copy


@pytest.mark.parametrize("preset", ["paper", "margin", "fused"])
def test_files_of_the_first_version_load(slicer, normal, same_identity, preset):
    # Written when the detector had a θ of its own, 0 by default, whatever the slicer's.
    profile = nns.Profile.from_data(slicer.im, normal[:700], progress=False)
    at = {t: nns.Slicer(slicer.im, profile, theta=t, progress=False) for t in (0.0, 0.3)}
    options = {"max_synapses": 40, "rng": 5, "alpha": 10.0}
    fresh = SliceDetector(at[0.0], preset, **options).fit(normal[:700])
    path = same_identity(f"{preset}.npz", fresh.identity())
    loaded = SliceDetector.load(path, at[0.3])
    assert loaded.slicer_.theta == 0
    assert loaded.get_params() | {"slicer": at[0.0]} == fresh.get_params()
    x = normal[700:900]
    same = np.isclose(loaded.decision_function(x), fresh.decision_function(x), atol=1e-4)
    assert same.mean() > 0.95  # another machine rounds otherwise


def test_a_file_of_the_feature_maps_first_version_loads(slicer, normal, same_identity):
    fresh = FeatureMap(slicer.im, "margin", max_features=100).fit(normal[:700])
    loaded = FeatureMap.load(same_identity("feature_map.npz", fresh.identity()), slicer.im)
    assert loaded.get_params() == fresh.get_params()
    x = normal[700:900]
    np.testing.assert_allclose(loaded.score_samples(x), fresh.score_samples(x), atol=1e-3)


@pytest.mark.parametrize(
    ("make", "at_least"),
    [
        (lambda im: FeatureMap(im, "paper"), 0.6),
        (lambda im: FeatureMap(im, "margin"), 0.8),
        (lambda im: EffectivePath(im, "paper", progress=False), 0.5),
        (lambda im: EffectivePath(im, "margin", progress=False), 0.7),
        (LogitMargin, 0.7),
    ],
)
def test_baselines_on_fgsm(slicer, normal, fgsm, tmp_path, make, at_least):
    detector = make(slicer.im).fit(normal)
    row = evaluate(detector, {"FGSM_4": fgsm}).iloc[0]
    assert row["auroc"] > at_least
    detector.save(tmp_path / "baseline.npz")
    loaded = type(detector).load(tmp_path / "baseline.npz", slicer.im)
    assert np.array_equal(loaded.predict(fgsm[1]), detector.predict(fgsm[1]))


def test_flagging_everything_has_an_f1_of_two_thirds(slicer, normal, fgsm):
    row = evaluate(FlagEverything(slicer.im).fit(normal), {"FGSM_4": fgsm}).iloc[0]
    assert (row["precision"], row["recall"], row["auroc"]) == (0.5, 1.0, 0.5)
    assert row["f1"] == pytest.approx(2 / 3)


def test_figures_of_the_evaluation_by_counting(fitted, fgsm):
    from sklearn.metrics import precision_recall_fscore_support

    detector = fitted("margin")
    table = evaluate(detector, {"a": fgsm, "b": (fgsm[0][:40], fgsm[1][:40])})
    x, y = np.concatenate(fgsm), np.repeat([0, 1], len(fgsm[0]))
    expected = precision_recall_fscore_support(y, detector.predict(x), average="binary")[:3]
    np.testing.assert_allclose(table.loc[0, ["precision", "recall", "f1"]].astype(float), expected)
    assert detector.score(x, y) == pytest.approx(table.loc[0, "auroc"])
    assert average(table)["f1"] == pytest.approx(table["f1"].mean())


def test_inputs_that_attacks_share_are_scored_once(fitted, fgsm, monkeypatch):
    detector, scored = fitted("margin"), []
    plain = type(detector).score_samples
    monkeypatch.setattr(
        type(detector), "score_samples", lambda self, x: scored.append(len(x)) or plain(self, x)
    )
    originals, adversarial = fgsm
    table = evaluate(detector, {"a": fgsm, "b": (originals[20:40], adversarial[:20])})
    assert scored == [len(originals) + len(adversarial)]
    alone = evaluate(detector, {"b": (originals[20:40], adversarial[:20])})
    pd.testing.assert_series_equal(table.iloc[1], alone.iloc[0], check_names=False)


# --- θ ---------------------------------------------------------------------------------


def test_theta_is_the_slicers(slicer, normal, tmp_path):
    third = nns.Slicer(slicer.im, slicer.profile, theta=0.3, workers=0, progress=False)
    detector = SliceDetector(third, kernels=("conv2",), max_synapses=64).fit(normal[:300])
    assert detector.slicer_ is third
    x, columns = normal[300:320], detector.state()["columns"]
    rows = third.slice_each(x, kernels=["conv2"], operations=()).matrix[:, columns]
    margin = RidgeMargin(alpha=1e3).restore(detector.state())
    expected = margin.score(rows.toarray(), slicer.im.logits(x).argmax(axis=1))
    np.testing.assert_allclose(detector.score_samples(x), expected, atol=1e-9)

    old = SliceDetector(slicer, theta=0.3, kernels=("conv2",), max_synapses=64)
    with pytest.warns(DeprecationWarning, match="give a Slicer with that theta"):
        old.fit(normal[:300])
    assert np.array_equal(old.score_samples(x), detector.score_samples(x))
    old.save(tmp_path / "detector.npz")
    loaded = SliceDetector.load(tmp_path / "detector.npz", slicer)
    assert (loaded.theta, loaded.slicer_.theta) == (None, 0.3)
    assert np.array_equal(loaded.score_samples(x), old.score_samples(x))
    with (
        pytest.warns(DeprecationWarning, match="theta of SliceDetector"),
        pytest.raises(InvalidArgumentError, match="theta must be"),
    ):
        SliceDetector(slicer, theta=-1.0).fit(normal)


# --- scikit-learn ----------------------------------------------------------------------


def test_a_clone_shares_the_slicer_and_is_not_fitted(fitted, slicer, normal):
    copy = clone(fitted("margin"))
    assert copy.slicer is slicer
    with pytest.raises(NotFittedError, match="call fit with normal inputs"):
        copy.predict(normal[:3])


def test_a_search_over_parameters_in_a_pipeline_learns_from_normal_inputs(slicer, normal, fgsm):
    x = np.concatenate([normal[:700], fgsm[1][:100]])
    y = np.repeat([0, 1], [700, 100])
    shuffled = np.random.default_rng(0).permutation(len(x))
    pipeline = make_pipeline(FunctionTransformer(), SliceDetector(slicer, max_synapses=512))
    grid = {"slicedetector__alpha": [1e3, 1e9]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(x[shuffled], y[shuffled])
    assert search.best_score_ > 0.9
    alone = clone(search.best_estimator_).fit(x[shuffled][y[shuffled] == 0])
    assert np.array_equal(alone.predict(x), search.predict(x))


# --- errors ----------------------------------------------------------------------------


def test_bad_parameters(slicer, normal):
    for parameters, message in (
        ({"preset": "margn"}, "no preset 'margn'. Did you mean 'margin'"),
        ({"kernels": ("conv3",)}, "no kernel 'conv3'. Did you mean"),
        ({"false_positive_rate": 1.5}, "false_positive_rate must be"),
        ({"held_out": 0}, "held_out is the share"),
        ({"max_synapses": 0}, "max_synapses must be"),
        ({"alpha": -1.0}, "alpha must be above 0"),
        ({"rng": "seed"}, "rng must be"),
        ({"false_positive_rate": 0.001}, "at least 999 held-out"),
    ):
        detector = SliceDetector(slicer, **parameters)
        with pytest.raises(InvalidArgumentError, match=message):
            detector.fit(normal)


def test_too_few_of_a_class(slicer, normal):
    no_seven = normal[slicer.im.logits(normal).argmax(axis=1) != 7]
    with pytest.raises(InvalidArgumentError, match="predicts class 7 for 0 of the"):
        SliceDetector(slicer).fit(no_seven)


def test_bad_labels(fitted, slicer, normal):
    with pytest.raises(InvalidArgumentError, match=r"0 \(normal\) or 1"):
        SliceDetector(slicer).fit(normal, np.full(len(normal), 7))
    with pytest.raises(InvalidArgumentError, match="score needs normal"):
        fitted("margin").score(normal[:5], np.zeros(5))


def _ending(model: keras.Model, layer: layers.Layer) -> nns.Slicer:
    im = nns.InstrumentedModel(keras.Model(model.inputs, layer(model.outputs[0])))
    x = datasets.load("digits", "train[:200]").x
    return nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), progress=False)


def test_a_softmax_at_the_end_changes_nothing(fitted, slicer, normal):
    with_softmax = _ending(slicer.im.model, layers.Softmax())
    im = with_softmax.im
    profile = nns.Profile.from_data(im, normal, progress=False)
    other = nns.Slicer(im, profile, theta=0.0, progress=False)
    detector = SliceDetector(other, max_synapses=512).fit(normal)
    np.testing.assert_allclose(
        detector.decision_function(normal[:50]), fitted("margin").decision_function(normal[:50])
    )


def test_probabilities_whose_softmax_cannot_be_found_are_refused(slicer, normal):
    # Squared and normalised logits: positive, with sum 1, by layers of other kinds.
    inputs = keras.Input((8, 8, 1))
    exponent = layers.Activation("exponential")(slicer.im.model(inputs))
    total = layers.Dense(1, use_bias=False, kernel_initializer="ones", name="total")(exponent)
    inverse = keras.ops.exp(-keras.ops.log(total))
    odd = keras.Model(inputs, layers.Multiply()([exponent, inverse]))
    detector = FeatureMap(nns.InstrumentedModel(odd))
    with pytest.raises(InvalidArgumentError, match="outputs probabilities"):
        detector.fit(normal)
