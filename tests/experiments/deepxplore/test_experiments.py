"""DeepXplore's experiments, whole, from few seeds."""

import pandas as pd
import pytest

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.experiments.deepxplore import differences
from nnslicer_tf.experiments.deepxplore.settings import DifferenceSettings
from nnslicer_tf.report.explorer import unpack


@pytest.mark.slow
def test_exploration_goes_on(shared_data, tmp_path, monkeypatch):
    names = ("light", "light, λ2 = 0")
    monkeypatch.setattr(differences, "CONSTRAINTS", names[:1])
    monkeypatch.setattr(differences, "SEARCHES", {n: differences.SEARCHES[n] for n in names})
    settings = DifferenceSettings(
        *(shared_data / "models" / "deepxplore", 40, 200),
        **{"work": tmp_path, "explore": tmp_path / "covered.html"},
    )
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
    rows = coverage[(coverage["search"] == "light") & (coverage["inputs"] == "found")]
    (view,) = found.views
    header, arrays = unpack(view.view.data)
    masks = [arrays[r] for r in header["exhibits"][0]["parts"][0]["neurons"].values()]
    covered = sum(int(m.sum()) for m in masks) / sum(m.size for m in masks)
    (expected,) = rows.loc[rows["model"] == "lenet5", "neurons > 0.25"]
    assert covered == pytest.approx(expected, abs=1e-4)
    # What was found is not sought again.
    monkeypatch.setattr("nnslicer_tf.deepxplore.generate", None)
    again = differences.explore(settings).table("differences")
    pd.testing.assert_frame_equal(again.set_index("search"), table)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"lenet1_weights\.h5"):
        differences.explore(DifferenceSettings(tmp_path))
