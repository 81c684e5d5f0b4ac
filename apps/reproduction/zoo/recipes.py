"""Recipes for training classifiers of the zoo: cosine learning rate, augmentation, exact resume.

An epoch's random choices (order, flips, crops, dropout) depend only on the seed and its number, and
checkpoints include the optimiser's state: an interrupted and resumed run gives the same weights as
an uninterrupted one on the same machine.

Memory: the training images as one float32 array. Time: on two CPU cores a minute for the LeNets on
MNIST, an hour or more for 40 epochs of ResNet10 on CIFAR-10; on a GPU with `KERAS_BACKEND=jax`,
minutes for 60 epochs of VGG-16.
"""

import os
import time
from dataclasses import dataclass, fields

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf._files import digest
from nnslicer_tf._training import compile_loss, set_dropout_seeds, train_epoch
from nnslicer_tf.datasets import Dataset, texts
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, MissingFileError
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.instrument.functional import inputs_like
from nnslicer_tf.zoo import accuracy

PRECISIONS = ("float32", "mixed_bfloat16")
UNKNOWN_SHARE = 0.15
"""Share of a sentence's words that the augmentation "unknown_words" hides."""


@dataclass(frozen=True)
class Recipe:
    """A recipe for training a model.

    Attributes:
        optimizer: `"adam"` or `"sgd"` (Nesterov momentum 0.9).
        learning_rate: The peak, after one epoch of linear warm-up; a cosine then decays it to
            zero at the last step.
        epochs: Passes over the training images.
        batch_size: Images in a step.
        weight_decay: Decoupled decay of kernels (Loshchilov and Hutter, 2019).
        augment: `"none"`, `"shift"` (crops of the image padded by 2), `"flip_crop"` (horizontal
            flips, crops of the image padded by 4), or `"unknown_words"` (15 % of the words become
            unknown, so that a model learns to handle these).
        precision: `"float32"`, or `"mixed_bfloat16"`, which computes wide layers faster on
            hardware that supports it. Weights, and the last layer's outputs, are float32 in both
            (Micikevicius et al., 2018).
        sizes: `(epochs, side)` of the first epochs, which train on images resized to side × side
            (progressive resizing; Karras et al., 2018, section 2, for generators): a quarter of
            the pixels takes a quarter of the time. For models with global pooling.

    Raises:
        InvalidArgumentError: for an unknown optimizer, augmentation or precision.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    epochs: int = 12
    batch_size: int = 128
    weight_decay: float = 0.0
    augment: str = "none"
    precision: str = "float32"
    sizes: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_name("optimizer", self.optimizer, ("adam", "sgd"))
        augmentations = ("none", "shift", "flip_crop", "unknown_words")
        check_name("augmentation", self.augment, augmentations)
        check_name("precision", self.precision, PRECISIONS)

    def side(self, epoch: int) -> int | None:
        """Return the side of images in an epoch, counted from 0; None for the data's own."""
        for epochs, side in self.sizes:
            if epoch < epochs:
                return side
            epoch -= epochs
        return None


DEFAULT_RECIPE = Recipe("sgd", 0.1, 160, 128, 5e-3, "flip_crop")
"""The recipe of all models that `RECIPES` does not name."""

