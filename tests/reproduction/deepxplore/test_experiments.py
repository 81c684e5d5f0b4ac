"""DeepXplore's experiments, whole, from few seeds."""

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import datasets
from nnslicer_tf.deepxplore import NeuronCoverage
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.deepxplore import differences, sweeps
from reproduction.deepxplore.networks import networks
from reproduction.deepxplore.settings import (
    DifferenceSettings,
    NumberSettings,
    SweepSettings,
)


@pytest.mark.slow
def test_exploration_goes_on(shared_data, tmp_path, monkeypatch):
    names = ("light", "light, λ2 = 0")
    monkeypatch.setattr(differences, "CONSTRAINTS", names[:1])
    monkeypatch.setattr(differences, "SEARCHES", {n: differences.SEARCHES[n] for n in names})
    settings = DifferenceSettings(shared_data / "models" / "deepxplore", 40, 200, work=tmp_path)
    found = differences.explore(settings)
    table = found.table("differences").set_index("search")
    assert tuple(table.index) == names and (table["seeds"] == 40).all()
    coverage = found.table("coverage")
    assert len(coverage) == 2 * 4 * 3 and coverage["k-multisection"].between(0, 1).all()
    retraining = found.table("retraining")
    assert retraining["training"].tolist() == 3 * [
        *("none", "no found inputs", "labelled by the majority", "labelled as their seed")
    ]
    assert (retraining["accuracy on other test images"] > 0.9).all()
    assert "ranges" in found.tables[1].head and "ranges" not in found.tables[0].head
    assert len(found.figures) == 2
    # What was found is not sought again.
    monkeypatch.setattr("nnslicer_tf.deepxplore.generate", None)
    again = differences.explore(settings).table("differences")
    pd.testing.assert_frame_equal(again.set_index("search"), table)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"lenet1_weights\.h5"):
        differences.explore(DifferenceSettings(tmp_path))


def test_sweep_changes_one_setting_at_a_time(shared_data, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "WEIGHTS", (0.0, 1.0))
    monkeypatch.setattr(sweeps, "STEPS", (0.001, 1.0))
    settings = SweepSettings(shared_data / "models" / "deepxplore", seeds=30, work=tmp_path)
    table = sweeps.sweep(settings).table("sweep-mnist").set_index(["parameter", "value"])
    assert list(table.index.get_level_values("parameter").unique()) == [
        "lambda1",
        "lambda2",
        "step",
    ]
    # A step of next to nothing changes no prediction; the default is in two of the rows.
    assert table.loc[("step", 0.001), "found"] == 0 < table.loc[("step", 1.0), "found"]
    same = ["found", "mean steps", "coverage", "all differ"]
    assert table.loc[("step", 1.0), same].equals(table.loc[("lambda1", 1.0), same])
    # What is found is no agreement of all three.
    assert (table["all agree"].dropna() == 0).all()
    monkeypatch.setattr("nnslicer_tf.deepxplore.generate", None)  # rows are kept
    again = sweeps.sweep(settings).table("sweep-mnist").set_index(["parameter", "value"])
    pd.testing.assert_frame_equal(again, table)


def test_coverage_by_number(shared_data, tmp_path):
    folder = shared_data / "models" / "deepxplore"
    result = sweeps.numbers(NumberSettings(folder, seeds=20, draws=2, work=tmp_path))
    table = result.table("numbers-mnist").set_index(["inputs", "threshold", "number"])
    whole = []
    for im in networks("mnist", folder):
        coverage = NeuronCoverage(im, 0.5)
        coverage.update(datasets.load("mnist", "test[:20]").x)
        whole.append(coverage.total())
    row = table.loc[("test images", 0.5, 20)]
    assert row["coverage"] == pytest.approx(np.mean(whole)) and row["coverage ±"] == 0
    for _, part in table.groupby(level=[0, 1]):
        assert part["coverage"].is_monotonic_increasing
    agreed = result.table("agreement-mnist").set_index("inputs")
    assert agreed.loc["found", "all agree"] == 0
    predicted = [
        im.predict(datasets.load("mnist", "test[:20]").x).argmax(axis=1)
        for im in networks("mnist", folder)
    ]
    same = (predicted[0] == predicted[1]) & (predicted[1] == predicted[2])
    assert agreed.loc["test images", "all agree"] == pytest.approx(same.mean())
    assert np.isnan(agreed.loc["random images", "majority is right"])
