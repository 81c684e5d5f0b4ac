"""The paper's experiments, whole: on the digits, on ACAS Xu networks, and a training on MNIST."""

import json

import keras
import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import zoo
from nnslicer_tf.datasets import load
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import Attributor, acas
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline import (
    advice_maps,
    attributions,
    linearities,
    networks,
    planes,
)
from reproduction.exactline.advice_maps import boundaries, evaluate
from reproduction.exactline.measures import approximate
from reproduction.exactline.settings import (
    AcasSettings,
    AdviceSettings,
    AttributionSettings,
    BaselineSettings,
    CompressedSettings,
    LinearitySettings,
    NeighbourhoodSettings,
    ProgramAttributionSettings,
    ProgramSettings,
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


def test_attributions(monkeypatch, tmp_path):
    chosen = {"digits_cnn": ("digits", zoo.load("digits_cnn"))}
    monkeypatch.setattr(attributions, "relu_networks", lambda kinds: chosen)
    found = attributions.attributions(AttributionSettings(images=3, most=300, work=tmp_path))
    (row,) = found.table("attributions").to_dict("records")
    assert (row["network"], row["images"]) == ("digits_cnn", 3)
    assert row["completeness_error_max"] < 1e-3 and row["exact"] > 10
    assert len(found.table("attributions_images")) == 3
    assert not found.tables[0].title  # rows of images: a CSV file in full precision
    assert "| " in found.tables[1].text
    # Rows that are there are taken from the file.
    kept = tmp_path / "attributions-300.csv"
    table = pd.read_csv(kept).assign(exact=7)
    table.iloc[:2].to_csv(kept, index=False)
    again = attributions.attributions(AttributionSettings(images=3, most=300, work=tmp_path))
    exact = found.table("attributions_images")["exact"]
    assert again.table("attributions_images")["exact"].tolist() == [7, 7, exact[2]]
    # Those of a network that was trained again are not.
    network = chosen["digits_cnn"][1]
    network.set_weights([-w for w in network.get_weights()])
    other = attributions.attributions(AttributionSettings(images=3, most=300, work=tmp_path))
    assert 7 not in other.table("attributions_images")["exact"].tolist()


def test_networks_without_weights_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(networks, "weights_file", lambda name: tmp_path / name)
    with pytest.raises(InvalidArgumentError, match=r"convbig\. Train them: .* --network convbig"):
        linearities.linearities_by_program(ProgramSettings(network="convbig"))
    assert list(networks.relu_networks(["lenet5"])) == ["lenet5"]


def test_networks_of_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="convsmal"):
        attributions.attributions(AttributionSettings(network=["convsmal"], work=tmp_path))
    with pytest.raises(InvalidArgumentError, match="lenet5"):
        settings = ProgramAttributionSettings(network=["lenet5"], work=tmp_path)
        attributions.attributions_by_program(settings)
    for experiment, settings in (
        (linearities.linearities, LinearitySettings(network="convsmal")),
        (linearities.linearities_by_program, ProgramSettings(network="convsmal")),
    ):
        with pytest.raises(InvalidArgumentError, match="convsmal"):
            experiment(settings)


def test_linearities(monkeypatch):
    chosen = {
        ("digits", "normal"): zoo.load("digits_cnn"),
        ("digits", "pgd"): zoo.build("digits_cnn"),
    }
    monkeypatch.setattr(linearities, "networks_of", lambda kind: chosen)
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


