"""Deviations with their seeds: distances, budgets, minimisation, pictures, regression suites."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from nnslicer_tf._files import write_archive
from nnslicer_tf.dflare import (
    DeviationSet,
    ImageDomain,
    ModelPair,
    export_suite,
    minimise,
    verify,
)
from nnslicer_tf.dflare.deviations import Deviation, SearchOutcome, pack
from nnslicer_tf.errors import InvalidArgumentError, PlausibilityWarning, ProfileMismatchError
from support.deviating import find, threshold_model


@pytest.fixture
def near(seeds):
    """Seeds with mean grey values of about 120: the thresholds are within reach."""
    return (seeds % 60 + 91).astype(np.uint8)


def distances(a, b):
    """Return the table's row of a deviation `b` of a seed `a`."""
    outcome = SearchOutcome("found", 3, 0.1, Deviation(b, 3, 0.1, (0, 1), None))
    return DeviationSet([outcome], a[None]).to_frame().loc[0]


def test_distances():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (2, 20, 24, 3), dtype=np.uint8)
    difference = a.astype(int) - b
    assert distances(a, b)["L∞"] == np.abs(difference).max()
    assert distances(a, b)["L2"] == pytest.approx(np.linalg.norm(difference))
    assert distances(a, a)["SSIM"] == pytest.approx(1)
    assert np.isnan(distances(a[:5], b[:5])["SSIM"])


def test_ssim_of_flat_images_and_of_noise():
    """By hand: flat images have no variance, and noise that is turned over correlates by −1."""
    a, b = (np.full((16, 16, 1), value, np.uint8) for value in (100, 50))
    small = (0.01 * 255) ** 2
    expected = (2 * 100 * 50 + small) / (100**2 + 50**2 + small)
    assert distances(a, b)["SSIM"] == pytest.approx(expected, abs=5e-4)  # it is float32
    noise = np.where(np.indices((16, 16, 1)).sum(0) % 2, 40, -40)
    turned = distances((128 + noise).astype(np.uint8), (128 - noise).astype(np.uint8))
    assert turned["SSIM"] < -0.9


def test_changes_stay_within_the_budget(pair, near):
    found = find(*pair, near, max_distance=30, max_queries=5_000, progress=False)
    assert found.found.all()
    for seed, outcome in zip(near, found, strict=True):
        assert np.abs(seed.astype(int) - outcome.deviation.image).max() <= 30
        domain = ImageDomain().near(seed, 30)
        again = domain.replay(seed, outcome.deviation.trace)
        assert np.array_equal(again, outcome.deviation.image)
    table = found.to_frame()
    assert table["L∞"].max() <= 30
    for distance in (0, 0.5):
        with pytest.raises(InvalidArgumentError, match="max_distance must be at least 1"):
            find(*pair, near, max_distance=distance, progress=False)
    with pytest.raises(InvalidArgumentError, match=r"in \[1, inf\). Received: inf"):
        find(*pair, near, max_distance=np.inf, progress=False)


def test_fractions_do_not_exceed_the_limit(pair, near):
    found = find(*pair, near, max_distance=2.5, max_queries=200, progress=False)
    domain = ImageDomain().near(near[0], 2.5)
    rng = np.random.default_rng(0)
    for operator in domain.operators:
        mutant = domain.mutate(near[0], operator, rng)[0]
        assert np.abs(near[0].astype(int) - mutant).max() <= 2
    for seed, image in zip(near[found.found], found.images, strict=True):
        assert np.abs(seed.astype(int) - image).max() <= 2


def test_bounded_deviations_are_verified_within_their_limit(pair, near, tmp_path):
    def holds(found):
        return verify(ModelPair(*pair), found)

    found = find(*pair, near, max_distance=12, max_queries=5_000, progress=False)
    assert found.found.any()
    assert (
        holds(found).all() and minimise(ModelPair(*pair), found, progress=False).max_distance == 12
    )
    found.save(tmp_path / "found.npz")
    assert holds(DeviationSet.load(tmp_path / "found.npz")).all()
    # A file of an older version does not say the limit, and another limit is another search.
    arrays = {**pack(found.outcomes), "seeds": near}
    write_archive(tmp_path / "old.npz", "nnslicer_tf deviations 1", {}, arrays)
    old = DeviationSet.load(tmp_path / "old.npz")
    assert old.max_distance is None and not holds(old).all()
    old.max_distance = 12
    assert holds(old).all()


def test_a_checkpoint_knows_the_budget(pair, near, tmp_path):
    options = {"max_queries": 50, "progress": False, "checkpoint": tmp_path / "kept"}
    find(*pair, near, max_distance=30, **options)
    with pytest.raises(ProfileMismatchError):
        find(*pair, near, max_distance=40, **options)


def test_the_table_has_confidences_and_distances(pair, near):
    truth = np.zeros(12, int)
    found = find(*pair, near, labels=truth, max_queries=5_000, progress=False)
    table = found.to_frame()
    assert table["true label"].tolist() == [0] * 12
    images = found.images.astype(np.float32)
    for model, column in zip(pair, ("confidence", "compressed confidence"), strict=True):
        np.testing.assert_allclose(table[column], model(images).max(axis=1), rtol=1e-6)
    expected = [np.linalg.norm(a.astype(int) - b) for a, b in zip(near, found.images, strict=True)]
    np.testing.assert_allclose(table["L2"], expected)


