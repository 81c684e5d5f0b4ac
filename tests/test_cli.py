"""The command line: the way from a model to a picture, and what happens to bad input."""

import base64
import os
import re
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import cli, datasets, pruning, texts, zoo
from nnslicer_tf.report.explorer import unpack

DATA = "digits:train[:100]"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model, another one, their profiles' data and one profile."""
    folder = tmp_path_factory.mktemp("files")
    zoo.load("digits_cnn").save(folder / "model.keras")
    keras.utils.set_random_seed(0)
    zoo.build("digits_cnn").save(folder / "other.keras")
    digits = datasets.load("digits", "test[:20]")
    np.savez(folder / "data.npz", x=digits.x)
    np.savez(folder / "labelled.npz", x=digits.x, y=digits.y)
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    nns.Profile.from_data(im, digits.x, progress=False).save(folder / "profile.npz")
    return folder


@pytest.fixture
def nnslicer(monkeypatch, capsys):
    """Run the command line in this process; return exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nnslicer", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output = capsys.readouterr()
        return stop.value.code or 0, output.out, output.err

    return run


def shown_lines(errors):
    """The lines that stay on the terminal after progress bars have been wiped out."""
    shown = [line.rsplit("\r", 1)[-1] for line in errors.split("\n")]
    return [line for line in shown if line.strip()]


# --- the good path ---------------------------------------------------------------------


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
    code, out, _ = nnslicer("explore", one, each, *model, *data, "--classes", "zero, one")
    assert (code, str(page) in out) == (0, True)
    header = _explored(page)
    assert [e["name"] for e in header["exhibits"]] == ["one", "each"]
    assert [len(e["parts"]) for e in header["exhibits"]] == [1, 5]
    assert header["classes"] == ["zero", "one"] and header["models"][0]["means"]
    kept = header["exhibits"][0]["parts"][0]["kept"]
    assert list(kept.values())[1] == np.count_nonzero(nns.Slice.load(one).synapses["conv2"])


def _explored(page):
    data = re.search(r'octet-stream">([^<]*)<', page.read_text(encoding="utf-8"))[1]
    return unpack(base64.b64decode(data))[0]


def test_sentences_are_explored_with_their_words(nnslicer, shared, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    zoo.load("text_lstm").save(tmp_path / "model.keras")
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


# --- the other commands ------------------------------------------------------------------


def test_explain_says_why(nnslicer, files, tmp_path):
    common = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    chosen = ("--data", "digits:test", "--index", 13, "--usual", "digits:train[:100]")
    page = tmp_path / "why.html"
    code, out, errors = nnslicer("explain", *common, *chosen, "--output", page)
    assert (code, shown_lines(errors)) == (0, [])
    assert "The model gives 7" in out and "in most slices of the class" in out
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.load(files / "profile.npz")
    one = nns.Slicer(im, profile, workers=0, progress=False).slice(
        datasets.load("digits", "test[13:14]").x
    )
    assert f"{np.count_nonzero(one.to_vector()):,} of 6,032" in out
    assert "data:image/png;base64" in page.read_text(encoding="utf-8")
    code, _, errors = nnslicer("explain", *common, "--data", "digits", "--index", 360)
    assert code == 2 and "samples 0 … 359" in errors


def test_prune_writes_a_smaller_model(nnslicer, files, tmp_path):
    model = ("--model", files / "model.keras", "--data", "digits", "--test", "digits:test")
    options = ("--classes", "3,5", "--by", "channel", "--output", tmp_path / "small.keras")
    code, out, _ = nnslicer("prune", *model, *options)
    assert code == 0 and "Accuracy on the test data" in out
    small = keras.models.load_model(tmp_path / "small.keras")
    assert small.count_params() <= 0.25 * 6090
    test = datasets.load("digits", "test")
    chosen = np.isin(test.y, [3, 5])
    right = small.predict(test.x[chosen], verbose=0).argmax(1) == (test.y[chosen] == 5)
    assert f"{right.mean():.4g}" in out
    code, _, errors = nnslicer("prune", *model, "--classes", "3", "--output", tmp_path / "a.keras")
    assert code == 2 and "two classes at least" in errors


def test_deviations_become_a_table_a_picture_and_a_suite(nnslicer, files, tmp_path, monkeypatch):
    from nnslicer_tf import dflare

    original = zoo.load("digits_cnn")
    dflare.mutate_weights(original, 0.9, rng=0).save(tmp_path / "mutated.keras")
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
@pytest.mark.filterwarnings("ignore:The mean of the inputs:nnslicer_tf.InputRangeWarning")
def test_detect_flags_inputs(nnslicer, files, tmp_path):
    common = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    noise = np.random.default_rng(0).uniform(size=(10, 8, 8, 1)).astype(np.float32)
    np.save(tmp_path / "noise.npy", noise)
    table = tmp_path / "flags.csv"
    options = ("--normal", "digits:train[:600]", "--preset", "margin", "--output", table)
    code, out, _ = nnslicer("detect", *common, "--data", tmp_path / "noise.npy", *options)
    assert code == 0 and "of 10 flagged" in out
    lines = table.read_text().splitlines()
    assert lines[0] == "sample,predicted,anomaly,adversarial" and len(lines) == 11
    assert sum(line.endswith("True") for line in lines) == int(re.search(r"(\d+) of 10", out)[1])


def test_cover_and_inspect(nnslicer, files):
    from nnslicer_tf import deepxplore

    model = ("--model", files / "model.keras")
    code, out, _ = nnslicer("cover", *model, "--data", "digits:test[:50]", "--threshold", 0.5)
    coverage = deepxplore.NeuronCoverage(
        nns.InstrumentedModel(zoo.load("digits_cnn")), threshold=0.5
    )
    coverage.update(datasets.load("digits", "test[:50]").x)
    assert code == 0 and f"{coverage.total():.1%} of the neurons" in out
    code, out, _ = nnslicer("inspect", *model, "--data", "digits:train[:300]", "--units", "relu2")
    assert code == 0 and "relu2" in out and "correlation" in out


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
    assert code == 2 and "ends in .npz" in errors


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


def test_reproduce_lists_the_papers_tables(nnslicer):
    code, out, _ = nnslicer("reproduce", "list")
    assert code == 0 and "nnslicer/table4" in out
    code, _, errors = nnslicer("reproduce", "run", "nnslicer/table99")
    assert code == 2 and "There is no 'nnslicer/table99'" in errors


# --- the demo --------------------------------------------------------------------------


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
    assert names == {"profile.npz", "image.npz", "class.npz", "slices.png"}
    label = int(re.search(r"slice of the (\d)s", out)[1])
    found = re.search(r"slice of the \ds +([\d.]+)% of the synapses +([\d.]+)%", out)
    vector = nns.Slice.load(folder / "class.npz").to_vector()
    assert found[1] == f"{100 * np.mean(vector != 0):.1f}"
    accuracy = masked_accuracy(folder / "class.npz", lambda y: y == label)
    assert found[2] == f"{100 * accuracy:.1f}"
    assert accuracy > 0.9
    assert "is taken for a " + str(label) in out
    assert (folder / "slices.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# --- bad input -------------------------------------------------------------------------


def truncated(path, target):
    target.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return target


def saved(folder, name, **arrays):
    np.savez(folder / name, **arrays)
    return folder / name


def image(n=3, **change):
    return np.ones((n, 8, 8, 1), **change)


def with_value(value):
    x = image(n=6)
    x[4, 2, 2, 0] = value
    return x


def resizing(folder):
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Resizing(4, 4, name="smaller")])
    model.save(folder / "resizing.keras")
    return folder / "resizing.keras"


def overflowing(folder):
    model = zoo.build("digits_cnn")
    kernel, bias = model.get_layer("conv2").get_weights()
    model.get_layer("conv2").set_weights([kernel, np.full_like(bias, np.nan)])
    model.save(folder / "nan.keras")
    return folder / "nan.keras"


PROFILE_INPUTS = {
    "missing model": (lambda f, t: {"model": t / "no.keras"}, "There is no model file"),
    "model of another kind": (lambda f, t: {"model": f / "data.npz"}, "a .keras or .h5 file"),
    "truncated .keras": (
        lambda f, t: {"model": truncated(f / "model.keras", t / "cut.keras")},
        "not a readable Keras model",
    ),
    "truncated .h5": (
        lambda f, t: {"model": truncated(f / "model.keras", t / "cut.h5")},
        "not a readable Keras model",
    ),
    "empty model file": (
        lambda f, t: {"model": (t / "e.keras", (t / "e.keras").touch())[0]},
        "not a readable Keras model",
    ),
    "unsupported layer": (lambda f, t: {"model": resizing(t)}, r"Layer 'smaller' \(Resizing\)"),
    "missing data": (lambda f, t: {"data": t / "no.npz"}, "There is no file"),
    "truncated data": (
        lambda f, t: {"data": truncated(f / "data.npz", t / "cut.npz")},
        "not a readable .npz",
    ),
    "unknown data set": (lambda f, t: {"data": "digit:train"}, "no data set 'digit'"),
    "unknown split": (lambda f, t: {"data": "digits:valid"}, "Unknown split 'valid'"),
    "unknown normalisation": (
        lambda f, t: {"data": "digits", "normalise": "mean"},
        "no normalisation 'mean'",
    ),
    "empty data set": (lambda f, t: {"data": "digits:train[:0]"}, "is empty"),
    "empty file": (lambda f, t: {"data": saved(t, "d.npz", x=image(0))}, "data set is empty"),
    "no array x": (lambda f, t: {"data": saved(t, "d.npz", inputs=image())}, "no array x"),
    "wrong shape": (
        lambda f, t: {"data": saved(t, "d.npz", x=np.ones((3, 8, 8)))},
        r"\(samples, 8, 8, 1\). Received shape \(3, 8, 8\)",
    ),
    "wrong dtype": (lambda f, t: {"data": saved(t, "d.npz", x=image(dtype=complex))}, "complex128"),
    "text": (lambda f, t: {"data": saved(t, "d.npz", x=image(dtype=str))}, "numbers"),
    "NaN": (lambda f, t: {"data": saved(t, "d.npz", x=with_value(np.nan))}, "Sample 4 .* NaN"),
    "infinity": (lambda f, t: {"data": saved(t, "d.npz", x=with_value(np.inf))}, "Sample 4 "),
    "activations": (lambda f, t: {"model": overflowing(t)}, "Operation 'conv2' gives NaN"),
    "batch size": (lambda f, t: {"batch-size": 0}, "batch_size must be"),
    "output folder": (lambda f, t: {"output": t}, "it is a folder"),
}

SLICE_INPUTS = {
    "missing profile": (lambda f, t: {"profile": t / "no.npz"}, "There is no profile file"),
    "truncated profile": (
        lambda f, t: {"profile": truncated(f / "profile.npz", t / "cut.npz")},
        "is not a profile",
    ),
    "not a profile": (lambda f, t: {"profile": f / "data.npz"}, "is not a profile"),
    "profile of another model": (lambda f, t: {"model": f / "other.keras"}, "of another model"),
    "negative theta": (lambda f, t: {"theta": -0.1}, "theta must be .* ≥ 0. Received: -0.1"),
    "theta NaN": (lambda f, t: {"theta": "nan"}, "theta must be"),
    "granularity": (lambda f, t: {"granularity": "layer"}, "no granularity .layer"),
    "workers": (lambda f, t: {"workers": -1}, "workers must be"),
    "output 10 of 10": (lambda f, t: {"outputs": "3,10"}, "10"),
    "output -1": (lambda f, t: {"outputs": "-1"}, "-1"),
    "outputs in words": (lambda f, t: {"outputs": "three"}, "--outputs takes indices"),
    "NaN": (lambda f, t: {"data": saved(t, "d.npz", x=with_value(np.nan))}, "Sample 4 .* NaN"),
    "wrong shape": (lambda f, t: {"data": saved(t, "d.npz", x=np.ones((3, 4)))}, "Received shape"),
    "empty file": (lambda f, t: {"data": saved(t, "d.npz", x=image(0))}, "data set is empty"),
}

CASES = [
    *(
        pytest.param("profile", *case, id=f"profile-{name}")
        for name, case in PROFILE_INPUTS.items()
    ),
    *(pytest.param("slice", *case, id=f"slice-{name}") for name, case in SLICE_INPUTS.items()),
]


@pytest.mark.parametrize(("command", "change", "message"), CASES)
def test_bad_input_gets_one_line_and_loses_nothing(
    nnslicer, files, tmp_path, command, change, message
):
    output = tmp_path / "output.npz"
    output.write_bytes(b"a good file")
    options = {"model": files / "model.keras", "data": files / "data.npz", "output": output}
    if command == "slice":
        options["profile"] = files / "profile.npz"
    options.update(change(files, tmp_path))
    before = sorted(tmp_path.iterdir())
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    code, out, errors = nnslicer(command, *arguments)
    lines = shown_lines(errors)
    assert code == 2
    assert len(lines) == 1, errors
    assert lines[0].startswith("nnslicer: ")
    assert re.search(message, lines[0]), lines[0]
    assert out == ""
    assert output.read_bytes() == b"a good file"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["profile", "slice", "demo", "show"])
def test_an_unwritable_output_is_refused_before_anything_is_read(nnslicer, tmp_path, command):
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "output.npz"
    missing = tmp_path / "missing"
    arguments = {
        "profile": ("--model", missing, "--data", missing, "--output", target),
        "slice": ("--model", missing, "--data", missing, "--profile", missing, "--output", target),
        "demo": ("--output", target),
        "show": (missing, "--plot", target.with_suffix(".png")),
    }[command]
    code, _, errors = nnslicer(command, *arguments)
    assert code == 2
    assert len(shown_lines(errors)) == 1
    assert errors.startswith(f"nnslicer: Cannot write to '{target.with_suffix('')}")


def test_a_data_set_that_is_nowhere(nnslicer, files, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(socket, "create_connection", refuse)
    output = tmp_path / "profile.npz"
    arguments = ("--model", files / "model.keras", "--data", "mnist:test", "--output", output)
    code, _, errors = nnslicer("profile", *arguments)
    assert code == 2
    assert "'mnist' is not prepared" in errors and "TFDS_DATA_DIR" in errors
    assert len(shown_lines(errors)) == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f, t: t / "no.npz", "There is no"),
        (lambda f, t: f / "data.npz", "neither a slice, nor a set of slices, nor a profile"),
        (lambda f, t: truncated(f / "profile.npz", t / "cut.npz"), "neither a slice"),
    ],
    ids=["missing", "of another kind", "truncated"],
)
def test_files_that_cannot_be_shown(nnslicer, files, tmp_path, make, message):
    code, out, errors = nnslicer("show", make(files, tmp_path))
    assert (code, out) == (2, "")
    assert message in errors
    assert len(shown_lines(errors)) == 1


def test_a_profile_is_not_drawn(nnslicer, files, tmp_path):
    code, _, errors = nnslicer("show", files / "profile.npz", "--plot", tmp_path / "p.png")
    assert code == 2
    assert "only slices can be drawn" in errors
    assert not (tmp_path / "p.png").exists()


# --- as a process ----------------------------------------------------------------------


def process(*arguments, hide=()):
    environment = {k: v for k, v in os.environ.items() if k not in hide}
    return subprocess.run(
        [sys.executable, "-m", "nnslicer_tf.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "COLUMNS": "100"},
    )


def test_a_failing_process_says_one_line_and_no_more(files, tmp_path):
    options = ("--model", files / "model.keras", "--data", tmp_path / "no.npz")
    done = process("profile", *options, "--output", tmp_path / "out.npz")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("nnslicer: There is no file")


@pytest.mark.parametrize("command", [pytest.param("explain", marks=pytest.mark.slow), "slice"])
def test_a_process_hides_what_tensorflow_says(files, tmp_path, command):
    options = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    output = tmp_path / ("out.html" if command == "explain" else "out.npz")
    done = process(
        *(command, *options, "--data", files / "data.npz", "--output", output),
        hide=("TF_CPP_MIN_LOG_LEVEL",),
    )
    assert done.returncode == 0, done.stderr
    assert not re.search(r"[IWE]\d{4} |absl::|cuda|oneDNN", done.stderr)


def test_a_pruned_model_is_loaded_by_a_new_process(files, tmp_path):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    pruned = pruning.prune(im.model, pruning.scores(im, "weight"), 0.5)
    pruned.save(tmp_path / "pruned.keras")
    options = ("--model", tmp_path / "pruned.keras", "--data", files / "data.npz")
    done = process("profile", *options, "--output", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    saved = nns.Profile.load(tmp_path / "out.npz")
    x = np.load(files / "data.npz")["x"]
    np.testing.assert_allclose(
        saved.means["logits"], np.asarray(pruned(x)).mean(axis=0), rtol=1e-4, atol=1e-4
    )


def test_help_names_the_commands_and_options():
    done = process("--help")
    assert done.returncode == 0
    for command in ("demo", "profile", "slice", "show"):
        assert re.search(rf"\b{command}\b", done.stdout)


def test_saved_results_are_shown_without_keras(tmp_path):
    one = nns.Slice({"a": np.ones(3, np.int64)}, {"a": np.ones((2, 3), np.int64)}, {})
    one.save(tmp_path / "slice.npz")
    code = (
        "import sys; from nnslicer_tf import cli; "
        "sys.argv = ['nnslicer', 'show', 'slice.npz']; cli.app(standalone_mode=False); "
        "print([m for m in ('keras', 'tensorflow') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "total" in done.stdout and done.stdout.splitlines()[-1] == "[]"
