"""Train a classifier of the zoo: cosine learning rate, augmentation, exact resume.

What an epoch draws (order, flips, crops, dropout) depends on the seed and the epoch's
number alone, and a checkpoint holds the weights and the optimiser's state: a run that was
interrupted and resumed gives the same weights as one that was not, on the same machine.

Memory: the training images as one float32 array. Time: on two CPU cores a minute for the
LeNets on MNIST, an hour or more for 40 epochs of ResNet10 on CIFAR-10.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf._files import atomic_path
from nnslicer_tf._names import check_name
from nnslicer_tf._progress import track
from nnslicer_tf._random import as_generator
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

__all__ = [
    "DEFAULT_RECIPE",
    "RECIPES",
    "Recipe",
    "accuracy",
    "in_precision",
    "save_weights",
    "train",
]


OPTIMIZERS = ("adam", "sgd")
AUGMENTATIONS = ("none", "shift", "flip_crop")
PRECISIONS = ("float32", "mixed_bfloat16")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        optimizer: `"adam"` or `"sgd"` (Nesterov momentum 0.9).
        learning_rate: the highest, after one epoch of linear warm-up; a cosine then
            brings it to zero at the last step.
        epochs: passes over the training images.
        batch_size: images in a step.
        weight_decay: decoupled decay of kernels (Loshchilov and Hutter, 2019).
        augment: `"none"`, `"shift"` (crops of the image padded by 2), or `"flip_crop"`
            (horizontal flips, crops of the image padded by 4).
        precision: what layers compute in: `"float32"`, or `"mixed_bfloat16"`, which is
            faster for wide layers where the hardware has it. Weights, and the last layer's
            outputs, are float32 in both (Micikevicius et al., 2018).

    Raises:
        InvalidArgumentError: for an optimizer, augmentation or precision that there is not.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    epochs: int = 12
    batch_size: int = 128
    weight_decay: float = 0.0
    augment: str = "none"
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_name("optimizer", self.optimizer, OPTIMIZERS)
        check_name("augmentation", self.augment, AUGMENTATIONS)
        check_name("precision", self.precision, PRECISIONS)


DEFAULT_RECIPE = Recipe("sgd", 0.1, 160, 128, 5e-3, "flip_crop")
"""The recipe of all models that `RECIPES` does not name."""

_SHIFT = Recipe(epochs=12, augment="shift")

RECIPES: dict[str, Recipe] = {
    "digits_cnn": Recipe(learning_rate=5e-3, epochs=40, batch_size=32),
    "mlp": Recipe(epochs=20, augment="shift"),
    "lenet": _SHIFT,
    "lenet1": _SHIFT,
    "lenet4": _SHIFT,
    "lenet5": _SHIFT,
    "resnet10": Recipe("sgd", 0.1, 40, 128, 5e-3, "flip_crop"),
    "alexnet": Recipe("sgd", 0.02, 100, 128, 5e-3, "flip_crop"),
    "vgg16": Recipe("sgd", 0.05, 160, 128, 5e-3, "flip_crop"),
}
"""The recipes of single models."""


def train(
    model: keras.Model,
    data: Dataset,
    recipe: Recipe,
    *,
    rng: int,
    folder: str | os.PathLike,
    validation: Dataset | None = None,
    progress: bool = True,
) -> list[dict[str, float]]:
    """Train `model`, whose outputs are logits, in place.

    Args:
        model: a model with logits (N, classes).
        data: the training images and labels.
        recipe: how to train.
        rng: the seed of order and augmentation.
        folder: where the checkpoint of every epoch is written; if one of the same
            recipe and seed is there, training goes on from it.
        validation: images on which the accuracy is measured after every epoch; the
            training does not depend on it.
        progress: show a progress bar for every epoch.

    Returns:
        For every epoch: its number, mean training loss, seconds, and validation accuracy.

    Raises:
        InvalidArgumentError: if the folder has a checkpoint of another run.
        CorruptFileError: if the checkpoint cannot be read.
    """
    steps = -(-len(data) // recipe.batch_size)
    trained = in_precision(model, recipe.precision)
    trained.compile(
        optimizer=_optimizer(recipe, steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # XLA's convolutions are a third slower on a CPU
    )
    checkpoint = _Checkpoint(Path(folder), model.name, recipe, rng)
    history = checkpoint.restore(trained)
    for epoch in range(len(history), recipe.epochs):
        batches = _batches(data, recipe, rng, epoch)
        _reseed_dropout(trained, rng, epoch)
        start = time.monotonic()
        losses = [
            trained.train_on_batch(x, y)
            for x, y in track(batches, f"epoch {epoch + 1}/{recipe.epochs}", steps, progress)
        ]
        row = {
            "epoch": epoch + 1,
            "mean_loss": float(np.mean(losses)),
            "seconds": round(time.monotonic() - start, 1),
        }
        if validation is not None:
            row["validation_accuracy"] = accuracy(trained, validation)
        history.append(row)
        checkpoint.save(trained, history)
    if trained is not model:
        model.set_weights(trained.get_weights())
    return history


def accuracy(model: keras.Model, data: Dataset, batch_size: int = 512) -> float:
    """Return the share of `data` whose largest output is at the label."""
    predicted = [
        np.argmax(model.predict_on_batch(data.x[i : i + batch_size]), axis=1)
        for i in range(0, len(data), batch_size)
    ]
    return float(np.mean(np.concatenate(predicted) == data.y))


def save_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write `path` (its name ends in `.weights.h5`) whole or not at all.

    Of a compiled model the optimiser's state is written too.
    """
    with atomic_path(path) as temporary:
        named = temporary.with_suffix(".weights.h5")  # Keras takes no other ending
        try:
            model.save_weights(named)
            os.replace(named, temporary)
        finally:
            named.unlink(missing_ok=True)


