"""The command line as a process: quiet, and quick to help."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import pruning, zoo
from nnslicer_tf.deepxplore import NeuronCoverage
from nnslicer_tf.zoo.models import AddPositions, encoder_block

DATA = "digits:train[:100]"


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


def test_two_versions_that_are_missing_are_one_line(files, tmp_path):
    done = process("diff", tmp_path / "a.keras", tmp_path / "b.keras", "--data", files / "data.npz")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("command", [pytest.param("explain", marks=pytest.mark.slow), "slice"])
def test_a_process_hides_what_tensorflow_says(files, tmp_path, command):
    options = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    output = tmp_path / ("out.html" if command == "explain" else "out.npz")
    done = process(
        command,
        *options,
        "--data",
        files / "data.npz",
        "--output",
        output,
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
        "import sys; from nnslicer_tf.cli.application import app; "
        "sys.argv = ['nnslicer', 'show', 'slice.npz']; app(standalone_mode=False); "
        "print([m for m in ('keras', 'tensorflow') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "total" in done.stdout and done.stdout.splitlines()[-1] == "[]"


def test_coverage_of_a_transformer_by_a_new_process(tmp_path):
    """Its layer that adds positions is the zoo's, which the process must know of."""
    words = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(9, 4, mask_zero=True, name="embedding")(words)
    x = encoder_block(AddPositions(name="positions")(x), 4, heads=2, width=5, dropout=0, name="b")
    x = keras.layers.GlobalAveragePooling1D(name="average")(x)
    model = keras.Model(words, keras.layers.Dense(2, name="logits")(x))
    model.save(tmp_path / "words.keras")
    x = np.random.default_rng(0).integers(0, 9, (10, 6))
    np.savez(tmp_path / "words.npz", x=x)
    coverage = NeuronCoverage(nns.InstrumentedModel(model), threshold=0.25)
    coverage.update(x)
    done = process("cover", "--model", tmp_path / "words.keras", "--data", tmp_path / "words.npz")
    assert done.returncode == 0, done.stderr
    assert f"{coverage.total():.1%} of the neurons" in done.stdout and "b_attention" in done.stdout
