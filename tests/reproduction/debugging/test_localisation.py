"""Planted faults of the digits' network, and how suspicious its channels are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.debugging import Runs, suspicious
from reproduction.debugging.faults import OTHER_KINDS, Fault, FaultyModel, rank
from reproduction.debugging.localisation import costly, localisation
from reproduction.debugging.settings import KINDS, LocalisationSettings


def test_ranks_count_the_channels_with_larger_scores(tmp_path):
    """Of the fault, planted again, with scores that the library gives to its channels."""
    settings = LocalisationSettings(
        model="digits_cnn",
        faults=1,
        images=300,
        samples=20,
        methods="gradient,ochiai",
        work=tmp_path,
    )
    rows = localisation(settings).table("faults_digits_cnn_ranks")
    faulty = FaultyModel(zoo.load("digits_cnn"))
    data = datasets.load("digits", "test[:300]")
    fault, cost = next(costly(faulty, data, settings))
    runs = Runs.split(faulty.im, data.x, data.y).sampled(20, rng=0)
    sides = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    assert rows["method"].tolist() == ["gradient", "ochiai"]
    for _, row in rows.iterrows():
        assert (row["operation"], row["channel"]) == (fault.operation, fault.channel)
        assert row["cost"] == pytest.approx(cost)
        scores = suspicious(faulty.im, *sides, row["method"]).channels
        every = np.concatenate([scores[name] for name in ("conv1", "conv2")])
        own = scores[fault.operation][fault.channel]
        assert (every > own).sum() + 1 <= row["rank"] <= (every >= own).sum()


def test_rows_of_other_faults_are_not_taken_for_these(tmp_path):
    settings = LocalisationSettings(
        model="digits_cnn",
        faults=2,
        images=300,
        samples=20,
        methods="gradient",
        work=tmp_path,
    )
    first = localisation(settings).table("faults_digits_cnn_ranks")
    assert first["cost"].min() < 15
    costly = replace(settings, cost=15.0)
    found = localisation(costly).table("faults_digits_cnn_ranks")
    assert (found["cost"] >= 15).all()
    fresh = localisation(replace(costly, work=tmp_path / "fresh"))
    pd.testing.assert_frame_equal(found, fresh.table("faults_digits_cnn_ranks"))


@pytest.mark.parametrize("kind", [*KINDS, *OTHER_KINDS])
def test_a_fault_changes_its_channel_alone_and_heals(kind):
    faulty = FaultyModel(zoo.load("digits_cnn"))
    layer = faulty.im.model.get_layer("conv2")
    whole = [array.copy() for array in faulty.im.model.get_weights()]
    kernel, bias = layer.get_weights()
    faulty.plant(Fault("conv2", 3, kind, 2.0, 0))
    changed, changed_bias = layer.get_weights()
    others = ~np.isin(np.arange(kernel.shape[-1]), (3, 4) if kind == "swap" else (3,))
    assert np.array_equal(changed[..., others], kernel[..., others])
    assert np.array_equal(changed_bias[others], bias[others])
    assert (changed_bias[3] != bias[3]) == (kind in ("bias", "swap"))
    expected = {"zero": 0 * kernel[..., 3], "copy": kernel[..., 4], "bias": kernel[..., 3]}
    expected |= {"scale": 3 * kernel[..., 3], "negate": -2 * kernel[..., 3]}
    expected |= {"swap": kernel[..., 4]}
    if kind in expected:
        np.testing.assert_allclose(changed[..., 3], expected[kind], rtol=1e-6)
    faulty.heal()
    for before, now in zip(whole, faulty.im.model.get_weights(), strict=True):
        assert np.array_equal(before, now)


def test_ranks():
    scores = {"a": np.array([3.0, 1.0]), "b": np.array([2.0, 2.0, 5.0])}
    assert rank(scores, "b", 2) == 1
    assert rank(scores, "a", 0) == 2
    assert rank(scores, "b", 0) == rank(scores, "b", 1) == 3.5
    assert rank(scores, "a", 1) == 5


def test_a_healed_model_is_the_original():
    faulty, x = FaultyModel(zoo.load("digits_cnn")), datasets.load("digits", "test[:20]").x
    before = faulty.im.logits(x)
    faulty.plant(Fault("conv1", 0, "negate", 3.0, 0))
    assert np.abs(faulty.im.logits(x) - before).max() > 1
    faulty.heal()
    np.testing.assert_array_equal(faulty.im.logits(x), before)