def test_saved_deviations_keep_their_seeds(pair, near, tmp_path):
    found = find(*pair, near, max_queries=5_000, progress=False)
    found.save(tmp_path / "found.npz")
    again = DeviationSet.load(tmp_path / "found.npz")
    assert np.array_equal(again.seeds, near) and again.truth is None
    assert again.to_frame().equals(found.to_frame())


def test_minimised_deviations_change_less_and_still_deviate(pair, near):
    found = find(*pair, near, max_queries=5_000, progress=False)
    least = minimise(ModelPair(*pair), found, progress=False)
    before, after = found.to_frame(), least.to_frame()
    assert (after["L2"] <= before["L2"] + 1e-9).all() and after["L2"].sum() < before["L2"].sum()
    means = least.images.reshape(len(near), -1).mean(axis=1)
    assert ((means > 128) & (means < 131)).all()
    assert all(outcome.deviation.trace is None for outcome in least)
    with pytest.raises(InvalidArgumentError, match="no seeds"):
        minimise(ModelPair(*pair), DeviationSet(found.outcomes))


def test_a_picture_shows_seeds_and_mutants(pair, near):
    found = find(*pair, near, max_queries=5_000, progress=False)
    figure = found.figure(most=3)
    assert len(figure.axes) == 9
    nearest = found.to_frame()["L∞"].idxmin()
    shown = figure.axes[0].images[0].get_array()
    assert np.array_equal(shown, near[nearest][..., 0])
    with pytest.raises(InvalidArgumentError, match="nothing to draw"):
        DeviationSet(found.outcomes).figure()


def test_signals_and_rows_are_drawn():
    seeds = np.tile(np.linspace(0, 1, 40), (3, 1)).astype(np.float32)
    seeds[1] *= 2
    mutant = seeds[0].copy()
    mutant[[3, 7]] = 0.9, 0.5
    one = SearchOutcome("found", 3, 0.1, Deviation(mutant, 3, 0.1, (0, 1), None))
    outcomes = [one, SearchOutcome("timeout", 1, 0.1), SearchOutcome("timeout", 1, 0.1)]
    names = [f"f{i}" for i in range(40)]
    (axes,) = DeviationSet(outcomes, seeds, features=names).figure().axes
    assert [t.get_text() for t in axes.get_yticklabels()] == [
        f"{names[i]}: {seeds[0, i]:.4g} → {mutant[i]:.4g}" for i in (7, 3)
    ]
    widths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(
        widths, [(mutant[i] - seeds[0, i]) / np.ptp(seeds[:, i]) for i in (7, 3)], rtol=1e-5
    )
    signal = dataclasses.replace(one.deviation, image=mutant[:, None])
    found = DeviationSet([dataclasses.replace(one, deviation=signal)], seeds[:1, :, None])
    (axes,) = found.figure().axes
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), mutant)


def test_a_suite_fails_for_the_model_that_deviated(pair, near, tmp_path):
    found = find(*pair, near, max_queries=5_000, progress=False)
    test = export_suite(found, tmp_path / "suite", lambda x: x.astype(np.float32))
    assert test.name == "test_deviations.py"
    with np.load(test.with_name("deviations.npz")) as file:
        assert np.array_equal(file["labels"], pair[0](file["inputs"]).argmax(axis=1))
        assert not (file["labels"] == pair[1](file["inputs"]).argmax(axis=1)).any()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "Set COMPRESSED_MODEL" in done.stdout
    with pytest.raises(InvalidArgumentError, match="none was found"):
        export_suite(DeviationSet([]), tmp_path)


def test_seeds_that_the_original_gets_wrong_are_said(pair, seeds):
    wrong = np.repeat([1, 0], 6)
    with pytest.warns(PlausibilityWarning, match=r"right on 0% .* preprocess"):
        find(*pair, seeds, labels=wrong, max_queries=2, progress=False)
    found = find(*pair, seeds, labels=np.eye(2)[1 - wrong], max_queries=2, progress=False)
    assert found.truth.tolist() == (1 - wrong).tolist()


def test_models_that_disagree_on_most_seeds_are_said(seeds):
    other = threshold_model(128.0)
    swapped = lambda x: other(x)[:, ::-1]  # noqa: E731
    with pytest.warns(PlausibilityWarning, match="agree on 0%"):
        assert set(find(other, swapped, seeds, progress=False).status) == {"already_deviates"}


def test_the_remedy_for_a_table_is_not_that_for_images():
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    answers = lambda x: np.stack([x[:, 0] > 0, x[:, 0] <= 0], axis=1).astype(np.float32)  # noqa: E731
    with pytest.warns(PlausibilityWarning, match=r"agree on 0%.* \(x - mean\) / std"):
        find(answers, lambda x: answers(-x), rows, progress=False)