RECIPES: dict[str, Recipe] = {
    "digits_cnn": Recipe(learning_rate=5e-3, epochs=40, batch_size=32),
    "mlp": Recipe(epochs=20, augment="shift"),
    **dict.fromkeys(
        ("lenet", "lenet1", "lenet4", "lenet5", "simplenet"), Recipe(epochs=12, augment="shift")
    ),
    "lstm_rows": Recipe(learning_rate=2e-3, epochs=12, augment="shift"),
    "resnet10": Recipe("sgd", 0.1, 40, 128, 5e-3, "flip_crop"),
    "resnet10_preactivation": Recipe("sgd", 0.1, 30, 128, 5e-3, "flip_crop"),
    "plainnet20": Recipe("sgd", 0.1, 15, 128, 5e-3, "flip_crop", sizes=((5, 16), (5, 24))),
    "resnet18": Recipe(
        "sgd", 0.1, 22, 128, 5e-3, "flip_crop", "mixed_bfloat16", sizes=((8, 16), (7, 24))
    ),
    "mobilenet_v3_small": Recipe(
        "sgd", 0.1, 45, 128, 5e-3, "flip_crop", sizes=((15, 16), (15, 24))
    ),
    # The rate was chosen by the held-out accuracy; 0.02 gave less.
    "alexnet": Recipe("sgd", 0.05, 100, 128, 5e-3, "flip_crop", "mixed_bfloat16"),
    "vgg16": Recipe("sgd", 0.05, 60, 128, 5e-3, "flip_crop", "mixed_bfloat16"),
    "vit": Recipe("adam", 1e-3, 8, 128, 0.05, "flip_crop"),
    "text_transformer": Recipe("adam", 1e-3, 6, 64, 0.05, "unknown_words"),
    "text_lstm": Recipe("adam", 1e-3, 5, 64, 0.05, "unknown_words"),
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
    stop: int | None = None,
) -> list[dict[str, float]]:
    """Train `model`, whose outputs are logits, in place.

    Args:
        model: A model with logits `(samples, classes)`.
        data: The training images and labels.
        recipe: How to train.
        rng: The seed of order and augmentation.
        folder: Receives a checkpoint after every epoch; training resumes from an existing one with
            the same initial weights, data, recipe and seed.
        validation: Images for the accuracy after every epoch; they do not affect the training.
        progress: Show a progress bar for every epoch.
        stop: Stop after this many epochs, with the learning rates of the full recipe.

    Returns:
        For every epoch: its number, mean training loss, seconds, and validation accuracy.

    Raises:
        ProfileMismatchError: if the folder has a checkpoint of another run.
        CorruptFileError: if the checkpoint cannot be read.
        InvalidArgumentError: if the folder is not writable, or if the recipe changes the size of
            images and the model takes only one size.
    """
    steps = -(-len(data) // recipe.batch_size)
    if not model.built:
        model(data.x[:1])  # creates the weights
    trained = in_precision(of_any_size(model) if recipe.sizes else model, recipe.precision)
    schedule = learning_rates(recipe, steps)
    if recipe.optimizer == "sgd":
        decay = recipe.weight_decay or None
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True, weight_decay=decay)
    else:
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=recipe.weight_decay)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    compile_loss(trained, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    variables = {
        **{f"weight{i}": variable for i, variable in enumerate(trained.weights)},
        **{f"optimizer{i}": variable for i, variable in enumerate(trained.optimizer.variables)},
    }
    # The store holds the last finished epoch. Fields of the recipe with default values are left
    # out of its identity, so that checkpoints survive the addition of one.
    default = {field.name: field.default for field in fields(recipe)}
    changed = {name: value for name, value in vars(recipe).items() if value != default[name]}
    run = {"model": model.name, "rng": rng, "recipe": changed, "data": digest([data.x, data.y])}
    run["initial weights"] = digest(model.get_weights())
    store = Store(folder, run, "checkpoint of a training", compress=False)
    history: list[dict[str, float]] = []
    while keys := store.keys():
        try:
            header, arrays = store.load(keys[-1])
        except MissingFileError:  # another run has finished a later epoch
            continue
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: array.shape for name, array in arrays.items()}:
            raise CorruptFileError(
                f"'{store.path(keys[-1])}' does not have the variables of '{model.name}'."
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])
        history = header["history"]
        break

    last = recipe.epochs if stop is None else min(stop, recipe.epochs)
    for epoch in range(len(history), last):
        side = recipe.side(epoch)

        def step(
            rows: np.ndarray, generator: np.random.Generator, side: int | None = side
        ) -> float:
            x = augment(data.x[rows], recipe.augment, generator)
            return trained.train_on_batch(x if side is None else resized(x, side), data.y[rows])

        set_dropout_seeds(trained, [rng, epoch])
        start = time.monotonic()
        order, what = np.random.default_rng([rng, epoch]), f"epoch {epoch + 1}/{recipe.epochs}"
        losses = train_epoch(
            step, len(data), recipe.batch_size, order, what=what, progress=progress
        )
        row = {
            "epoch": epoch + 1,
            "mean_loss": float(np.mean(losses)),
            "seconds": round(time.monotonic() - start, 1),
        }
        if validation is not None:
            row["validation_accuracy"] = accuracy(trained, validation)
        history.append(row)
        arrays = {name: keras.ops.convert_to_numpy(v) for name, v in variables.items()}
        store.save(f"epoch{len(history):04d}", {"history": history}, arrays)
        store.path(f"epoch{len(history) - 1:04d}").unlink(missing_ok=True)
    if trained is not model:
        model.set_weights(trained.get_weights())
    return history


