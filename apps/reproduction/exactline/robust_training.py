"""Training of the networks whose linearity is compared: normal, with PGD, or with boxes (DiffAI).

The networks are those of the paper's CIFAR-10 and MNIST experiments, published by ERAN. Box
training propagates intervals through the network and minimises the loss at their worst corner:
DiffAI (Mirman, Gehr and Vechev, ICML 2018) with its Box domain; its other domains are
not implemented. Requires the TensorFlow backend. Time: seconds to minutes per epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from nnslicer_tf._checks import as_generator, check_name
from nnslicer_tf._training import build_optimizer, train_epochs
from nnslicer_tf.datasets import Dataset

METHODS = ("normal", "pgd", "box")


@dataclass(frozen=True)
class RobustRecipe:
    """Settings of the training of a network by one of `METHODS`.

    Attributes:
        epsilon: Largest change of a pixel, on images in [0, 1].
        steps: Gradient steps of PGD, each of size 2.5 · epsilon / steps.
    """

    method: str
    epsilon: float
    epochs: int
    batch_size: int = 128
    learning_rate: float = 1e-3
    steps: int = 7


def _network(
    name: str,
    filters: Sequence[tuple[int, int, int]],
    units: Sequence[int],
    padding: str,
    input_shape: tuple[int, int, int],
    classes: int = 10,
) -> keras.Model:
    """Return a model of convolutions (filters, size, stride) and dense layers, with logits."""
    x = inputs = keras.Input(input_shape)
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
    model: keras.Model,
    data: Dataset,
    recipe: RobustRecipe,
    *,
    rng: int | np.random.Generator,
    progress: bool = True,
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

    return train_epochs(
        step, len(data), recipe.epochs, recipe.batch_size, as_generator(rng), progress=progress
    )


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
        if isinstance(layer, layers.Dense):
            weigh = ops.matmul
        else:
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
