"""The paper's experiments, whole, on a pair of the zoo."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr, wilcoxon

from nnslicer_tf import datasets, zoo
from nnslicer_tf.dflare import as_classifier, with_softmax
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.copies import copy_model
from reproduction.dflare import methods
from reproduction.dflare.agreement import agreement, paper_agreement
from reproduction.dflare.pairs import load_pair, uint8_images
from reproduction.dflare.searches import ablation, dissemination, layers, repair, search, sentences
from reproduction.dflare.settings import (
    AblationSettings,
    AgreementSettings,
    DisseminationSettings,
    LayerSettings,
    PairSettings,
    RepairSettings,
    SearchSettings,
    SentenceSettings,
)

PAIR = ["digits_cnn-pruned"]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Few seeds; searches are kept for all tests."""
    return {"seeds": 8, "repeats": 2, "max_queries": 2_000, "work": tmp_path_factory.mktemp("w")}


def test_search_goes_on(few, monkeypatch):
    settings = SearchSettings(**few, pairs=PAIR, diffchaser_seeds=2)
    found = search(settings)
    runs = found.table("search_runs")
    assert runs["method"].tolist() == 2 * ["DFlare"] + 2 * ["Algorithm 1"] + ["DiffChaser"]
    assert runs["rng"].tolist() == [0, 1, 0, 1, 0]
    means = found.table("search").set_index("method")
    assert means.loc["DFlare", "success_rate"] == 1 and means.loc["DFlare", "verified"] == 8
    (axis,) = found.figures[0].figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == PAIR
    drawn = {line.get_label(): line.get_xdata().tolist() for line in axis.lines}
    medians = runs.groupby("method")["median_queries"].mean()
    assert drawn == {name: [medians[name]] for name in ("DFlare", "Algorithm 1", "DiffChaser")}
    timeouts = found.table("search_timeouts").set_index("method")
    assert timeouts["searches"].to_dict() == {"DFlare": 16, "Algorithm 1": 16, "DiffChaser": 2}
    swept = methods.Sweep(settings)
    pair = swept.pair(PAIR[0])
    seconds = np.concatenate([swept.search(pair, "DFlare", k, 8).seconds for k in (0, 1)])
    for limit in (15, 10, 5, 1, 0.1):
        assert timeouts.loc["DFlare", f"within {limit:g} s"] == np.mean(seconds <= limit)
    assert timeouts.loc["DFlare", "slowest found, s"] == seconds.max()
    again = search(settings).table("search_runs")
    pd.testing.assert_frame_equal(again, runs)


def test_agreement_counts_what_the_models_say(tmp_path):
    """Beside the two models, asked one by one, and the labels."""
    settings = AgreementSettings(pairs=PAIR, images=300, work=tmp_path)
    table = agreement(settings).table("agreement").set_index("split")
    pair = load_pair(PAIR[0], work=tmp_path / "pairs")
    data = datasets.load("digits", "test[:300]")
    original, compressed = (
        load().predict(data.x, verbose=0).argmax(axis=1)
        for load in (pair.load_original, pair.load_compressed)
    )
    row = table.loc["test"]
    assert row["deviations"] == (original != compressed).sum() > 0
    assert row["inputs"] == 300
    assert row["original"] == pytest.approx((original == data.y).mean())
    assert row["compressed"] == pytest.approx((compressed == data.y).mean())
    assert agreement(settings).table("agreement")["deviations"].sum() == table["deviations"].sum()


def test_agreement_is_measured_again_for_other_weights(tmp_path, monkeypatch):
    settings = AgreementSettings(pairs=PAIR, images=300, work=tmp_path)
    before = agreement(settings).table("agreement")
    other = zoo.load("digits_cnn")
    weights = other.get_weights()
    weights[-1] = weights[-1] + 100 * (np.arange(10) == 3)  # always answers 3
    other.set_weights(weights)
    monkeypatch.setattr(zoo, "load", lambda name: other)
    after = agreement(settings).table("agreement")
    share = np.mean(datasets.load("digits", "test[:300]").y == 3)
    assert after["original"].tolist()[1] == pytest.approx(share) != before["original"][1]


def test_agreement_stands_beside_the_paper():
    assert paper_agreement("lenet1", "train")["paper_deviations"] == "83"
    assert paper_agreement("resnet20", "test")["paper_original"] == pytest.approx(0.912)
    assert paper_agreement("lenet5-pruned", "test") == {
        "paper_pair": "like LeNet-5 Prune",
        "paper_original": pytest.approx(0.9913),
        "paper_compressed": pytest.approx(0.9899),
    }
    assert paper_agreement(PAIR[0], "test") == {}


def test_ablation_takes_known_methods(few):
    found = ablation(AblationSettings(**few, pairs=PAIR, method=["DFlare_R"]))
    assert found.table("ablation")["method"].tolist() == ["DFlare_R"]
    with pytest.raises(InvalidArgumentError, match="Unknown method 'DFlares'"):
        ablation(AblationSettings(**few, pairs=PAIR, method=["DFlares"]))


