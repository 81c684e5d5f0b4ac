"""The paper's experiments on the digits, and their tables."""

from dataclasses import replace

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection.attacks import generate
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.semantic import restructure
from reproduction.neusemslice import settings as ways
from reproduction.neusemslice import slicing
from reproduction.neusemslice.maintenance import (
    attacks,
    develop_rows,
    readapt_rows,
    restructure_rows,
)
from reproduction.neusemslice.tables import (
    area_tests,
    masked_range_tables,
    means_beside_the_paper,
    paired,
    paired_tests,
    paper_table,
)
from reproduction.neusemslice.trial import (
    SlicedModel,
    Trial,
    restructured_size,
    slices_of_one_size,
    split_classes,
)
from reproduction.samples import first, of_classes


def trained(data, seed=0):
    """A perceptron with two hidden layers on the digits."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(40, name="a"),
            layers.ReLU(),
            layers.Dense(24, name="b"),
            layers.ReLU(),
            layers.Dense(10, name="logits"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.005), loss)
    model.fit(data.x, data.y, batch_size=32, epochs=12, verbose=0)
    return model


@pytest.fixture(scope="module")
def parts():
    whole = datasets.load("digits", "train")
    held_out = first(whole, 400)
    train = replace(whole, x=whole.x[400:], y=whole.y[400:])
    return {"train": train, "held_out": held_out, "test": datasets.load("digits", "test")}


@pytest.fixture(scope="module")
def trial(parts):
    return Trial(trained(parts["train"]), **parts, samples=300)


@pytest.fixture(scope="module")
def sliced(trial):
    return SlicedModel(trial)


@pytest.mark.parametrize("way", ways.WAYS)
def test_a_slice_of_a_size(sliced, way):
    wanted = 0.4
    found = sliced.compression(sliced.of_size(way, wanted))
    settings = np.linspace(0.1, 1, 7)
    others = [sliced.compression(sliced.slice(way, s)) for s in settings]
    assert abs(found - wanted) <= min(abs(other - wanted) for other in others) + 1e-3


def test_slices_of_one_size_keep_the_accuracy(trial, sliced):
    slices = slices_of_one_size(trial, "taylor", 0.05)
    sizes = {way: sliced.compression(critical) for way, critical in slices.items()}
    assert max(sizes.values()) - min(sizes.values()) < 0.15
    small = restructure(trial.model, slices["NeuSemSlice, centred"])
    before = zoo.accuracy(trial.model, trial.held_out)
    assert zoo.accuracy(small, trial.held_out) >= before - 0.05
    assert sizes["NeuSemSlice, centred"] > 0.1


def test_curves_and_their_areas(trial, tmp_path, monkeypatch):
    fewer = {way: settings[::3] for way, settings in ways.SETTINGS.items()}
    monkeypatch.setattr(slicing, "SETTINGS", fewer)
    rows = [{"seed": 0, **row} for row in slicing.curve_rows(trial, "avg")]
    curves = pd.DataFrame([*rows, {"seed": 0, **slicing.deeparc_row(trial)}])
    whole = curves[(curves.method == "Global") & (curves.setting == 1)]
    assert whole.accuracy.tolist() == [zoo.accuracy(trial.model, trial.test)]
    assert whole.compression.tolist() == [0]
    assert len(curves) == 1 + sum(map(len, fewer.values()))
    assert set(curves.method) == {*ways.WAYS, "DeepArc"}
    tests = area_tests(curves)
    assert len(tests) == 2 * 2 * 2 * 2
    assert (curves.into.dropna() <= curves.compression[curves.into.notna()]).all()
    of_all = tests[(tests.settings == "all") & (tests.counted == "weights in and out")]
    # Tables of curves that were kept before both counts were made are compared by one.
    kept = area_tests(curves.drop(columns="into"))
    pd.testing.assert_frame_equal(
        kept[kept.settings == "all"].reset_index(drop=True), of_all.reset_index(drop=True)
    )
    assert (of_all.repeats == 1).all()
    one = of_all.set_index(["method", "against"]).gain
    assert one[("NeuSemSlice, centred", "Global")] > 0
    figure = slicing.plot_curves("figure5", curves)
    figure.savefig(tmp_path / "curves.png")
    assert [line.get_label() for line in figure.axes[0].lines] == [*ways.WAYS, "DeepArc"]


def test_masking_the_neurons_of_a_category_costs_most_for_the_first_tenth(trial):
    rows = pd.DataFrame([{"seed": 0, **r} for r in slicing.masked_range_rows(trial, "taylor")])
    assert len(rows) == 5 * 11
    tables = masked_range_tables(rows)
    assert tables["table1"]["range"][0] == "0%→10%"
    by_category = rows[(rows.category != "global") & (rows.range == "0%→10%")].accuracy
    assert tables["table2"]["taylor"][0] == pytest.approx(by_category.mean())
    assert tables["table2"]["taylor"].idxmin() == 0
    assert tables["table1"]["paper taylor"][0] == 0.4129
    assert tables["table3"]["3"].tolist() == rows[rows.category == "3"].accuracy.tolist()


def test_restructuring_saves_iterations(trial):
    rows = pd.DataFrame(restructure_rows(trial, "taylor", 0.03))
    assert len(rows) == 1 + 4 * 5
    by_method = rows.set_index("method")
    assert by_method.NI["NeuSemSlice, centred+LAMP"] < by_method.NI["LAMP"]
    # The rate is of the whole model: the slice and what the compressor took.
    assert (by_method.CR["NeuSemSlice, centred+ERK"] >= 0.1).all()
    assert ((rows.MA > 0.8) & (rows.CR < 1)).all()


def test_readaptation(trial):
    chosen = ("Fully Training", "NeuSemSlice, centred+DeepArc")
    trial = replace(trial, held_out=first(trial.held_out, 120))
    rows = pd.DataFrame(readapt_rows(trial, "taylor", 0.1, 2, 1_000, chosen))
    by_method = rows.set_index(["attack", "method"])
    assert (by_method.TPR[("FGSM", "Fully Training")] == 1).all()
    assert by_method.TPR[("PGD", "NeuSemSlice, centred+DeepArc")] < 1
    assert (by_method["attacked before"] < by_method.RA).all()
    # With many steps an attack is at least as strong as with one.
    before = rows.groupby("attack")["attacked before"].first()
    assert before["PGD"] <= before["FGSM"] + 0.02


def test_readaptation_attacks_as_many_samples_as_asked(trial):
    few = next(
        readapt_rows(trial, "taylor", 0.1, epochs=1, attacked=21, methods=["Fully Training"])
    )
    x, y = trial.held_out.x[:21], trial.held_out.y[:21]
    fgsm, _ = attacks(0.1)
    found = generate(trial.model, fgsm, x, y, rng=trial.seed, progress=False).x
    right = trial.model.predict_on_batch(found).argmax(axis=1) == y
    assert few["attacked before"] == right.mean()
    assert few["RA"] * 42 == pytest.approx(round(few["RA"] * 42))


@pytest.fixture(scope="module")
def beginner(parts):
    """A trial whose model knows the first three classes."""
    base = trained(of_classes(parts["train"], range(3)))
    return Trial(base, **parts, samples=300)


def test_development_of_two_tasks(beginner):
    methods = ("Replay 100%", "NeuSemSlice, centred", "NeuSemSlice, centred, sealed")
    tasks = (range(3), range(3, 10))
    rows = develop_rows(beginner, tasks, "taylor", 0.05, 150, methods)
    found = pd.DataFrame(rows).set_index("method")
    assert list(found.index) == ["Original", *methods]
    assert found.TaskB["Original"] == 0
    assert found.TaskA["Replay 100%"] > found.TaskA["NeuSemSlice, centred"]
    assert (found.TaskB[1:] > 0.5).all()
    np.testing.assert_allclose(found.Avg, (found.TaskA + found.TaskB) / 2)
    # What the critical neurons compute alone does not change.
    known = found["TaskA known"]
    assert known["NeuSemSlice, centred"] == known["NeuSemSlice, centred, sealed"]
    assert known["NeuSemSlice, centred"] > known["Original"] - 0.05


@pytest.mark.slow
def test_development_of_three_tasks(beginner):
    methods = ("Global+Replay 10%", "NeuSemSlice+Replay 10%")
    tasks = split_classes(10, 3)
    rows = develop_rows(beginner, tasks, "taylor", 0.05, 150, methods)
    found = pd.DataFrame(rows).set_index("method")
    assert list(found.index) == ["Original", "NeuSemSlice+Replay 10%"]
    assert found["TaskA known"].min() > 0.9
    assert found["TaskB known"]["NeuSemSlice+Replay 10%"] > 0.5
    assert found["TaskC known"]["NeuSemSlice+Replay 10%"] > 0.5


def test_classes_are_split_in_order():
    assert split_classes(10, 2) == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    assert split_classes(10, 3) == ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
    with pytest.raises(InvalidArgumentError, match="into 4 tasks"):
        split_classes(3, 4)


def test_the_papers_figures():
    assert paper_table(8, "mlp", "mnist").set_index("method").TaskB["Global"] == 0.9754
    six = paper_table(6, "alexnet", "cifar10").set_index(["attack", "method"])
    assert six.RAA[("PGD", "NeuSemSlice+DeepArc")] == pytest.approx(0.003)
    assert paper_table(5, "lenet5", "mnist").empty
    seven = paper_table(7, "mlp", "mnist").set_index("method")
    assert np.isnan(seven.TaskA["DeepArc"])


def test_means_stand_beside_the_paper():
    rows = pd.DataFrame(
        [
            {"seed": seed, "method": method, "CR": 0.5 + 0.1 * seed, "NI": 3, "MA": 0.9}
            for seed in (0, 1)
            for method in ("LAMP", "Global+LAMP", "NeuSemSlice, centred+LAMP", "Mine")
        ]
    )
    means = means_beside_the_paper(rows, 5, "mlp", "mnist").set_index("method")
    assert means.CR["LAMP"] == 0.55
    assert means["paper CR"]["NeuSemSlice, centred+LAMP"] == 0.5305
    assert means["paper NI"]["Global+LAMP"] == 5
    assert np.isnan(means["paper MA"]["Mine"])


def test_paired_tests_are_over_seeds():
    figures = {"a": [0.9, 0.8, 0.7], "b": [0.5, 0.5, 0.6]}
    rows = pd.DataFrame(
        [
            {"attack": attack, "seed": seed, "method": method, "RA": figures[method][seed]}
            for attack in ("FGSM", "PGD")
            for seed in (2, 0, 1)
            for method in figures
        ]
    )
    found = paired_tests(rows, ["RA"], [("a", "b"), ("a", "c")])
    expected = paired(figures["a"], figures["b"])
    assert found.attack.tolist() == ["FGSM", "PGD"]
    assert found.gain.tolist() == pytest.approx([expected["gain"]] * 2)
    assert found.p_value.tolist() == pytest.approx([expected["p_value"]] * 2)


def test_the_first_size_is_that_of_the_restructured_model():
    model = zoo.load("digits_cnn")
    masks = {"conv1": np.arange(16) < 5}
    expected = restructure(model, masks).count_params()
    assert restructured_size(model, masks) == expected < model.count_params()
    assert restructured_size(model, {}) == model.count_params()
