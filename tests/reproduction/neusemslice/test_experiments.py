"""The paper's experiments, whole, on the digits."""

from dataclasses import replace

import pandas as pd
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.semantic import METRICS
from reproduction.neusemslice import (
    case_study,
    maintenance,
    slicing,
    trial,
)
from reproduction.neusemslice.case_study import scoring_times
from reproduction.neusemslice.costs import costs
from reproduction.neusemslice.maintenance import develop, restructure
from reproduction.neusemslice.settings import (
    OURS,
    PAPER_SETTINGS,
    SETTINGS,
    WAYS,
    CaseStudySettings,
    MaintenanceSettings,
    ScoringTimeSettings,
)
from reproduction.neusemslice.slicing import intervals, layers
from reproduction.neusemslice.trial import Repeats, SlicedModel
from reproduction.zoo import recipes


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Repeats of the perceptron on the digits; models are trained once for all tests."""
    work = tmp_path_factory.mktemp("work")
    sizes = {"images": 500, "epochs": 2, "tests": 100, "samples": 100}
    return MaintenanceSettings("mlp", "digits", metrics="avg", repeats=2, **sizes, work=work)


def test_slicing(settings, monkeypatch):
    fewer = {way: chosen[::6] for way, chosen in SETTINGS.items()}
    monkeypatch.setattr(slicing, "SETTINGS", fewer)
    found = slicing.slicing(settings)
    curves = found.table("figure5-mlp-digits")
    assert len(curves) == 2 * (1 + sum(map(len, fewer.values())))
    assert found.table("table4-mlp-digits")["method"].unique().tolist() == list(WAYS[2:])
    assert found.table("table1-mlp-digits").columns.tolist()[:2] == ["range", "avg"]
    assert found.tables[0].head["seeds"] == "0 … 1"
    # What is on file is not computed again.
    monkeypatch.setattr(slicing, "SlicedModel", None)
    pd.testing.assert_frame_equal(slicing.slicing(settings).tables[0].frame, curves)


def test_slices_that_grow_by_many_neurons_leave_small_layers_whole(settings, monkeypatch, tmp_path):
    fewer = {way: chosen[4::5] for way, chosen in PAPER_SETTINGS.items()}
    monkeypatch.setattr(slicing, "SETTINGS", fewer)
    settings = replace(settings, repeats=1, work=tmp_path)
    found = intervals(settings)
    curves = found.table("intervals-mlp-digits").set_index(["metric", "method", "setting"])
    assert list(curves.index.levels[0]) == [f"avg, i = {i}" for i in (1, 16, 256, 64)]
    # The curve of one interval alone is the same; the cost of masking ranks is not asked again.
    alone = slicing.slicing(replace(settings, interval=64))
    names = ["figure5-mlp-digits-interval64", "table4-mlp-digits-interval64"]
    assert [table.name for table in alone.tables] == names
    again = alone.table(names[0]).dropna(subset="metric").set_index(["method", "setting"])
    expected = curves.loc["avg, i = 64", ["compression", "accuracy"]]
    pd.testing.assert_frame_equal(again[["compression", "accuracy"]], expected)
    whole = curves.compression.xs("NeuSemSlice", level="method").unstack("metric")
    assert (whole["avg, i = 256"] <= whole["avg, i = 1"]).all()
    others = curves.accuracy.xs("Global", level="method").unstack("metric")
    assert (others.nunique(axis=1) == 1).all()
    for interval in (1, 256):
        model = Repeats(replace(settings, interval=interval)).trial(0)
        critical = SlicedModel(model, "avg").slice("NeuSemSlice", 0.5)
        sizes = {len(mask): mask.sum() for mask in critical.values()}
        assert sizes[256] == 256 if interval == 256 else sizes[256] < 256
    areas = found.table("intervals-mlp-digits-tests")
    assert areas["metric"].nunique() == 4
    assert found.figures[0].name == "intervals-mlp-digits"


def test_intervals_are_compared_not_chosen(settings):
    with pytest.raises(InvalidArgumentError, match="leave out --interval"):
        intervals(replace(settings, interval=64))


def test_restructuring(settings):
    found = restructure(replace(settings, tolerance=0.05))
    means = found.table("table5-50permille-mlp-digits")
    assert len(means) == 1 + 4 * 5 and means["CR"].between(0, 1).all()
    assert len(found.table("table5-50permille-mlp-digits-runs")) == 2 * len(means)
    assert set(found.table("table5-50permille-mlp-digits-tests")["figure"]) == {"CR", "NI", "MA"}


def test_readaptation(settings, monkeypatch):
    fgsm = maintenance.attacks(0.1)[:1]
    monkeypatch.setattr(maintenance, "attacks", lambda epsilon: fgsm)
    found = maintenance.readapt(replace(settings, repeats=1, attacked=20))
    means = found.table("table6-mlp-digits").set_index(["attack", "method"])
    assert means.loc[("FGSM", "Fully Training"), "TPR"] == 1
    assert found.tables[0].head["adaptation"].startswith("10 epochs of Adam on 20 attacked")


@pytest.mark.parametrize("scenario", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_development(settings, scenario):
    found = develop(replace(settings, scenario=scenario, repeats=1))
    means = found.table(f"table{6 + scenario}-mlp-digits").set_index("method")
    assert means.loc["Original", "TaskB"] == 0
    assert means.loc["Replay 100%", "Avg"] > means.loc["Retrain", "Avg"]


def test_costs_of_maintenance(settings):
    found = costs(replace(settings, repeats=1, attacked=20))
    table = found.tables[0].frame.set_index(["task", "method"])
    assert (table["seconds"] > 0).all()
    trained = table.loc["re-adaptation", "share trained"]
    assert trained["Fully Training"] == 1 > trained[OURS[1]] > 0
    kept = table.loc["development", "kilobytes"]
    images = int((Repeats(settings).data["train"].y < 5).sum())  # of the first task
    assert kept["Replay 100%"] == pytest.approx(images * 64 / 1000)
    assert kept["Replay 10%"] == pytest.approx(round(0.1 * images) * 64 / 1000)
    assert kept["Retrain"] == 0 < kept[OURS[1]]


def test_repeats_that_ran_by_themselves_are_read(settings, tmp_path, monkeypatch):
    few = replace(settings, images=100, samples=50, work=tmp_path, tolerance=0.5)
    single = [restructure(replace(few, repeats=1, first_seed=seed)) for seed in (3, 2)]
    monkeypatch.setattr(maintenance, "restructure_rows", None)
    both = restructure(replace(few, repeats=2, first_seed=2))
    runs = both.table("table5-500permille-mlp-digits-runs")
    assert runs["seed"].drop_duplicates().tolist() == [2, 3]
    for seed, alone in zip((3, 2), single, strict=True):
        expected = alone.table("table5-500permille-mlp-digits-runs")
        pd.testing.assert_frame_equal(runs[runs["seed"] == seed].reset_index(drop=True), expected)
    assert both.tables[0].head["seeds"] == "2 … 3"


def test_models_are_trained_by_the_zoos_recipe(settings, tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(recipes, "train", lambda model, data, recipe, **_: used.append(recipe))
    monkeypatch.setattr(trial, "warn_of_failure", lambda *_: None)
    for recipe in ("plain", "zoo"):
        s = MaintenanceSettings(
            "plainnet20", "cifar10", epochs=7, recipe=recipe, precision="mixed_bfloat16"
        )
        repeats = Repeats(replace(s, work=tmp_path))
        repeats.data = Repeats(settings).data
        repeats.trial(0)
        assert recipe == "plain" or "by the zoo's recipe" in repeats.training
    plain, like_the_zoo = used
    assert plain == recipes.Recipe(epochs=7, precision="mixed_bfloat16")
    own = recipes.RECIPES["plainnet20"]
    assert own.sizes and own.epochs != 7
    assert like_the_zoo == replace(own, epochs=7, precision="mixed_bfloat16", sizes=())


def test_a_model_that_has_not_learned_is_named(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "train", lambda *_, **__: None)
    repeats = Repeats(replace(settings, work=tmp_path))
    with pytest.warns(UserWarning, match="seed 1 has not learned: .* 20.0% would be by chance"):
        repeats.trial(1, classes=range(5))


def test_more_images_than_there_are_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="--images 5000 are more than"):
        restructure(MaintenanceSettings("mlp", "digits", images=5_000, work=tmp_path))


@pytest.fixture
def zoo_settings(tmp_path):
    """The zoo's convolutional network on the digits."""
    sizes = {"tests": 100, "samples": 50}
    return MaintenanceSettings(
        "digits_cnn", "digits", repeats=1, weights="zoo", **sizes, work=tmp_path
    )