def test_methods_are_compared_seed_by_seed(few):
    settings = AblationSettings(**few, pairs=PAIR, method=["Algorithm 1", "DFlare_D"])
    (row,) = ablation(settings).table("ablation_wilcoxon").to_dict("records")
    swept = methods.Sweep(settings)
    queries = {
        method: np.mean(
            [swept.search(swept.pair(PAIR[0]), method, repeat, 8).queries for repeat in (0, 1)],
            axis=0,
        )
        for method in settings.method
    }
    change = queries["DFlare_D"] - queries["Algorithm 1"]  # all searches succeed here
    assert row["median change"] == np.median(change) and row["seeds"] == 8
    assert (row["fewer queries"], row["more queries"]) == ((change < 0).sum(), (change > 0).sum())
    expected = wilcoxon(change).pvalue if change.any() else np.nan
    np.testing.assert_allclose(row["p"], expected)


def test_dissemination_has_a_row_for_each_share(few):
    found = dissemination(DisseminationSettings(**few, originals=["digits_cnn"]))
    means = found.table("dissemination")
    assert means["mutated_percent"].tolist() == 2 * [10, 20, 30, 40, 50]
    correlations = found.table("dissemination_correlation")
    assert correlations["mean_queries"].between(-1, 1).all()
    assert "paper_model" not in correlations  # the paper has no such model


def test_layers_are_pruned_one_by_one(few, tmp_path):
    """Beside copies pruned here, and the searches of `find_deviations`."""
    found = layers(LayerSettings(**few, model="digits_cnn", diffchaser_seeds=2))
    means = found.table("layers-digits_cnn").set_index(["layer", "method"])
    model = with_softmax(zoo.load("digits_cnn"))
    names = [layer.name for layer in model.layers if layer.name.startswith("conv")]
    assert len(means) == 2 * len(names) > 2
    data = datasets.load("digits", "test")
    for number, name in enumerate(names, start=1):
        own = copy_model(model)
        kernel = own.get_layer(name).kernel
        limit = np.median(np.abs(kernel))
        kernel.assign(np.where(np.abs(kernel) < limit, 0, kernel))
        right = own.predict(data.x, verbose=0).argmax(axis=1) == data.y
        row = means.loc[number, "DFlare"]
        assert row["accuracy"] == pytest.approx(right.mean()) and row["name"] == name
        assert row["weights"] == np.prod(kernel.shape)
        pair = load_pair(f"digits_cnn-layer{number}", work=tmp_path)
        zeros = np.mean(pair.load_compressed().get_layer(name).kernel.numpy() == 0)
        assert zeros == pytest.approx(0.5, abs=0.01)
    trends = found.table("layer_trend-digits_cnn").set_index("method")
    queries = means.xs("DFlare", level="method").mean_queries
    expected = spearmanr(queries.index, queries).statistic
    assert trends.loc["DFlare", "rank correlation, mean_queries"] == pytest.approx(expected)
    with pytest.raises(InvalidArgumentError, match="'mlp' has no convolution"):
        layers(LayerSettings(**few, model="mlp"))
    with pytest.raises(InvalidArgumentError, match="Unknown model 'resnet21'"):
        layers(LayerSettings(**few, model="resnet21"))
    with pytest.raises(InvalidArgumentError, match="has convolutions 1 to"):
        load_pair("digits_cnn-layer9", work=tmp_path)


def test_repaired_models_are_searched(few):
    found = repair(RepairSettings(**{**few, "seeds": 30, "repeats": 1}, pairs=PAIR, name="mended"))
    assert found.table("mended")["repair_ratio"].between(0, 1).all()
    searched = found.table("mended_search")["method"].tolist()
    assert searched == [
        f"{method}, {when} repair"
        for method in ("DFlare", "Algorithm 1")
        for when in ("without", "with")
    ]
    unsought = found.table("mended_search").set_index("method")["unsought"]
    pair = methods.Sweep(PairSettings(**few)).pair(PAIR[0])
    images = uint8_images("digits", "test")
    labels = [
        as_classifier(load()).probabilities(pair.preprocess(images)).argmax(axis=1)
        for load in (pair.load_original, pair.load_compressed)
    ]
    assert unsought["DFlare, without repair"] == np.mean(labels[0] != labels[1])
    assert unsought["DFlare, with repair"] != unsought["DFlare, without repair"]
    assert found.tables[0].head["queries"] == "at most 2000 a search"
    assert methods.Sweep(PairSettings(**few)).pair(PAIR[0]).dataset == "digits"


def test_sentences(few, tmp_path, monkeypatch):
    rows = ["a warm and funny film .\t1", "it is dull and far too long .\t0", "bad\t0", "good\t1"]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "sst2").mkdir(exist_ok=True)
        (tmp_path / "sst2" / name).write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    monkeypatch.setenv("GLUE_DIR", str(tmp_path))
    settings = {**few, "repeats": 1, "seeds": 3, "max_queries": 400}
    found = sentences(SentenceSettings(**settings, pairs=["text_transformer-pruned"]))
    table, examples = found.table("sentences"), found.table("sentences_examples")
    assert table["method"].tolist() == ["DFlare", "Algorithm 1"]
    assert (table["verified"] == (table["success_rate"] * table["seeds"]).round()).all()
    assert len(examples) and (examples["original"] != examples["compressed"]).all()
    known = {row.split("\t")[0] for row in rows}
    for row in examples.to_dict("records"):
        assert row["seed"] in known and row["models disagree on"] not in known
    with pytest.raises(InvalidArgumentError, match="no pair of text classifiers"):
        sentences(SentenceSettings(**settings, pairs=PAIR))
