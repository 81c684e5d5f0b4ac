"""The command line: the way from a model to a picture, and every other command."""

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.datasets import texts
from support.deviating import mutated
from support.documents import unpack
from support.terminal import shown_lines

DATA = "digits:train[:100]"


def test_from_a_model_to_a_picture(nnslicer, files, tmp_path):
    model = ("--model", files / "model.keras")
    profile, one, each = (tmp_path / name for name in ("p.npz", "one.npz", "each.npz"))
    code, out, _ = nnslicer("profile", *model, "--data", DATA, "--output", profile)
    assert code == 0
    assert "100 samples" in out and str(profile) in out

    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    x = datasets.load("digits", "train[:100]").x
    expected = nns.Profile.from_data(im, x, progress=False)
    saved = nns.Profile.load(profile)
    for name, mean in expected.means.items():
        assert np.array_equal(saved.means[name], mean)

    options = ("--profile", profile, "--data", "digits:test[:5]", "--theta", 0.25)
    code, out, _ = nnslicer("slice", *model, *options, "--outputs", "3,7", "--output", one)
    assert (code, str(one) in out) == (0, True)
    slicer = nns.Slicer(im, expected, theta=0.25, workers=0, progress=False)
    x = datasets.load("digits", "test[:5]").x
    assert nns.Slice.load(one) == slicer.slice(x, outputs=[3, 7])

    code, out, _ = nnslicer("slice", *model, *options, "--each", "--workers", 0, "--output", each)
    assert code == 0
    rows, wanted = nns.SliceSet.load(each), slicer.slice_each(x)
    assert len(rows) == 5
    assert all(a == b for a, b in zip(rows, wanted))

    picture = tmp_path / "one.png"
    code, out, _ = nnslicer("show", one, "--plot", picture)
    assert code == 0
    kept = np.count_nonzero(nns.Slice.load(one).synapses["conv2"])
    assert re.search(rf"^\s*conv2 .* {kept:,} +4,608 ", out, re.MULTILINE)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "5 slices" in nnslicer("show", each)[1]
    assert "100 samples" in nnslicer("show", profile)[1]

    page = tmp_path / "slices.html"
    data = ("--data", "digits:test[:5]", "--profile", profile, "--output", page)
    names = "zero, one, two, three, four, five, six, seven, eight, nine"
    code, out, _ = nnslicer("explore", one, each, *model, *data, "--classes", names)
    assert (code, str(page) in out) == (0, True)
    header = _explored(page)
    assert [e["name"] for e in header["exhibits"]] == ["one", "each"]
    assert [len(e["parts"]) for e in header["exhibits"]] == [1, 5]
    assert header["classes"] == names.split(", ") and header["models"][0]["means"]
    kept = header["exhibits"][0]["parts"][0]["kept"]
    assert list(kept.values())[1] == np.count_nonzero(nns.Slice.load(one).synapses["conv2"])


def _explored(page):
    data = re.search(r'octet-stream">([^<]*)<', page.read_text(encoding="utf-8"))[1]
    return unpack(base64.b64decode(data))[0]


