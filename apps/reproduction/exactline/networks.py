"""The convolutional networks to analyse, and their training: normal, with PGD, or with boxes.

The networks are those of the paper's CIFAR-10 and MNIST experiments, published by ERAN. Box
training propagates intervals through the network and minimises the loss at their worst corner:
DiffAI (Mirman, Gehr and Vechev, ICML 2018) with its Box domain; its other domains are
not implemented. Requires the TensorFlow backend. Time: seconds to minutes per epoch.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import as_generator, check_name
from nnslicer_tf._files import check_writable
from nnslicer_tf._training import build_optimizer, train_epochs
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.zoo import weights_file
from reproduction.exactline.settings import TrainingSettings
from reproduction.result import ExperimentResult
from reproduction.settings import DATA
from reproduction.tables import provenance
from reproduction.weights import keep_weights

METHODS = ("normal", "pgd", "box")


@dataclass(frozen=True)
class RobustRecipe:
    """Settings of the training of a network by one of `METHODS`."""

    method: str
    epsilon: float  # largest change of a pixel, on images in [0, 1]
    epochs: int
    batch_size: int = 128
    learning_rate: float = 1e-3
    steps: int = 7  # of PGD, each of size 2.5 · epsilon / steps


def _network(
    name: str, filters: Sequence, units: Sequence, padding: str, shape: Sequence, classes: int = 10
) -> keras.Model:
    """Return a model of convolutions (filters, size, stride) and dense layers, with logits."""
    x = inputs = keras.Input(shape)
    for i, (count, size, strides) in enumerate(filters, start=1):
        conv = layers.Conv2D(count, size, strides, padding, activation="relu", name=f"conv{i}")
        x = conv(x)
    x = layers.Flatten(name="flatten")(x)
    for i, count in enumerate(units, start=1):
        x = layers.Dense(count, activation="relu", name=f"dense{i}")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name=name)


_SMALL = ((16, 4, 2), (32, 4, 2))
_BIG = ((32, 3, 1), (32, 4, 2), (64, 3, 1), (64, 4, 2))
NETWORKS: dict[str, Callable[..., keras.Model]] = {
    "convsmall": partial(_network, "convsmall", _SMALL, (100,), "valid"),
    "convmedium": partial(_network, "convmedium", _SMALL, (1000,), "same"),
    "convbig": partial(_network, "convbig", _BIG, (512, 512), "same"),
}
"""Names of the paper's networks → their builders, of an input shape and a number of classes."""


def train_robustly(
    model: keras.Model, data: Dataset, recipe: RobustRecipe, *, rng: int, progress: bool = True
) -> list[float]:
    """Train one of `NETWORKS` in place on images in [0, 1]; return every epoch's mean loss.

    With PGD and boxes, half of the loss is on the images and half on the changed images or at
    the worst corner of their boxes; boxes grow to `epsilon` over the first half of the epochs.
    """
    import tensorflow as tf

    check_name("method", recipe.method, METHODS)
    batches = -(-len(data) // recipe.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(recipe.learning_rate, batches * recipe.epochs)
    optimizer = keras.optimizers.Adam(schedule)
    build_optimizer(optimizer, model.trainable_variables)
    loss_of = _LOSSES[recipe.method]

    @tf.function(reduce_retracing=True, autograph=False)
    def descend(x: Any, y: Any, noise: Any, epsilon: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y, noise, epsilon, recipe.steps)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def step(rows: np.ndarray, generator: np.random.Generator) -> float:
        epoch, batch = divmod(int(optimizer.iterations), batches)
        grown = min(1.0, 2 * (epoch + batch / batches) / recipe.epochs)
        epsilon = recipe.epsilon * (grown if recipe.method == "box" else 1.0)
        x = tf.constant(data.x[rows])
        noise = tf.constant(generator.uniform(-1, 1, x.shape).astype(np.float32))
        return float(descend(x, data.y[rows], noise, tf.constant(epsilon, tf.float32)))

    size, generator = recipe.batch_size, as_generator(rng)
    return train_epochs(step, len(data), recipe.epochs, size, generator, progress=progress)


def _cross_entropy(y: Any, logits: Any) -> Any:
    return ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))


def normal_loss(model: keras.Model, x: Any, y: Any, noise: Any, epsilon: Any, steps: int) -> Any:
    """Return the mean cross-entropy on images `x` with classes `y`; other arguments are unused."""
    return _cross_entropy(y, model(x, training=True))


def pgd_loss(model: keras.Model, x: Any, y: Any, noise: Any, epsilon: Any, steps: int) -> Any:
    """Return the mean of the losses on images and on their PGD adversarial examples."""
    import tensorflow as tf

    changed = ops.clip(x + epsilon * noise, 0.0, 1.0)
    for _ in range(steps):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(changed)
            loss = _cross_entropy(y, model(changed, training=False))
        changed = changed + 2.5 / steps * epsilon * ops.sign(tape.gradient(loss, changed))
        changed = ops.clip(ops.clip(changed, x - epsilon, x + epsilon), 0.0, 1.0)
    changed = tf.stop_gradient(changed)
    clean = _cross_entropy(y, model(x, training=True))
    return (clean + _cross_entropy(y, model(changed, training=True))) / 2


def box_loss(model: keras.Model, x: Any, y: Any, noise: Any, epsilon: Any, steps: int) -> Any:
    """Return the mean of the losses on images and at the worst corner of their output boxes."""
    low, high = ops.clip(x - epsilon, 0.0, 1.0), ops.clip(x + epsilon, 0.0, 1.0)
    centre, radius = (low + high) / 2, (high - low) / 2
    for layer in model.layers[1:]:
        if isinstance(layer, layers.Flatten):
            centre, radius = layer(centre), layer(radius)
            continue
        weigh = ops.matmul
        if isinstance(layer, layers.Conv2D):
            weigh = partial(ops.conv, strides=layer.strides, padding=layer.padding)
        centre = weigh(centre, layer.kernel) + layer.bias
        radius = weigh(radius, ops.abs(layer.kernel))
        if layer.activation is keras.activations.relu:
            low, high = ops.relu(centre - radius), ops.relu(centre + radius)
            centre, radius = (low + high) / 2, (high - low) / 2
    right = ops.one_hot(y, centre.shape[-1])
    worst = centre + radius * (1 - 2 * right)  # the label's lowest, all others' highest
    return (_cross_entropy(y, model(x, training=True)) + _cross_entropy(y, worst)) / 2


_LOSSES: dict[str, Callable] = {"normal": normal_loss, "pgd": pgd_loss, "box": box_loss}


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
    folder = s.trial_folder if s.reduced else DATA / "weights" / "exactline"
    weights = check_writable(folder / f"{name}.weights.h5")
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
    log = {**provenance(seed=s.seed), "network": name + "-quick" * s.reduced}
    log |= {"parameters": network.count_params(), "recipe": dataclasses.asdict(recipe)}
    log |= {"train_images": len(data), "held_out_accuracy": zoo.accuracy(network, held_out)}
    log |= {"test_images": len(test), "test_accuracy": zoo.accuracy(network, test)}
    log |= {"minutes": round(minutes, 1), "losses": losses}
    print(f"held out {log['held_out_accuracy']:.4f}, test {log['test_accuracy']:.4f}")
    return ExperimentResult(logs={str(log["network"]): log})
