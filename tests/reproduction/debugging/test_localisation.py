"""Planted faults of the digits' network, and the view of how suspicious channels are."""

from dataclasses import replace

import numpy as np
import pandas as pd

from nnslicer_tf.report.explorer import unpack
from reproduction.debugging.localisation import localisation
from reproduction.debugging.settings import LocalisationSettings


def test_suspicious_channels_are_explored(tmp_path):
    settings = LocalisationSettings(
        model="digits_cnn",
        faults=1,
        images=300,
        samples=20,
        methods="gradient,ochiai",
        work=tmp_path,
        explore=tmp_path / "suspicious.html",
    )
    found = localisation(settings)
    rows = found.table("faults_digits_cnn_ranks")
    (view,) = found.views
    header, arrays = unpack(view.view.data)
    assert [exhibit["name"] for exhibit in header["exhibits"]] == rows["method"].tolist()
    (operation,) = rows["operation"].unique()
    (channel,) = rows["channel"].unique()
    assert header["title"].endswith(f"channel {channel} of {operation}")
    names = [o["name"] for o in header["operations"]]
    hidden = ("conv1", "conv2")
    for exhibit, (_, row) in zip(header["exhibits"], rows.iterrows(), strict=True):
        marks = exhibit["parts"][0]["neurons"]
        scores = {names[int(o)]: arrays[reference] for o, reference in marks.items()}
        every = np.concatenate([scores[name] for name in hidden])
        own = scores[operation][channel]
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