def test_the_zoos_model_is_sliced(zoo_settings, monkeypatch):
    fewer = {way: chosen[4::5] for way, chosen in PAPER_SETTINGS.items()}
    monkeypatch.setattr(slicing, "SETTINGS", fewer)
    found = slicing.slicing(zoo_settings)
    curves = found.table("figure5-digits_cnn-digits").set_index(["method", "setting"])
    model, test = zoo.load("digits_cnn", "digits"), datasets.load("digits", "test[:100]")
    right = zoo.accuracy(model, test)
    assert curves.accuracy[("Global", 1.0)] == right
    assert f"weights of the zoo, {right:.1%} right" in found.tables[0].head["sizes"]


def test_the_zoo_has_one_model_of_all_classes(zoo_settings):
    with pytest.raises(InvalidArgumentError, match="--weights zoo needs --repeats 1"):
        replace(zoo_settings, repeats=5)
    with pytest.raises(InvalidArgumentError, match="no --first-seed"):
        replace(zoo_settings, first_seed=1)
    with pytest.raises(InvalidArgumentError, match="know all classes"):
        develop(zoo_settings)


def accuracy_without(model, layer, mask, data):
    """The model's accuracy with zeros for the weights into a layer's masked neurons."""
    weights = [w.copy() for w in model.get_layer(layer).get_weights()]
    model.get_layer(layer).set_weights([w * mask for w in weights])
    right = zoo.accuracy(model, data)
    model.get_layer(layer).set_weights(weights)
    return right