def test_sentences_are_explored_with_their_words(nnslicer, shared, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    zoo.load("text_transformer").save(tmp_path / "model.keras")
    model = ("--model", tmp_path / "model.keras")
    test = ("--data", "sst2:test[:2]")
    assert nnslicer("profile", *model, *test, "--output", tmp_path / "p.npz")[0] == 0
    profile = ("--profile", tmp_path / "p.npz")
    made = nnslicer("slice", *model, *test, *profile, "--each", "--output", tmp_path / "s.npz")
    assert made[0] == 0
    page = tmp_path / "s.html"
    assert nnslicer("explore", tmp_path / "s.npz", *model, *test, "--output", page)[0] == 0
    first = texts.load("sst2", "test").text[0]
    assert _explored(page)["rows"][0]["words"] == first.strip().split()


def test_only_slices_can_be_explored(nnslicer, files, tmp_path):
    model = ("--model", files / "model.keras", "--output", tmp_path / "a.html")
    code, _, errors = nnslicer("explore", files / "profile.npz", *model)
    assert code == 2 and "only slices can be explored" in errors
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("name", ["data.npz", "labelled.npz"])
def test_files_with_and_without_labels(nnslicer, files, tmp_path, name):
    output = tmp_path / "profile.npz"
    arguments = ("--model", files / "model.keras", "--data", files / name, "--output", output)
    assert nnslicer("profile", *arguments)[0] == 0
    saved, expected = nns.Profile.load(output), nns.Profile.load(files / "profile.npz")
    assert np.array_equal(saved.means["logits"], expected.means["logits"])


def test_channel_granularity(nnslicer, files, tmp_path):
    output = tmp_path / "slice.npz"
    arguments = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    options = ("--data", files / "data.npz", "--granularity", "channel", "--output", output)
    assert nnslicer("slice", *arguments, *options)[0] == 0
    assert nns.Slice.load(output).neurons["conv1"].shape == (16,)


def test_a_checkpoint_is_resumed(nnslicer, files, tmp_path):
    folder = tmp_path / "parts"
    arguments = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    arguments += ("--data", files / "data.npz", "--checkpoint", folder)
    outputs = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for output in outputs:
        assert nnslicer("slice", *arguments, "--output", output)[0] == 0
        assert any(folder.iterdir())
    assert nns.Slice.load(outputs[0]) == nns.Slice.load(outputs[1])


def test_the_task_may_be_stated(nnslicer, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    files = ("--model", tmp_path / "model.keras", "--data", tmp_path / "x.npy")
    profile = ("--profile", tmp_path / "profile.npz")
    assert nnslicer("profile", *files, "--output", profile[1])[0] == 0
    label = int(model.predict(x[3:4], verbose=0).item() > 0)
    chosen = (*profile, "--index", 3, "--output", tmp_path / "explanation.html")
    code, out, _ = nnslicer("--task", "binary", "explain", *files, *chosen)
    assert code == 0 and f"answers {label} with" in shown_lines(out)[0]
    code, out, _ = nnslicer("explain", *files, *chosen)
    assert code == 0 and f"answers {label} with" not in out and "nnslicer --task binary" in out
    code, _, errors = nnslicer("--task", "multiclass", "explain", *files, *chosen)
    assert code == 2 and "'binary' for one output value" in errors
    code, _, errors = nnslicer("--task", "binari", "explain", *files, *chosen)
    assert code == 2 and "Did you mean 'binary'?" in errors


def test_explain_says_why(nnslicer, files, tmp_path):
    common = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    chosen = ("--data", "digits:test", "--index", 13, "--usual", "digits:train[:100]")
    page = tmp_path / "why.html"
    code, out, errors = nnslicer("explain", *common, *chosen, "--output", page)
    assert (code, shown_lines(errors)) == (0, [])
    assert "The model answers 7" in out and "of its synapses are typical" in out
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.load(files / "profile.npz")
    one = nns.Slicer(im, profile, workers=0, progress=False).slice(
        datasets.load("digits", "test[13:14]").x
    )
    assert f"{np.count_nonzero(one.to_vector()):,} of 6,032" in out
    assert "data:image/png;base64" in page.read_text(encoding="utf-8")
    contrast = ("--target", 7, "--instead-of", 4, "--background", "digits:train[:20]")
    code, out, _ = nnslicer("explain", *common, *chosen[:4], *contrast, "--output", page)
    assert code == 0 and "Decisive slice for 7 rather than 4" in out
    assert "Against 20 background rows" in out
    code, _, errors = nnslicer("explain", *common, "--data", "digits", "--index", 360)
    assert code == 2 and "the samples are 0 … 359" in errors


def test_decisive_slices_are_made_shown_and_explored(nnslicer, files, tmp_path):
    common = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    output, data = tmp_path / "decisive.npz", ("--data", "digits:test[:2]")
    code, out, _ = nnslicer("slice", *common, *data, "--decisive", "--output", output)
    found = nns.slicing.DecisiveSlices.load(output)
    assert code == 0 and str(found.certificate["size"][1]) in out and len(found) == 2
    assert f"{found.certificate['size'][0]}" in nnslicer("show", output)[1]
    for index in (0, 1):
        out = nnslicer("show", output, "--sample", index)[1]
        assert " ".join(out.split()).startswith(
            " ".join(f"Sample {index}: {found.summary(index)}".split())
        )
    code, _, errors = nnslicer("show", output, "--sample", 99)
    assert code == 2 and "--sample: the samples are 0 … 1. Received: 99" in errors
    page = tmp_path / "page.html"
    assert nnslicer("explore", output, *common, *data, "--output", page)[0] == 0
    assert page.stat().st_size > 1e5
    # Two models: a model, a profile and slices of each.
    zoo.build("digits_cnn").save(tmp_path / "other.keras")
    other = ("--model", tmp_path / "other.keras", "--profile", tmp_path / "other.npz")
    train = ("--data", "digits:train[:100]", "--output", other[-1])
    assert nnslicer("profile", *other[:2], *train)[0] == 0
    before = tmp_path / "before.npz"
    assert nnslicer("slice", *other, *data, "--decisive", "--output", before)[0] == 0
    two = (before, output, *other, *common, *data, "--output", page)
    assert nnslicer("explore", *two)[0] == 0
    header = _explored(page)
    assert [(e["name"], e["model"]) for e in header["exhibits"]] == [("before", 0), ("decisive", 1)]
    assert len({m["fingerprint"] for m in header["models"]}) == 2
    code, _, errors = nnslicer("show", output, "--plot", tmp_path / "slice.png")
    assert code == 2 and "holds decisive slices" in errors
    code, _, errors = nnslicer("slice", *common, *data, "--decisive", "--outputs", 3)
    assert code == 2 and "Omit --outputs" in errors
    options = ("--level", "channel", "--reference", "zero", "--min-probability", 0.3)
    code, _, _ = nnslicer("slice", *common, *data, "--decisive", *options, "--output", output)
    info = nns.slicing.DecisiveSlices.load(output).info
    assert code == 0 and [info[n] for n in ("level", "reference")] == ["channel", "zero"]
    assert info["min_probability"] == 0.3
    # Slices that were not found are shown, with the argument that changes it.
    options = ("--max-share", 0.001, "--needed", "--minimal", "--max-divergence", 0.5)
    code, out, _ = nnslicer("slice", *common, *data, "--decisive", *options, "--output", output)
    found = nns.slicing.DecisiveSlices.load(output)
    assert code == 0 and not found.certificate["found"].any() and found.certificate["minimal"].all()
    assert (
        "Not found, because it has more than 0.1 % of the synapses" in out and found.info["needed"]
    )
    # Others' values: the profile's samples, or data.
    channels = ("--decisive", "--level", "channel", "--at-least", 0.8, "--output", output)
    code, _, errors = nnslicer("slice", *common, *data, *channels)
    assert code == 2 and "with 27 samples or more. Received: reference 'samples' with 20" in errors
    of_data = ("--reference", "digits:train[:120]")
    code, _, _ = nnslicer("slice", *common, *data, *channels, *of_data)
    found = nns.slicing.DecisiveSlices.load(output)
    assert code == 0 and found.info["reference"] == "samples"
    tested = found.certificate["scope donors"]  # half of the data at most: a test may stop early
    assert ((tested >= 10) & (tested <= 60)).all()
    code, _, errors = nnslicer("slice", *common, *data, *channels, "--reference", "zero")
    assert code == 2 and "pass reference=Samples(x)" in errors
    wrong = ("--decisive", "--level", "layer")
    code, _, errors = nnslicer("slice", *common, *data, *wrong)
    assert code == 2 and "level" in errors


def test_prune_writes_a_smaller_model(nnslicer, files, tmp_path):
    model = ("--model", files / "model.keras", "--data", "digits", "--test", "digits:test")
    options = ("--classes", "3,5", "--by", "channel", "--output", tmp_path / "small.keras")
    code, out, _ = nnslicer("prune", *model, *options)
    assert code == 0 and "Accuracy on the test data" in out
    small = keras.models.load_model(tmp_path / "small.keras")
    assert small.count_params() <= 0.25 * 6090
    test = datasets.load("digits", "test")
    chosen = np.isin(test.y, [3, 5])
    right = small(test.x[chosen]).numpy().argmax(1) == (test.y[chosen] == 5)
    assert f"{right.mean():.4g}" in out
    code, _, errors = nnslicer("prune", *model, "--classes", "3", "--output", tmp_path / "a.keras")
    assert code == 2 and "needs two classes" in errors


def test_deviations_become_a_table_a_picture_and_a_suite(nnslicer, files, tmp_path, monkeypatch):
    from nnslicer_tf import dflare

    original = zoo.load("digits_cnn")
    mutated(original, 0.9).save(tmp_path / "mutated.keras")
    arguments = ("--original", files / "model.keras", "--compressed", tmp_path / "mutated.keras")
    outputs = ("--output", tmp_path / "d.npz", "--table", tmp_path / "d.csv")
    outputs += ("--picture", tmp_path / "d.png", "--suite", tmp_path / "suite")
    limits = ("--max-queries", 500, "--max-distance", 80, "--minimise")
    data = ("--data", "digits:test[:8]")
    code, out, _ = nnslicer("deviations", *arguments, *data, *outputs, *limits)
    assert code == 0
    found = dflare.DeviationSet.load(tmp_path / "d.npz")
    assert found.found.any()
    changes = np.abs(found.seeds[found.found].astype(int) - found.images)
    assert 0 < changes.max() <= 80
    assert f"{int(found.found.sum())} found from 8 seeds" in out
    assert "true label" in (tmp_path / "d.csv").read_text()
    assert (tmp_path / "d.png").read_bytes()[:4] == b"\x89PNG"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "suite")]
    for model, code in ((files / "model.keras", 0), (tmp_path / "mutated.keras", 1)):
        environment = {**os.environ, "COMPRESSED_MODEL": str(model)}
        done = subprocess.run(run, env=environment, capture_output=True, cwd=tmp_path)
        assert done.returncode == code, done.stdout


