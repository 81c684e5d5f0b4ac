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
import time
from pathlib import Path
from typing import Annotated

import keras
import numpy
import tensorflow
import typer

from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path, check_writable, data_folder


def main(
    model: Annotated[str, typer.Argument(help=f"One of: {', '.join(zoo.names())}.")],
    dataset: Annotated[str, typer.Option(help="Default: the model's own.")] = "",
    epochs: Annotated[int | None, typer.Option(help="Default: the recipe's.", min=1)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int, typer.Option(help="Default: all cores.", min=0)] = 0,
    quick: Annotated[bool, typer.Option(help="Two epochs, 2,000 images; a trial.")] = False,
    checkpoints: Annotated[Path, typer.Option(help="Folder of resumable runs.")] = Path("runs"),
    weights: Annotated[Path | None, typer.Option(help="Default: the zoo's own file.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the log.")] = None,
) -> None:
    """Train MODEL and write its weights and a log."""
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    dataset = dataset or zoo.MODELS[model].dataset
    run = f"{model}-{dataset}" + ("-quick" if quick else "")
    recipe = zoo.RECIPES.get(model, zoo.DEFAULT_RECIPE)
    recipe = dataclasses.replace(recipe, epochs=2 if quick else epochs or recipe.epochs)
    folder = checkpoints / f"train-{run}-{seed}"
    quick_path = folder / "quick.weights.h5"
    weights = weights or (quick_path if quick else zoo.weights_path(model, dataset))
    results = results or (folder if quick else data_folder() / "results" / "training")
    check_writable(weights)

    train = datasets.load(dataset, "train[:2000]" if quick else "train[:90%]")
    held_out = datasets.load(dataset, "train[90%:]")
    keras.utils.set_random_seed(seed)
    network = zoo.build(model, train.x.shape[1:], train.classes)
    start = time.monotonic()
    history = zoo.train(network, train, recipe, rng=seed, folder=folder, validation=held_out)
    minutes = (time.monotonic() - start) / 60

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
        "minutes_of_the_last_session": round(minutes, 1),
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
    with atomic_path(results / f"{run}.json") as path:
        path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"held out {report['held_out_accuracy']:.4f}, test {report['test_accuracy']:.4f}")
    print(f"weights: {weights}\nlog: {results / f'{run}.json'}")


if __name__ == "__main__":
    typer.run(main)
