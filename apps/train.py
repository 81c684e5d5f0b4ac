"""Train a model of the zoo, and write its weights and a log.

    python apps/train.py resnet10

The last tenth of the training images is held out and never trained on: recipes are
chosen by its accuracy. The test images are read once, at the end. An interrupted run
goes on from its last finished epoch when the same command is given again.
"""

import dataclasses
import datetime
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import keras
import numpy
import pandas
import tensorflow
import typer

from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path, check_writable, data_folder


def main(
    model: Annotated[str, typer.Argument(help=f"One of: {', '.join(zoo.names())}.")],
    dataset: Annotated[str, typer.Option(help="Default: the model's own.")] = "",
    epochs: Annotated[int | None, typer.Option(help="Default: the recipe's.", min=1)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16"], typer.Option(help="What layers compute in.")
    ] = "float32",
    threads: Annotated[int, typer.Option(help="Default: all cores.", min=0)] = 0,
    quick: Annotated[bool, typer.Option(help="A trial: two epochs, few images.")] = False,
    checkpoints: Annotated[Path, typer.Option(help="Folder of resumable runs.")] = Path("runs"),
    weights: Annotated[Path | None, typer.Option(help="Default: the zoo's own file.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the log.")] = None,
) -> None:
    """Train MODEL and write its weights and a log."""
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    dataset = dataset or zoo.entry(model).dataset
    run = f"{model}-{dataset}" + ("-quick" if quick else "")
    recipe = zoo.RECIPES.get(model, zoo.DEFAULT_RECIPE)
    epochs = 2 if quick else epochs or recipe.epochs
    recipe = dataclasses.replace(recipe, epochs=epochs, precision=precision)
    folder = checkpoints / f"train-{run}-{seed}"
    quick_path = folder / "quick.weights.h5"
    weights = weights or (quick_path if quick else zoo.weights_path(model, dataset))
    results = results or (folder if quick else data_folder() / "results" / "training")
    log = results / f"{run}.json"
    for path in (weights, log):
        check_writable(path)

    train = datasets.load(dataset, "train[:5%]" if quick else "train[:90%]")
    held_out = datasets.load(dataset, "train[90%:]")
    keras.utils.set_random_seed(seed)
    network = zoo.build(model, train.x.shape[1:], train.classes)
    history = zoo.train(network, train, recipe, rng=seed, folder=folder, validation=held_out)

    test = datasets.load(dataset, "test")
    report = {
        "model": model,
        "parameters": network.count_params(),
        "dataset": dataset,
        "train_images": len(train),
        "held_out_images": len(held_out),
        "held_out_accuracy": zoo.accuracy(network, held_out),
        "test_images": len(test),
        "test_accuracy": zoo.accuracy(network, test),
        "seed": seed,
        "recipe": dataclasses.asdict(recipe),
        "command": "python " + shlex.join(sys.argv),
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tensorflow.__version__,
            "keras": keras.__version__,
            "numpy": numpy.__version__,
        },
        "date": datetime.date.today().isoformat(),
        "history": history,
    }
    uncompiled = zoo.build(model, train.x.shape[1:], train.classes)  # no optimiser state
    uncompiled.set_weights(network.get_weights())
    zoo.save_weights(uncompiled, weights)
    with atomic_path(log) as path:
        path.write_text(json.dumps(report, indent=1) + "\n")
    write_summary(results)
    print(f"held out {report['held_out_accuracy']:.4f}, test {report['test_accuracy']:.4f}")
    print(f"weights: {weights}\nlog: {log}")


def write_summary(results: Path) -> None:
    """Write a table of all logs in the folder, as CSV and Markdown."""
    reports = [json.loads(path.read_text()) for path in sorted(results.glob("*-*.json"))]
    rows = [
        {
            "model": report["model"],
            "dataset": report["dataset"],
            "parameters": report["parameters"],
            "epochs": report["recipe"]["epochs"],
            "train_images": report["train_images"],
            "held_out_images": report["held_out_images"],
            "held_out_accuracy": round(report["held_out_accuracy"], 4),
            "test_images": report["test_images"],
            "test_accuracy": round(report["test_accuracy"], 4),
            "seed": report["seed"],
            "date": report["date"],
            "command": report["command"],
        }
        for report in reports
    ]
    table = pandas.DataFrame(rows)
    versions = ", ".join(f"{name} {version}" for name, version in reports[-1]["versions"].items())
    header = "| " + " | ".join(table.columns) + " |\n" + "|---" * len(table.columns) + "|\n"
    lines = ["| " + " | ".join(map(str, row)) + " |\n" for row in table.to_numpy()]
    text = (
        "# Trained models of the zoo\n\nWritten by apps/train.py. Held-out images are the last "
        "tenth of the training split; no recipe was chosen by the test images. The logs beside "
        f"hold every epoch. Versions: {versions}.\n\n{header}{''.join(lines)}"
    )
    with atomic_path(results / "models.csv") as path:
        table.to_csv(path, index=False)
    with atomic_path(results / "models.md") as path:
        path.write_text(text)


if __name__ == "__main__":
    typer.run(main)