def test_images_without_a_line_are_left_out():
    """FGSM does not move an image where the loss has no gradient: there is no density, no error."""
    table = pd.DataFrame(
        {
            "dataset": "digits",
            "training": "box",
            "image": range(4),
            "label": 0,
            "predicted": [0, 0, 0, 1],
            "fgsm_predicted": [0, 1, 0, 1],
            "fgsm_parts": [1, 6, 2, 3],
            "random_parts": [2, 2, 2, 2],
            "fgsm_density": [np.nan, 6.0, 2.0, 3.0],
            "random_density": 2.0,
            "fgsm_gradient_error": [np.nan, 0.1, 0.3, 0.1],
            "random_gradient_error": 0.1,
        }
    )
    row = linearities.directions(table).set_index("images").loc["right"]
    assert (row["count"], row["median"], row["fgsm_parts"]) == (2, 2.0, 4.0)
    drawn = linearities.plot(table).axes[0]
    medians = [line for line in drawn.lines if line.get_color() == "C1"]
    assert [line.get_xdata()[0] for line in medians] == [1.5]  # of all images with a line


def test_training(shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = TrainingSettings("mnist", "normal").quick()
    train(settings).write(settings.trial_folder)
    log = json.loads((tmp_path / "runs" / "convsmall-mnist-normal-quick.json").read_text())
    assert (log["train_images"], log["recipe"]["epochs"], len(log["losses"])) == (2_000, 1, 1)
    assert log["test_accuracy"] > 0.5
    assert (tmp_path / "runs" / "convsmall-mnist-normal.weights.h5").exists()


train = networks.train


def test_the_procedure_of_the_program(monkeypatch):
    """Black pixels stay; others move by 3 % of their value, rounded down to grey levels."""
    levels = np.array([0, 10, 33, 34, 100, 250], np.float64)
    moved = linearities.moved(levels / 255, np.ones(6))
    np.testing.assert_allclose(moved * 255, [0, 10, 33, 35, 103, 255], atol=1e-9)
    moved = linearities.moved(levels / 255, -np.ones(6))
    np.testing.assert_allclose(moved * 255, [0, 10, 33, 33, 97, 243], atol=1e-9)
    chosen = {("digits", method): zoo.load("digits_cnn") for method in ("normal", "pgd")}
    monkeypatch.setattr(linearities, "networks_of", lambda kind: chosen)
    found = linearities.linearities_by_program(ProgramSettings(images=3))
    assert found.table("program_directions")["count"].tolist() == [3 * 4, 3 * 4]
    assert (found.table("program_trainings")["median"] == 1).all()  # twice the same network
    gradients = found.table("program_gradients").set_index("training")
    assert (gradients["by norm"] == gradients["by norm"]["normal"]).all()
    assert gradients["by norm"].between(0, 100, inclusive="neither").all()
    data = load("digits", "test[:3]")
    rows = linearities.lines(
        InstrumentedModel(chosen["digits", "pgd"]), data.x, data.y, 0, "digits"
    )
    assert (rows["predicted"] == rows["label"]).all() and len(rows) == 3 * 4
    assert rows.groupby("image")["fgsm_parts"].nunique().eq(1).all()


def test_attributions_by_the_procedure_of_the_program(monkeypatch, tmp_path):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(24, "relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    model.layers[1].bias.assign(np.linspace(-0.5, 0.5, 24))  # no kink at black
    chosen = {("convsmall", "digits", "normal"): model}
    monkeypatch.setattr(attributions, "trained_networks", lambda kinds: chosen)
    settings = ProgramAttributionSettings(images=2, most=400, work=tmp_path)
    found = attributions.attributions_by_program(settings)
    (row,) = found.table("program_attributions").to_dict("records")
    data = load("digits", "test[:2]")
    attributor = Attributor(InstrumentedModel(model))
    counts, errors = [], []
    for x, label in zip(data.x, data.y, strict=True):
        exact = attributor.exact(x, 0 * x, int(label))
        path = attributor.path(x, 0 * x, int(label))
        change = exact.sum()  # attributions are complete
        for count in range(20, 400):
            sums = approximate(path, count)
            if abs(sums.sum() - change) <= 0.01 * abs(change):
                break
        counts.append(count)
        errors.append(100 * np.mean(np.abs(sums - exact) / np.abs(exact + 1e-11)))
    assert row["m_tilde"] == np.mean(counts)
    assert row["error_percent_at_m_tilde"] == pytest.approx(np.mean(errors))
    assert row["counted"] == row["images"] == 2 and row["left"] > 1


def test_unknown_trainings_are_refused():
    for wrong in (("mnist", "pdg"), ("minst", "pgd"), ("mnist", "pgd", "convbik")):
        with pytest.raises(InvalidArgumentError, match="Did you mean"):
            train(TrainingSettings(*wrong))


def test_networks_that_come_with_the_project():
    found = networks.relu_networks()
    assert "convsmall-mnist-pgd" in found and found["lenet5"][0] == "mnist"


def test_advice_maps(shared):
    found = advice_maps.advice_maps(AdviceSettings(shared / "acasxu", every=60, samples=(10, 20)))
    table = found.table("acas_planes")
    assert table["scenario"].tolist() == ["head-on, slow", "head-on, fast"]
    shares = table[[f"{advice}_percent" for advice in acas.ADVISORIES]]
    np.testing.assert_allclose(shares.sum(axis=1), 100)
    assert (table["missed_percent_10"] > table["missed_percent_20"]).all()
    assert (table["missed_percent_20"] > 0).all()
    assert table["pieces"].gt(table["regions"]).all()
    # The missed share by random positions, which are uniform in the physical area
    nnet = acas.load_nnet(sorted((shared / "acasxu").glob("*.nnet"))[0])
    rng = np.random.default_rng(0)
    rho, theta = advice_maps.REACH * np.sqrt(rng.random(20_000)), rng.random(20_000)
    rest = np.tile(advice_maps.scenario("head-on, slow")[0, 2:], (20_000, 1))
    cells = (np.floor([rho / advice_maps.REACH * 10, theta * 10]) + 0.5) / 10

    def advice(distance, turn):
        x = np.column_stack([distance, (2 * turn - 1) * np.pi, rest])
        return evaluate(nnet, x).argmin(axis=1)

    missed = (advice(rho, theta) != advice(cells[0] * advice_maps.REACH, cells[1])).mean()
    assert table["missed_percent_10"][0] == pytest.approx(100 * missed, abs=1.0)


def test_neighbourhoods(monkeypatch):
    chosen = {("digits", "normal"): zoo.load("digits_cnn")}
    monkeypatch.setattr(planes, "networks_of", lambda kind: chosen)
    monkeypatch.setitem(networks.EPSILON, "digits", 0.1)
    found = planes.neighbourhoods(NeighbourhoodSettings(images=3))
    images = found.table("neighbourhoods_images")
    assert len(images) == 3 and images["regions"].gt(10).all()
    assert (images["other_percent"].gt(0) == images["margin"].lt(0)).all()
    (row,) = found.table("neighbourhoods").to_dict("records")
    assert row["images"] == images["right"].sum()


def test_compressions(shared_data):
    found = planes.compressions(CompressedSettings(planes=1, lines=2))
    table = found.table("compressions_all")
    assert set(table["bits"]) == {8, 6, 4} and len(table) == 9
    lines = table[table["where"] == "line"].groupby("bits")["share_percent"].mean()
    assert lines[8] < lines[4]
    near = np.abs(table["share_percent"] - table["sampled_percent"])
    assert near.max() < 4  # per cent: 1,000 samples


def test_quantised_weights_have_that_many_values():
    model = zoo.load("digits_cnn")
    small = planes.quantised(model, 4)
    for kernel, original in zip(small.trainable_variables, model.trainable_variables, strict=True):
        if len(kernel.shape) > 1:
            assert len(np.unique(kernel.numpy())) <= 15
            step = np.abs(original.numpy()).max() / 7
            assert np.abs(kernel.numpy() - original.numpy()).max() <= step / 2 + 1e-6


def test_baselines():
    found = planes.baselines(BaselineSettings(images=1))
    (row,) = found.table("baselines_images").to_dict("records")
    assert row["completeness_error"] < 1e-8
    assert row["error_percent_100"] < row["error_percent_1"]
