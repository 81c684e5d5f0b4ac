"""The convolutional networks to analyse, and their training."""

import dataclasses
import time
from collections.abc import Iterable
from itertools import product

import keras

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import check_name
from nnslicer_tf._files import check_writable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.zoo import weights_file
from reproduction.exactline.robust_training import METHODS, NETWORKS, RobustRecipe, train_robustly
from reproduction.exactline.settings import TrainingSettings
from reproduction.result import ExperimentResult
from reproduction.tables import provenance
from reproduction.weights import keep_weights

EPSILON = {"mnist": 0.1, "cifar10": 2 / 255}
"""Data set → an attack's largest change of a pixel."""

RELU_NETWORKS = ("lenet5", *NETWORKS)
"""Kinds of networks with ReLU activations to analyse."""

_EPOCHS = {"normal": 10, "pgd": 10, "box": 20}
_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}


def trained_networks(
    kinds: Iterable[str] = tuple(NETWORKS),
) -> dict[tuple[str, str, str], keras.Model]:
    """Return the available trained networks: network, data set and training → model."""
    kinds = list(kinds)
    for kind in kinds:
        check_name("network", kind, NETWORKS)
    networks = {}
    for network, dataset, method in product(kinds, EPSILON, METHODS):
        weights = weights_file(f"exactline/{network}-{dataset}-{method}.weights.h5")
        if weights.exists():
            model = networks[network, dataset, method] = NETWORKS[network](_SHAPES[dataset])
            model.load_weights(weights)
    if kinds and not networks:
        raise InvalidArgumentError(
            f"There are no trained weights of {', '.join(kinds)}. Train them: "
            f"python apps/analyse_lines.py train cifar10 normal --network {kinds[0]}"
        )
    return networks


def networks_of(kind: str) -> dict[tuple[str, str], keras.Model]:
    """Return the trained networks of one kind: data set and training → model."""
    return {(key[1], key[2]): model for key, model in trained_networks([kind]).items()}


def relu_networks(kinds: Iterable[str] = RELU_NETWORKS) -> dict[str, tuple[str, keras.Model]]:
    """Return the trained networks with ReLU activations: name → data set and model."""
    kinds = list(kinds)
    for kind in kinds:
        check_name("network", kind, RELU_NETWORKS)
    networks = {"lenet5": ("mnist", zoo.load("lenet5", "mnist"))} if "lenet5" in kinds else {}
    published = trained_networks(kind for kind in kinds if kind in NETWORKS)
    return networks | {"-".join(key): (key[1], model) for key, model in published.items()}


def train(s: TrainingSettings) -> ExperimentResult:
    """Train a network, write its weights, and return the log."""
    import tensorflow as tf

    check_name("data set", s.dataset, EPSILON)
    check_name("method", s.method, METHODS)
    check_name("network", s.network, NETWORKS)
    if s.threads:  # must be set before TensorFlow computes anything
        tf.config.threading.set_intra_op_parallelism_threads(s.threads)
    name = f"{s.network}-{s.dataset}-{s.method}"
    weights = check_writable(s.weights_folder / f"{name}.weights.h5")
    epochs = 1 if s.reduced else _EPOCHS[s.method]
    recipe = RobustRecipe(s.method, EPSILON[s.dataset], epochs)
    data = datasets.load(s.dataset, "train[:2000]" if s.reduced else "train[:90%]")
    held_out = datasets.load(s.dataset, "train[90%:]")
    keras.utils.set_random_seed(s.seed)
    network = NETWORKS[s.network](data.x.shape[1:], data.classes)
    start = time.monotonic()
    losses = train_robustly(network, data, recipe, rng=s.seed)
    minutes = (time.monotonic() - start) / 60
    keep_weights(network, weights)
    test = datasets.load(s.dataset, "test")
    log = {
        **provenance(seed=s.seed),
        "network": name + "-quick" * s.reduced,
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
    return ExperimentResult(logs={str(log["network"]): log})
