"""The paper's experiments, whole, on the digits."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer.detection import DETECTORS, detect, figures
from reproduction.nnslicer.drawing import draw
from reproduction.nnslicer.program import program, readings
from reproduction.nnslicer.program_detection import (
    detect_by_program,
    fitting_false_positives,
)
from reproduction.nnslicer.protection import protect
from reproduction.nnslicer.pruning import ablation, curves, fine_tuned
from reproduction.nnslicer.settings import (
    AblationSettings,
    CurveSettings,
    DetectionSettings,
    DrawingSettings,
    FineTuningSettings,
    ProgramDetectionSettings,
    ProgramSettings,
    ProtectionSettings,
    ReadingSettings,
    SliceReadingSettings,
)
from reproduction.nnslicer.slice_readings import slice_readings
from support.documents import unpack

DIGITS = {"model": "digits_cnn", "dataset": "digits"}
FEW = {**DIGITS, "samples": 3, "profiled": 100, "subsets": 2}


def test_pairs_are_drawn_and_counted(tmp_path):
    found = draw(DrawingSettings(**DIGITS, images=30, train=200))
    found.write(tmp_path)
    table = pd.read_csv(tmp_path / "digits_cnn-digits.csv", comment="#")
    assert table["operation"].tolist() == ["relu1", "relu2"]
    assert table["neurons"].tolist() == [1024, 128]
    both = table["kept, normal"] - table["normal alone"]
    other = table["kept, adversarial"] - table["adversarial alone"]
    assert both.tolist() == pytest.approx(other.tolist(), rel=1e-3)
    either = both + table["normal alone"] + table["adversarial alone"]
    assert table["common share"].tolist() == pytest.approx((both / either).tolist(), rel=1e-3)
    assert (table["common share"] < 1).all()  # the slices differ
    header, _ = unpack(found.view().data)
    assert [e["name"] for e in header["exhibits"]] == ["normal", "adversarial"]
    predicted = [[part["predicted"] for part in e["parts"]] for e in header["exhibits"]]
    assert all(a != b for a, b in zip(*predicted, strict=True))  # every attack succeeded
    for name in ("digits_cnn-digits.png", "digits_cnn-digits-parts.png"):
        picture = pyplot.imread(tmp_path / name)
        assert picture.shape[0] > 300 and picture.std() > 0.05


def test_detection_stands_beside_the_paper_and_goes_on(tmp_path, monkeypatch):
    methods = "paper,logit margin,flag everything"
    settings = DetectionSettings(
        **DIGITS,
        train=300,
        images=40,
        attacks="FGSM_8",
        methods=methods,
        work=tmp_path,
    )
    found = detect(settings)
    assert [len(e["parts"]) for e in unpack(found.view().data)[0]["exhibits"]] == [10, 10]
    table = found.table("digits_cnn-digits").set_index(["method", "attack"])
    assert list(table.index[:3]) == [(name, "Average") for name in methods.split(",")]
    assert table.loc[("flag everything", "FGSM_8"), "recall"] == 1
    assert table.loc[("paper", "FGSM_8"), "paper_f1"] > 0.5
    assert np.isnan(table.loc[("logit margin", "Average"), "paper_f1"])
    assert "FGSM_8" in found.table("attacks-digits")["attack"].tolist()
    monkeypatch.setattr("reproduction.nnslicer.detection.evaluate", None)
    again = detect(settings)
    pd.testing.assert_frame_equal(
        again.table("digits_cnn-digits"), found.table("digits_cnn-digits")
    )
    with pytest.raises(InvalidArgumentError, match="Unknown method 'papers'"):
        detect(DetectionSettings(**DIGITS, methods="papers", work=tmp_path))


def test_every_detector_is_drawn_with_a_marker_of_its_own():
    rows = [
        {"method": name, "attack": attack, "precision": 0.9, "recall": 0.8, "f1": 0.85}
        for name in DETECTORS
        for attack in ("FGSM_2", "FGSM_4")
    ]
    points, _ = figures("all", pd.DataFrame(rows))
    drawn = points.figure.axes[0].collections
    assert [points.get_label() for points in drawn] == list(DETECTORS)
    outlines = [one.get_paths()[0].vertices.tobytes() for one in drawn]
    assert len(set(outlines)) == len(DETECTORS)


def test_curves_of_all_methods(tmp_path, monkeypatch):
    settings = CurveSettings(**FEW, ratio=[0.0, 0.6], work=tmp_path)
    found = curves(settings)
    table = found.table("figure3-4x2").set_index(["method", "ratio"])
    assert len(table) == 16 * 2
    whole = table.loc[table.index.get_level_values("ratio") == 0, "targets"]
    assert np.ptp(whole[["NNSlicer (targeted)", "Weight", "Random"]]) == 0
    best = table.loc[("NNSlicer (targeted), ours", 0.6), "targets"]
    assert best > table.loc[("Random", 0.6), "targets"]
    assert "at 60 % pruned (goal: 80 %)" in found.tables[0].text
    assert len(found.figures[0].figure.axes) == 3

    # What is on file is not computed again.
    monkeypatch.setattr("nnslicer_tf.instrument.Ablation.outputs", None)
    again = curves(settings).table("figure3-4x2")
    pd.testing.assert_frame_equal(again, found.table("figure3-4x2"))


def test_fine_tuning_of_all_methods(tmp_path):
    found = fine_tuned(
        FineTuningSettings(**{**FEW, "subsets": 1}, ratio=[0.8], images=300, work=tmp_path)
    )
    table = found.table("figure4").set_index("method")
    assert len(table) == 10 and not any("renormalised" in name for name in table.index)
    assert table.loc["Weight, ours", "targets"] > 0.5
    assert found.tables[0].head["images"] == 300


def test_ablation_of_all_changes(tmp_path):
    found = ablation(AblationSettings(**FEW, ratio=[0.5], images=60, work=tmp_path))
    table = found.table("ablation").set_index("method")
    assert len(table) == 20
    paper = "paper: θ = 0.3, activations, images that the model is right on"
    assert (table.drop(paper)["targets"] != table.loc[paper, "targets"]).any()
    assert "60 held-out images" in found.tables[0].head["samples"]


def test_attackers_are_measured(tmp_path):
    settings = ProtectionSettings(
        **(FEW | {"subsets": 1}),
        budget=[200],
        epochs=1,
        repetitions=2,
        method=["NNSlicer", "Everything"],
        work=tmp_path,
    )
    table = protect(settings).table("figure5").set_index("method")
    assert table["attacks"].tolist() == [2, 2] and table["budget"].tolist() == [200, 200]
    assert table.loc["Everything", "all"] < table.loc["NNSlicer", "all"] + 0.1
    for wrong, said in (
        ({"method": ["Nothing"]}, "Unknown method 'Nothing'"),
        ({"budget": [10**6]}, "Received: 1000000"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            protect(ProtectionSettings(**FEW, **wrong, work=tmp_path))


def test_the_programs_procedure_with_all_treatments(tmp_path):
    settings = ProgramSettings(**FEW, ratio=[0.6], images=80, work=tmp_path)
    found = program(settings)
    table = found.table("pruning-digits_cnn-digits").set_index(["treatment", "method"])
    assert len(table) == 6 * 6
    targets = table["targets"]
    # Methods differ in the program's treatment, in which Weight has no means.
    assert targets["program", "Weight"] == targets["no means", "Weight"]
    assert targets["program", "NNSlicer (all)"] == targets["means for all", "NNSlicer (all)"]
    assert targets["no means", "Weight"] != targets["means for all", "Weight"]
    gaps = found.table("pruning-gaps-digits_cnn-digits").set_index(["treatment", "above"])
    expected = 100 * (targets["fair", "NNSlicer (targeted)"] - targets["fair", "Random"])
    assert gaps.loc[("fair", "Random"), "points"] == pytest.approx(expected)
    low, high = gaps.loc[("fair", "Random"), ["points, from", "points, to"]]
    assert low <= expected <= high
    assert (table["among_targets"] >= table["targets"]).all()
    with pytest.raises(InvalidArgumentError, match="Unknown treatment 'none'"):
        program(ProgramSettings(**FEW, treatment=["none"], work=tmp_path))


def test_single_choices_of_the_program(tmp_path):
    found = readings(ReadingSettings(**FEW, ratio=[0.6], images=60, work=tmp_path))
    table = found.table("pruning-readings-digits_cnn-digits").set_index("method")
    assert len(table) == 12 and table["targets"].nunique() > 4
    assert "60 held-out training images" in found.tables[0].head["samples"]


def test_the_programs_scoring_finds_everything(tmp_path):
    settings = ProgramDetectionSettings(
        **DIGITS, train=40, images=80, attacks="FGSM_8", work=tmp_path
    )
    found = detect_by_program(settings)
    table = found.table("detection-digits_cnn-digits").set_index(["method", "attack"])
    assert len(table) == 4 * 17
    for (_, attack), row in table.iterrows():
        precision = row["n"] / (row["n"] + row["flagged"])
        assert np.isnan(precision) or row["program_precision"] == pytest.approx(precision)
        assert np.isnan(row["recall"]) == (attack != "FGSM_8")
    honest = table.xs("FGSM_8", level="attack")
    assert (honest["recall"] < 1).any() and honest["flagged"].le(honest["normal"]).all()
    means = found.table("detection-digits_cnn-digits-means").set_index("method")
    of_paths = table.loc["EffectivePath"]
    error = (of_paths["program_precision"] - of_paths["paper_precision"]).abs().mean()
    assert means.loc["EffectivePath", "error of program_precision"] == pytest.approx(error)


def test_the_false_positives_that_fit_published_precision():
    n = np.array([400.0, 100.0])
    rows = pd.DataFrame({"n": n, "paper_precision": n / (n + 80), "normal": 443})
    assert fitting_false_positives(rows) == (80, pytest.approx(0))


def test_single_slices_by_each_reading(tmp_path):
    settings = SliceReadingSettings(**DIGITS, images=6, train=200, theta=[0.0, 0.3], work=tmp_path)
    table = slice_readings(settings).table("slices-digits_cnn-digits")
    assert len(table) == 8 * 2
    figures = table.drop(columns=["relative_to", "rectify", "profile", "theta"])
    assert ((figures >= 0) & (figures <= 1)).all(axis=None)
    by_name = table.set_index(["relative_to", "rectify", "profile", "theta"])
    assert by_name.loc[("output", "sign", "whole", 0.0), "share"] == pytest.approx(
        by_name.loc[("sum", "sign", "whole", 0.0), "share"]  # at θ = 0 nothing is excluded
    )
    largest = table.set_index("theta").loc[0.3, "share"].max()
    assert largest < by_name.loc[("output", "pass", "whole", 0.0), "share"]