def in_precision(model: keras.Model, precision: str) -> keras.Model:
    """Return a float32 model, or a copy whose layers, but for the last, compute in bfloat16.

    A copy, because compiled functions of the model must not go on in bfloat16 afterwards.
    Weights are float32 either way.

    Args:
        model: A model that computes in float32.
        precision: `"float32"` or `"mixed_bfloat16"`.

    Raises:
        InvalidArgumentError: if the precision is another.
    """
    check_name("precision", precision, PRECISIONS)
    if precision == "float32":
        return model
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for layer in copy.layers[:-1]:
        layer.dtype_policy = precision
    return copy


def _optimizer(recipe: Recipe, steps: int) -> keras.optimizers.Optimizer:
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=max(1, steps * (recipe.epochs - 1)),
        warmup_target=recipe.learning_rate,
        warmup_steps=steps,
    )
    if recipe.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(
            schedule, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay or None
        )
    else:
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=recipe.weight_decay)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def _reseed_dropout(model: keras.Model, rng: int, epoch: int) -> None:
    """Set the random states of dropout layers; Keras does not restore them from a file."""
    states = [v for v in model.variables if v.path.endswith("seed_generator_state")]
    for i, state in enumerate(states):
        state.assign(np.random.SeedSequence([rng, epoch, i]).generate_state(2))


def _batches(
    data: Dataset, recipe: Recipe, rng: int, epoch: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield one epoch's batches, in an order that seed and epoch determine."""
    generator = as_generator(np.random.default_rng([rng, epoch]))
    order = generator.permutation(len(data))
    for start in range(0, len(data), recipe.batch_size):
        index = order[start : start + recipe.batch_size]
        yield _augment(data.x[index], recipe.augment, generator), data.y[index]


def _augment(x: np.ndarray, how: str, generator: np.random.Generator) -> np.ndarray:
    """Return randomly flipped and shifted images (N, height, width, channels)."""
    if how == "none":
        return x
    if how == "shift":
        return _shift(x, 2, generator)
    flip = generator.random(len(x)) < 0.5
    x = np.where(flip[:, None, None, None], x[:, :, ::-1], x)
    return _shift(x, 4, generator)


def _shift(x: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """Return every image moved by up to `most` pixels; zeros come in at the border."""
    count, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (most, most), (most, most), (0, 0)))
    top, left = generator.integers(0, 2 * most + 1, (2, count))
    rows = top[:, None] + np.arange(height)
    columns = left[:, None] + np.arange(width)
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


class _Checkpoint:
    """The last finished epoch of one run: its weights, and a history that names them."""

    def __init__(self, folder: Path, model: str, recipe: Recipe, rng: int):
        self._folder = folder
        self._history = folder / "history.json"
        self._run = {"model": model, "rng": rng, "recipe": asdict(recipe)}

    def restore(self, model: keras.Model) -> list[dict[str, float]]:
        """Bring the compiled `model` to the checkpoint's state; return its history."""
        if not self._history.exists():
            return []
        try:
            saved = json.loads(self._history.read_text())
            run, history = saved["run"], saved["history"]
            # Of a checkpoint from before a field was added it has the default.
            run["recipe"] = asdict(Recipe(**run["recipe"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"'{self._history}' is no training history.") from error
        if run != self._run:
            raise InvalidArgumentError(
                f"'{self._folder}' has the checkpoint of another run ({run}), not of "
                f"{self._run}. Give another folder or remove it."
            )
        path = self._weights(len(history))
        model.optimizer.build(model.trainable_variables)
        try:
            model.load_weights(path)  # of a compiled model: the optimiser's state too
        except (OSError, ValueError, KeyError) as error:
            raise CorruptFileError(f"'{path}' is no readable checkpoint: {error}") from error
        return history

    def save(self, model: keras.Model, history: list[dict[str, float]]) -> None:
        """Write the weights, then the history, then remove the weights before them."""
        save_weights(model, self._weights(len(history)))
        with atomic_path(self._history) as path:
            path.write_text(json.dumps({"run": self._run, "history": history}, indent=1))
        self._weights(len(history) - 1).unlink(missing_ok=True)

    def _weights(self, epochs: int) -> Path:
        return self._folder / f"epoch{epochs:04d}.weights.h5"
