"""The app that draws slices, from its options to its files."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot

sys.path.insert(0, str(Path(__file__).parents[2] / "apps"))

import draw_slices


def test_pairs_are_drawn_and_counted(tmp_path):
    draw_slices.main(
        *("digits_cnn", "digits", "FGSM_8", 30, 200), theta=0.3, results=tmp_path, quick=False
    )
    table = pd.read_csv(tmp_path / "digits_cnn-digits.csv", comment="#")
    assert table["operation"].tolist() == ["relu1", "relu2"]
    assert table["neurons"].tolist() == [1024, 128]
    both = table["kept, normal"] - table["normal alone"]
    other = table["kept, adversarial"] - table["adversarial alone"]
    assert both.tolist() == pytest.approx(other.tolist(), rel=1e-3)
    either = both + table["normal alone"] + table["adversarial alone"]
    assert table["common share"].tolist() == pytest.approx((both / either).tolist(), rel=1e-3)
    assert (table["common share"] < 1).all()  # the slices differ
    for name in ("digits_cnn-digits.png", "digits_cnn-digits-parts.png"):
        picture = pyplot.imread(tmp_path / name)
        assert picture.shape[0] > 300 and picture.std() > 0.05
