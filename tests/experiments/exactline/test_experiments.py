"""The paper's experiments, whole: on the digits, on ACAS Xu networks, and a training on MNIST."""

import json

import numpy as np
import pytest

from nnslicer_tf import zoo
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.experiments.exactline import attributions, linearities, networks
from nnslicer_tf.experiments.exactline.boundaries import boundaries
from nnslicer_tf.experiments.exactline.settings import (
    AcasSettings,
    AttributionSettings,
    LinearitySettings,
    TrainingSettings,
)


def test_boundaries(shared):
    found = boundaries(AcasSettings(shared / "acasxu", every=30, grid=3))
    table = found.table("acas")
    assert table["line"].tolist() == ["ahead", "around"] * 2
    assert (table["regions"] >= table["regions_seen_by_1000_samples"]).all()
    assert (table["parts"] >= table["regions"]).all()
    assert "6 exact lines" in [axis.get_title() for axis in found.figures[0].figure.axes]


def test_boundaries_need_networks(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"no \.nnet files"):
        boundaries(AcasSettings(tmp_path))


def test_attributions(monkeypatch):
    chosen = {"digits_cnn": ("digits", zoo.load("digits_cnn"))}
    monkeypatch.setattr(attributions, "relu_networks", lambda: chosen)
    found = attributions.attributions(AttributionSettings(images=3, most=300))
    (row,) = found.table("attributions").to_dict("records")
    assert (row["network"], row["images"]) == ("digits_cnn", 3)
    assert row["completeness_error_max"] < 1e-3 and row["exact"] > 10
    assert len(found.table("attributions_images")) == 3
    assert not found.tables[0].title  # rows of images: a CSV file in full precision
    assert "| " in found.tables[1].text


def test_linearities(monkeypatch):
    chosen = {
        ("digits", "normal"): zoo.load("digits_cnn"),
        ("digits", "pgd"): zoo.build("digits_cnn"),
    }
    monkeypatch.setattr(linearities, "convsmall_networks", lambda: chosen)
    monkeypatch.setitem(networks.EPSILON, "digits", 0.1)
    found = linearities.linearities(LinearitySettings(images=4))
    images = found.table("linearity_images")
    assert len(images) == 8
    trained = images[(images["training"] == "normal") & (images["predicted"] == images["label"])]
    directions = found.table("linearity_directions").set_index(["training", "images"])
    ratio = np.median(trained["fgsm_density"] / trained["random_density"])
    assert directions.loc[("normal", "right"), "median"] == pytest.approx(ratio)
    assert found.table("linearity_trainings")["other"].tolist() == ["pgd", "pgd"]
    assert [figure.name for figure in found.figures] == ["linearity", "linearity_ticks"]


def test_training(shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = TrainingSettings("mnist", "normal").quick()
    train(settings).write(settings.trial_folder)
    log = json.loads((tmp_path / "runs" / "convsmall-mnist-normal-quick.json").read_text())
    assert (log["train_images"], log["recipe"]["epochs"], len(log["losses"])) == (2_000, 1, 1)
    assert log["test_accuracy"] > 0.5
    assert (tmp_path / "runs" / "convsmall-mnist-normal.weights.h5").exists()


train = networks.train


def test_unknown_trainings_are_refused():
    for wrong in (("mnist", "pdg"), ("minst", "pgd")):
        with pytest.raises(InvalidArgumentError, match="Did you mean"):
            train(TrainingSettings(*wrong))


def test_networks_that_come_with_the_project():
    found = networks.relu_networks()
    assert "convsmall-mnist-pgd" in found and found["lenet5"][0] == "mnist"