# Noise is unlike the profiled digits, as the slicer says.
@pytest.mark.filterwarnings("ignore:The mean of the inputs:nnslicer_tf.errors.InputRangeWarning")
def test_detect_flags_inputs(nnslicer, files, tmp_path):
    common = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    noise = np.random.default_rng(0).uniform(size=(10, 8, 8, 1)).astype(np.float32)
    np.save(tmp_path / "noise.npy", noise)
    table = tmp_path / "flags.csv"
    page = tmp_path / "seen.html"
    options = ("--normal", "digits:train[:600]", "--preset", "margin", "--output", table)
    options += ("--explore", page)
    code, out, _ = nnslicer("detect", *common, "--data", tmp_path / "noise.npy", *options)
    assert code == 0 and "of 10 flagged" in out
    lines = table.read_text().splitlines()
    assert lines[0] == "sample,predicted,anomaly,adversarial" and len(lines) == 11
    assert sum(line.endswith("True") for line in lines) == int(re.search(r"(\d+) of 10", out)[1])
    assert f"Written to {page}" in out and page.read_text().startswith("<!doctype html>")


def test_cover_and_inspect(nnslicer, files):
    from nnslicer_tf import deepxplore

    model = ("--model", files / "model.keras")
    code, out, _ = nnslicer("cover", *model, "--data", "digits:test[:50]", "--threshold", 0.5)
    coverage = deepxplore.NeuronCoverage(
        nns.InstrumentedModel(zoo.load("digits_cnn")), threshold=0.5
    )
    coverage.update(datasets.load("digits", "test[:50]").x)
    assert code == 0 and f"{coverage.total():.1%} of the neurons" in out
    ranges = ("--criterion", "boundary", "--train", "digits:train[:50]")
    code, out, _ = nnslicer("cover", *model, "--data", "digits:test[:50]", *ranges)
    im, train = coverage.im, datasets.load("digits", "train[:50]").x
    corners = deepxplore.BoundaryCoverage(deepxplore.NeuronRanges.from_data(im, train))
    corners.update(datasets.load("digits", "test[:50]").x)
    assert code == 0 and f"{corners.total():.1%} of the corners" in out
    code, _, said = nnslicer("cover", *model, "--data", "digits", *ranges[:2])
    assert code == 2 and "--train" in said
    code, out, _ = nnslicer("inspect", *model, "--data", "digits:train[:300]", "--units", "relu2")
    assert code == 0 and "relu2" in out and "correlation" in out


