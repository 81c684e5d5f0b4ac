"""Train a model of the zoo, and write a log.

The last tenth of the training images is held out: recipes are chosen by the accuracy on it. The
test images are read once, at the end. An interrupted run resumes from its last finished epoch.
"""

import dataclasses
import datetime
import json
import platform
from importlib.metadata import version
from pathlib import Path

import keras
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.result import ExperimentResult
from reproduction.tables import command_line, device_name
from reproduction.weights import keep_weights
from reproduction.zoo import recipes
from reproduction.zoo.models import zoo
from reproduction.zoo.settings import TrainingSettings

_SUMMARY = (
    *("model", "dataset", "parameters", "epochs", "train_images", "held_out_images"),
    *("held_out_accuracy", "test_images", "test_accuracy"),
    *("computed_with", "minutes", "seed", "date", "command"),
)

_BACKENDS = ("tensorflow", "jax", "torch")


def train(s: TrainingSettings) -> ExperimentResult:
    """Train a model, write its weights, and return the log."""
    if s.threads:  # must be set before TensorFlow computes anything
        if keras.backend.backend() != "tensorflow":
            raise InvalidArgumentError(
                f"--threads is for TensorFlow, but Keras runs on '{keras.backend.backend()}'."
            )
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(s.threads)
    dataset = s.used_dataset
    # The model's recipe, with the changes from the settings.
    recipe = recipes.RECIPES.get(s.model, recipes.DEFAULT_RECIPE)
    epochs, precision = s.epochs or recipe.epochs, s.precision or recipe.precision
    recipe = dataclasses.replace(recipe, epochs=epochs, precision=precision)
    kept = s.trial_folder / "quick.weights.h5" if s.reduced else zoo.weights_path(s.model, dataset)
    weights = check_writable(s.weights or kept)
    data = datasets.load(dataset, "train[:5%]" if s.reduced else "train[:90%]")
    held_out = datasets.load(dataset, "train[90%:]")
    keras.utils.set_random_seed(s.seed)
    network = zoo.build(s.model, data.x.shape[1:], data.classes)
    options = {"folder": s.trial_folder, "validation": held_out, "rng": s.seed}
    history = recipes.train(network, data, recipe, **options)
    kept_network = zoo.build(s.model, data.x.shape[1:], data.classes)  # no optimiser state
    kept_network.set_weights(network.get_weights())
    keep_weights(kept_network, weights)
    test = datasets.load(dataset, "test")
    log = {"model": s.model, "parameters": network.count_params(), "dataset": dataset}
    log |= {"train_images": len(data), "held_out_images": len(held_out)}
    log |= {"held_out_accuracy": zoo.accuracy(kept_network, held_out), "test_images": len(test)}
    log |= {"test_accuracy": zoo.accuracy(kept_network, test), "seed": s.seed}
    log |= {"recipe": dataclasses.asdict(recipe), "epochs": len(history)}
    log |= {"command": command_line(), "device": device_name()}
    libraries = {name: version(name) for name in (keras.backend.backend(), "keras", "numpy")}
    log["versions"] = {"python": platform.python_version(), **libraries}
    log |= {"date": datetime.date.today().isoformat(), "history": history}
    print(f"held out {log['held_out_accuracy']:.4f}, test {log['test_accuracy']:.4f}")
    print(f"weights: {weights}")
    return ExperimentResult(logs={s.run: log})


def write_summary(folder: Path) -> None:
    """Write a table of all logs in a folder, as CSV and Markdown."""
    logs = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))]
    rows = []
    for log in logs:
        backend = next(name for name in log["versions"] if name in _BACKENDS)
        seconds = [row.get("seconds") for row in log["history"]]  # early logs have none
        minutes = "" if None in seconds else round(sum(seconds) / 60, 1)
        row = {"epochs": log["recipe"]["epochs"], "minutes": minutes}
        rows.append(row | {"computed_with": f"{backend} on {log.get('device', 'CPU')}"} | log)
    table = pd.DataFrame(rows, columns=_SUMMARY)
    table = table.round({"held_out_accuracy": 4, "test_accuracy": 4})
    header = "| " + " | ".join(table.columns) + " |\n" + "|---" * len(table.columns) + "|\n"
    lines = ["| " + " | ".join(map(str, row)) + " |\n" for row in table.to_numpy()]
    text = (
        "# Trained models of the zoo\n\nWritten by apps/train.py. Held-out images are the last "
        "tenth of the training split; no recipe was chosen by the test images. The logs beside "
        f"hold every epoch and the versions of the libraries.\n\n{header}{''.join(lines)}"
    )
    with atomic_path(folder / "models.csv") as path:
        table.to_csv(path, index=False)
    with atomic_path(folder / "models.md") as path:
        path.write_text(text)