def test_what_slices_take_from_each_layer(settings, monkeypatch):
    """The parts' shares add up to the slice's, and each part's accuracy is that of its mask."""
    settings = replace(settings, repeats=1)
    trial = Repeats(settings).trial(0)
    sliced = SlicedModel(trial, settings.metric)
    # Scores that are computed again may differ in their last bits, and slices by a neuron.
    monkeypatch.setattr("reproduction.neusemslice.slicing.SlicedModel", lambda *_: sliced)
    found = layers(settings)
    rows, tests = found.table("layers-mlp-digits"), found.table("layers-mlp-digits-tests")
    whole = rows[rows["layer"] == "all"].set_index(["wanted", "method"])["accuracy"]
    for _, row in tests.iterrows():
        apart = whole[row["wanted"], row["method"]] - whole[row["wanted"], row["against"]]
        assert row["gain"] == pytest.approx(apart)
    groups = ["all convolutions", "all dense layers"]
    for (wanted, way), part in rows.groupby(["wanted", "method"]):
        part = part.set_index("layer")
        kept = part.neurons * part.kept
        singles = part.index.difference([*groups, "all"])
        assert len(singles) == 2
        assert kept[singles].sum() == pytest.approx(kept["all"])
        assert kept[[g for g in groups if g in kept]].sum() == pytest.approx(kept["all"])
        critical = sliced.of_size(way, wanted)
        assert part.accuracy["all"] == zoo.accuracy(sliced.masked(critical), trial.test)
        for layer in singles:
            expected = accuracy_without(trial.model, layer, critical[layer], trial.test)
            assert part.accuracy[layer] == expected
        # The weights into masked neurons are a part of what restructuring removes.
        assert 0 < part.into["all"] < part.compression["all"]
        assert part.into[singles].sum() == pytest.approx(part.into["all"])


def test_times_of_the_metrics_stand_beside_the_papers(shared_data):
    found = scoring_times(ScoringTimeSettings("lenet5", "mnist", images=30, runs=2)).tables[0]
    table = found.frame.set_index("metric")
    assert (table.seconds > 0).all() and (table.least <= table.most).all()
    assert list(table.index) == list(METRICS)
    assert table["paper seconds"].dropna().to_dict() == {
        "avg": 5.4,
        "var": 5.5,
        "ens": 5.6,
        "deeplift": 30.9,
        "taylor": 6.2,
    }
    assert found.head["images"] == "30 of mnist"


def test_case_study_of_a_trained_model(tmp_path, monkeypatch):
    monkeypatch.setattr(slicing, "SETTINGS", {way: (0.3, 0.9) for way in WAYS})
    s = CaseStudySettings(
        "digits_cnn", "digits", metrics="taylor", tests=100, samples=50, work=tmp_path
    )
    found = case_study.case_study(s)
    assert len(found.table("figure6-digits_cnn-digits")) == 2 * len(WAYS)

    half = found.table("section56-half-digits_cnn-digits").set_index("method")
    model, test = zoo.load("digits_cnn", "digits"), datasets.load("digits", "test[:100]")
    assert half.accuracy["whole"] == zoo.accuracy(model, test)
    assert half.compression[list(WAYS)].between(0.4, 0.6).all()
    assert half["paper accuracy"]["Global"] == 0.139  # section 5.6

    compressed = found.table("section56-compressed-digits_cnn-digits")
    assert len(compressed) == 4 * (1 + len(WAYS))
    assert compressed.compression.between(0.55, 0.65).all()
    whole = compressed[compressed.method == "whole"].set_index("compressor")
    assert (whole.iterations == 9).all() and whole["paper accuracy"]["Unif"] == 0.1934

    # Slices that grow by as many neurons as the layers have are whole.
    grown = case_study.case_study(replace(s, interval=64))
    curves = grown.table("figure6-digits_cnn-digits-interval64").set_index("method")
    assert (curves.compression[["NeuSemSlice", "NeuSemSlice, centred"]] == 0).all(axis=None)

    # What is on file is not computed again.
    monkeypatch.setattr(case_study, "SlicedModel", None)
    monkeypatch.setattr(slicing, "SlicedModel", None)
    again = case_study.case_study(s).table("section56-compressed-digits_cnn-digits")
    pd.testing.assert_frame_equal(again, compressed)