def resized(x: np.ndarray, side: int) -> np.ndarray:
    """Resize images to `(N, side, side, channels)`, interpolating linearly with antialiasing."""
    images = keras.ops.image.resize(x, (side, side), interpolation="bilinear", antialias=True)
    return keras.ops.convert_to_numpy(images)


def of_any_size(model: keras.Model) -> keras.Model:
    """Return a copy of a functional image model for images of any height and width, if possible."""
    shape = model.inputs[0].shape
    if len(model.inputs) != 1 or len(shape) != 4:
        raise InvalidArgumentError(
            f"Only a model of images can be trained at several sizes; '{model.name}' takes "
            f"{[tuple(tensor.shape) for tensor in model.inputs]}."
        )
    try:
        entry = inputs_like(model, [(None, None, shape[-1])])
        copy = keras.models.clone_model(model, input_tensors=entry)
        copy.set_weights(model.get_weights())
    except ValueError as error:
        raise InvalidArgumentError(
            f"'{model.name}' takes images of {tuple(shape[1:3])} only, so that a recipe for it can "
            "have no `sizes`; use global pooling before the first Dense layer."
        ) from error
    return copy


def in_precision(model: keras.Model, precision: str) -> keras.Model:
    """Return a float32 model itself, or a copy in mixed precision, but for its last layer."""
    check_name("precision", precision, PRECISIONS)
    if precision == "float32":
        return model
    copy = copy_model(model)
    for layer in copy.layers[:-1]:
        layer.dtype_policy = precision
    return copy


def learning_rates(recipe: Recipe, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return the learning rate by step: an epoch of linear warm-up, then a cosine to zero."""
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=max(1, steps * (recipe.epochs - 1)),
        warmup_target=recipe.learning_rate,
        warmup_steps=steps,
    )


def augment(x: np.ndarray, how: str, generator: np.random.Generator) -> np.ndarray:
    """Return augmented images or sentences; `generator` draws flips, then shifts."""
    if how == "none":
        return x
    if how == "unknown_words":
        hidden = (generator.random(x.shape) < UNKNOWN_SHARE) & (x != texts.PADDING)
        return np.where(hidden, np.int32(texts.UNKNOWN), x)
    if how == "flip_crop":
        flip = generator.random(len(x)) < 0.5
        x = np.where(flip[:, None, None, None], x[:, :, ::-1], x)
    # Shift each image by up to `most` pixels, filling with zeros at the border.
    most = 2 if how == "shift" else 4
    count, height, width, _ = x.shape
    padded = np.pad(x, ((0, 0), (most, most), (most, most), (0, 0)))
    top, left = generator.integers(0, 2 * most + 1, (2, count))
    rows = top[:, None] + np.arange(height)
    columns = left[:, None] + np.arange(width)
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