WRITERS = {
    "table": (pd.DataFrame, "to_csv", "t.csv", ("cover", "--data", "data.npz", "--output")),
    "picture": (Figure, "savefig", "t.png", ("show", "slice.npz", "--plot")),
    "model": (
        *(keras.Model, "save", "t.keras"),
        ("prune", "--data", "labelled.npz", "--classes", "3,5", "--by", "channel", "--output"),
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_an_output_stays_until_the_new_one_is_complete(
    nnslicer, files, tmp_path, monkeypatch, kind
):
    owner, method, name, (command, *arguments) = WRITERS[kind]
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    slicer = nns.Slicer(im, nns.Profile.load(files / "profile.npz"), workers=0, progress=False)
    slicer.slice(np.load(files / "data.npz")["x"][:1]).save(files / "slice.npz")

    def fail(self, path, *args, **kwargs):
        if isinstance(path, (str, Path)):  # pictures are drawn in memory first
            Path(path).write_bytes(b"half a file")
        raise OSError("No space left on device")

    monkeypatch.setattr(owner, method, fail)
    output = tmp_path / name
    output.write_bytes(b"a good file")
    given = [files / a if a.endswith(".npz") else a for a in arguments]
    model = () if command == "show" else ("--model", files / "model.keras")
    code, _, errors = nnslicer(command, *given, output, *model)
    assert code == 2 and "No space left" in errors
    assert output.read_bytes() == b"a good file"
    assert list(tmp_path.iterdir()) == [output]


def test_lines_between_samples_and_between_points(nnslicer, files, tmp_path):
    from nnslicer_tf import exactline

    model = ("--model", files / "model.keras")
    data = ("--data", "digits:test", "--from", 0, "--to", 13, "--picture", tmp_path / "l.png")
    code, out, _ = nnslicer("lines", *model, *data)
    im, x = nns.InstrumentedModel(zoo.load("digits_cnn")), datasets.load("digits", "test").x
    line = exactline.exact_line(im, x[0], x[13])
    assert code == 0 and f"{line!r}, {len(line.classify())} regions" in out
    assert (tmp_path / "l.png").exists()
    code, _, errors = nnslicer("lines", *model, "--from", "0,1", "--to", "1,0")
    assert code == 2 and "--from has 2 values; a sample of the model has 64" in errors


def test_profile_takes_the_training_split_and_says_so(nnslicer, files, tmp_path):
    output = tmp_path / "p.npz"
    arguments = ("--model", files / "model.keras", "--data", "digits", "--output", output)
    code, out, _ = nnslicer("profile", *arguments)
    assert code == 0 and "(digits:train)" in out
    assert nns.Profile.load(output).samples == 1_437


@pytest.mark.parametrize("name", ["p.json", "p"])
def test_results_need_their_ending(nnslicer, files, tmp_path, name):
    arguments = ("--model", files / "model.keras", "--data", DATA, "--output", tmp_path / name)
    code, _, errors = nnslicer("profile", *arguments)
    assert code == 2 and "end in .npz" in errors


def test_show_shows_every_sample(nnslicer, files, tmp_path):
    each = tmp_path / "each.npz"
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.load(files / "profile.npz")
    found = nns.Slicer(im, profile, workers=0, progress=False).slice_each(
        datasets.load("digits", "test[:3]").x
    )
    found.save(each)
    out = nnslicer("show", each)[1]
    for row in found.to_frame().itertuples():
        assert re.search(rf"^ *{row.sample} +{row.predicted} +{row.synapses} ", out, re.MULTILINE)
    kept = np.count_nonzero(found[1].synapses["conv2"])
    out = nnslicer("show", each, "--sample", 1)[1]
    assert re.search(rf"conv2 .* {kept:,} +4,608 ", out)


def test_the_version(nnslicer):
    assert nnslicer("--version") == (0, f"nnslicer_tf {nns.__version__}\n", "")


def masked_accuracy(file, chosen):
    """Accuracy on digits with the synapses outside a saved slice set to zero, by hand."""
    with np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    model = zoo.load("digits_cnn")
    kernels = [layer for layer in model.layers if layer.weights]
    for position, layer in enumerate(kernels):
        kernel, bias = layer.get_weights()
        layer.set_weights([kernel * (arrays[f"synapses{position}"] != 0), bias])
    test = datasets.load("digits", "test")
    correct = np.asarray(model(test.x)).argmax(axis=1) == test.y
    return correct[chosen(test.y)].mean()


def test_demo(nnslicer, tmp_path):
    folder = tmp_path / "results" / "demo"
    code, out, _ = nnslicer("demo", "--output", folder)
    assert code == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"profile.npz", "why.html", "explore.html", "class.npz", "slices.png"}
    found = re.search(r"With ([\d.]+)% of the synapses.* ([\d.]+)% of the 7s are right", out)
    vector = nns.Slice.load(folder / "class.npz").to_vector()
    assert found[1] == f"{100 * np.mean(vector != 0):.1f}"
    accuracy = masked_accuracy(folder / "class.npz", lambda y: y == 7)
    assert found[2] == f"{100 * accuracy:.1f}"
    assert accuracy > 0.9
    assert "Why 7 rather than 8?" in (folder / "why.html").read_text(encoding="utf-8")
    assert (folder / "slices.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
