"""Copies of a model with other last bits: how far they are, and what the table says of them."""

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import zoo
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.sentences import rounding
from reproduction.sentences.settings import RoundingSettings


def test_weights_change_by_no_more_than_rounding():
    first = zoo.load("digits_cnn").get_weights()
    same = rounding.perturbed(zoo.load("digits_cnn"), 0, 5).get_weights()
    assert all((a == b).all() for a, b in zip(first, same, strict=True))
    others = [rounding.perturbed(zoo.load("digits_cnn"), n, 5).get_weights() for n in (1, 2, 2)]
    for a, b, c, d in zip(first, *others, strict=True):
        assert np.abs(b - a).max() <= 1.001 * 2.0**-11 * np.abs(a).max()
        assert (np.abs(b - a) <= 1.001 * 2.0**-11 * np.abs(a) + 1e-12).all() and (b != a).any()
        assert (c != b).any() and (c == d).all()


def test_summary_of_copies():
    rows = [
        {"method": method, "sentence": 0, "copy": copy, "deletion": deletion, "scores": scores}
        for method in rounding.METHODS
        for copy, deletion, scores in (
            (0, -0.4, "3 2 1 0"),
            (1, -0.5, "6 4 2 0"),
            (2, -0.1, "1 2 3 0"),
        )
    ]
    found = pd.DataFrame(rows)
    means = rounding.mean_scores(found)
    np.testing.assert_allclose(means["gradient × input"], [[10 / 3, 8 / 3, 2, 0]])
    together = pd.DataFrame({"method": rounding.METHODS, "deletion": -1.0})
    table = rounding.summary(found, together)
    assert list(table["method"]) == list(rounding.METHODS)
    first = table.iloc[0]
    assert (first["deletion"], first["least"], first["largest"]) == (-0.4, -0.5, -0.1)
    assert first["same order"] == pytest.approx(0)  # one copy agrees, one is reversed
    assert (table["together"] == -1).all()


def test_the_experiment_on_the_zoos_model(shared, monkeypatch, tmp_path):
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    settings = RoundingSettings(sentences=3, profile=20, copies=1, work=tmp_path)
    table = rounding.rounding(settings).tables[0].frame.set_index("method")
    assert table.loc["integrated gradients", "same order"] > 0.99
    assert (table["least"] <= table["largest"]).all() and table["deletion"].notna().all()
    again = rounding.rounding(settings).tables[0].frame  # from the finished copies
    pd.testing.assert_frame_equal(again.set_index("method"), table)


def test_unknown_models():
    with pytest.raises(InvalidArgumentError, match="Did you mean 'text_lstm'"):
        rounding.rounding(RoundingSettings(model="text_lstms"))
