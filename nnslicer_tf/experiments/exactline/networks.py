"""The small convolutional networks whose lines are analysed, and their training."""

import dataclasses
import time
from pathlib import Path

import keras

from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import check_writable, data_folder
from nnslicer_tf._names import check_name
from nnslicer_tf.exactline import robust_training
from nnslicer_tf.experiments.exactline.settings import TrainingSettings
from nnslicer_tf.experiments.result import ExperimentResult
from nnslicer_tf.report import provenance

EPSILON = {"mnist": 0.1, "cifar10": 2 / 255}
"""Data set → the largest change of a pixel by an attack."""

_EPOCHS = {"normal": 10, "pgd": 10, "box": 20}
_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}


def convsmall_networks() -> dict[tuple[str, str], keras.Model]:
    """Return the trained networks that there are: data set and training → model."""
    networks = {}
    for dataset in EPSILON:
        for method in robust_training.METHODS:
            weights = _weights(data_folder() / "weights" / "exactline", dataset, method)
            if weights.exists():
                networks[dataset, method] = robust_training.convsmall(_SHAPES[dataset])
                networks[dataset, method].load_weights(weights)
    return networks


def relu_networks() -> dict[str, tuple[str, keras.Model]]:
    """Return the trained networks with ReLU activations: name → data set and model."""
    small = {
        f"convsmall-{dataset}-{method}": (dataset, model)
        for (dataset, method), model in convsmall_networks().items()
    }
    return {"lenet5": ("mnist", zoo.load("lenet5", "mnist")), **small}


def train(s: TrainingSettings) -> ExperimentResult:
    """Train a network, write its weights, and return the log."""
    import tensorflow as tf

    check_name("data set", s.dataset, EPSILON)
    check_name("method", s.method, robust_training.METHODS)
    if s.threads:  # to be set before TensorFlow has computed anything
        tf.config.threading.set_intra_op_parallelism_threads(s.threads)
    ending = "-quick" if s.reduced else ""
    weights = check_writable(_weights(s.weights_folder, s.dataset, s.method))
    epochs = 1 if s.reduced else _EPOCHS[s.method]
    recipe = robust_training.RobustRecipe(s.method, EPSILON[s.dataset], epochs)
    data = datasets.load(s.dataset, "train[:2000]" if s.reduced else "train[:90%]")
    held_out = datasets.load(s.dataset, "train[90%:]")
    keras.utils.set_random_seed(s.seed)
    network = robust_training.convsmall(data.x.shape[1:], data.classes)
    start = time.monotonic()
    losses = robust_training.train_robustly(network, data, recipe, rng=s.seed)
    minutes = (time.monotonic() - start) / 60
    zoo.save_weights(network, weights)
    test = datasets.load(s.dataset, "test")
    name = f"convsmall-{s.dataset}-{s.method}{ending}"
    log = {
        **provenance(seed=s.seed),
        "network": name,
        "parameters": network.count_params(),
        "recipe": dataclasses.asdict(recipe),
        "train_images": len(data),
        "held_out_accuracy": zoo.accuracy(network, held_out),
        "test_images": len(test),
        "test_accuracy": zoo.accuracy(network, test),
        "minutes": round(minutes, 1),
        "losses": losses,
    }
    print(f"held out {log['held_out_accuracy']:.4f}, test {log['test_accuracy']:.4f}")
    return ExperimentResult(logs={name: log})


def _weights(folder: Path, dataset: str, method: str) -> Path:
    return folder / f"convsmall-{dataset}-{method}.weights.h5"
