"""Planted faults of the digits' network, and how suspicious its channels are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.debugging import Runs, suspicious
from reproduction.debugging.faults import FaultyModel
from reproduction.debugging.localisation import costly, localisation
from reproduction.debugging.settings import LocalisationSettings


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
        scores = suspicious(faulty.im, *sides, row["method"], rng=fault.seed).channels
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
