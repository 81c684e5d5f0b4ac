"""The command line on bad input: one line, and nothing is lost."""

import os
import re
import socket

import keras
import numpy as np
import pytest
from keras import layers

from nnslicer_tf import zoo
from support.terminal import shown_lines

DATA = "digits:train[:100]"


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


def spectral(folder):
    dense = layers.SpectralNormalization(layers.Dense(10), name="normed")
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), dense])
    model.save(folder / "spectral.keras")
    return folder / "spectral.keras"


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
    "unsupported layer": (lambda f, t: {"model": spectral(t)}, r"Layer 'normed' \(Spectral"),
    "missing data": (lambda f, t: {"data": t / "no.npz"}, "There is no file"),
    "truncated data": (
        lambda f, t: {"data": truncated(f / "data.npz", t / "cut.npz")},
        "not a readable .npz",
    ),
    "unknown data set": (lambda f, t: {"data": "digit:train"}, "Unknown data set 'digit'"),
    "unknown split": (lambda f, t: {"data": "digits:valid"}, "Unknown split 'valid'"),
    "unknown normalisation": (
        lambda f, t: {"data": "digits", "normalise": "mean"},
        "Unknown normalisation 'mean'",
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
    "profile of another model": (lambda f, t: {"model": f / "other.keras"}, "a different model"),
    "negative theta": (lambda f, t: {"theta": -0.1}, "theta must be at least 0. Received: -0.1"),
    "theta NaN": (lambda f, t: {"theta": "nan"}, "theta must be"),
    "granularity": (lambda f, t: {"granularity": "layer"}, "Unknown granularity .layer"),
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


@pytest.mark.filterwarnings("ignore:The weights of 1 layers")  # a line of its own, before it
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


@pytest.mark.parametrize("pipe", ["small.keras", "small.tflite"])
def test_models_are_not_written_over_a_pipe(nnslicer, tmp_path, pipe):
    os.mkfifo(tmp_path / pipe)
    options = ("--data", "digits", "--output", tmp_path / "small.keras", "--quantise", "int8")
    code, out, errors = nnslicer("prune", "--model", tmp_path / "missing", *options)
    assert code == 2 and out == ""
    assert shown_lines(errors)[0].startswith(
        f"nnslicer: Cannot write to '{tmp_path / pipe}': it is"
    )
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


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
        (lambda f, t: f / "data.npz", "not a slice, slice set or profile"),
        (lambda f, t: truncated(f / "profile.npz", t / "cut.npz"), "not a slice, slice set"),
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
