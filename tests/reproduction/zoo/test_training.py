"""The training script, from its command line to its files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pandas as pd
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.zoo import training
from reproduction.zoo.settings import TrainingSettings

SCRIPT = Path(__file__).parents[3] / "apps" / "train.py"


def _run(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=tmp_path,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_quick_training_writes_weights_and_a_log(tmp_path):
    done = _run(tmp_path, "digits_cnn", "--quick", "--seed", "3")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "train-digits_cnn-digits-quick-3"
    report = json.loads((folder / "digits_cnn-digits-quick.json").read_text())
    assert [row["epoch"] for row in report["history"]] == [1, 2]
    assert (report["seed"], report["parameters"]) == (3, 6090)
    model = zoo.build("digits_cnn")
    model.load_weights(folder / "quick.weights.h5")
    test = datasets.load("digits", "test")
    assert zoo.accuracy(model, test) == pytest.approx(report["test_accuracy"], abs=0.005)


def test_a_limit_of_threads_is_refused_where_keras_runs_on_another_backend(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    settings = TrainingSettings("digits_cnn", threads=1, checkpoints=tmp_path)
    with pytest.raises(InvalidArgumentError, match="'jax'"):
        training.train(settings)
    assert not list(tmp_path.iterdir())


def test_the_summary_says_on_what_a_model_was_trained_and_for_how_long(tmp_path):
    log = {
        **{"model": "mlp", "dataset": "mnist", "parameters": 3, "recipe": {"epochs": 2}},
        **{"train_images": 5, "held_out_images": 1, "test_images": 1, "seed": 0},
        **{"held_out_accuracy": 0.98765, "test_accuracy": 1.0, "date": "2026-01-01"},
        **{"command": "python apps/train.py mlp", "versions": {"python": "3", "tensorflow": "2"}},
        "history": [{"epoch": 1, "seconds": 60.0}, {"epoch": 2, "seconds": 30.0}],
    }
    on_gpu = {**log, "versions": {"python": "3", "jax": "1"}, "device": "NVIDIA H200"}
    (tmp_path / "mlp-mnist.json").write_text(json.dumps(log))
    (tmp_path / "vgg16-cifar10.json").write_text(json.dumps(on_gpu))
    training.write_summary(tmp_path)
    table = pd.read_csv(tmp_path / "models.csv")
    assert table["computed_with"].tolist() == ["tensorflow on CPU", "jax on NVIDIA H200"]
    assert table["minutes"].tolist() == [1.5, 1.5]
    assert table["held_out_accuracy"].tolist() == [0.9876, 0.9876]


def test_training_runs_on_jax(tmp_path, monkeypatch):
    pytest.importorskip("jax", reason="JAX is not installed")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    done = _run(
        tmp_path, "digits_cnn", "--epochs", "3", "--weights", "w.weights.h5", "--results", "r"
    )
    assert done.returncode == 0, done.stderr
    log = json.loads((tmp_path / "r" / "digits_cnn-digits.json").read_text())
    assert log["command"].startswith("KERAS_BACKEND=jax python ") and "jax" in log["versions"]
    losses = [row["mean_loss"] for row in log["history"]]
    assert losses == sorted(losses, reverse=True)
    model = zoo.build("digits_cnn")
    model.load_weights(tmp_path / "w.weights.h5")
    test = datasets.load("digits", "test")
    assert log["test_accuracy"] > 0.6
    assert zoo.accuracy(model, test) == pytest.approx(log["test_accuracy"], abs=0.005)
