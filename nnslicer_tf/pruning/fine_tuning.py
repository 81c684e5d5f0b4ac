"""Short training of a pruned or stolen model, with labels or another model's outputs.

Training with labels follows NNSlicer, sections 6.2.2 and 6.3.2; training with outputs follows
Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015.
"""

from collections.abc import Iterator

import keras
import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import as_generator, check_labels
from nnslicer_tf._training import (
    build_optimizer,
    compile_classifier,
    compiles_steps,
    draw_dropout_seeds,
    train_epochs,
)
from nnslicer_tf.errors import InvalidArgumentError, SeveralInputsError
from nnslicer_tf.instrument import InstrumentedModel, Samples, check_batch_size
from nnslicer_tf.instrument._trace import as_functional
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike


def fine_tune(
    model: ModelLike,
    x: DataLike,
    y: ArrayLike,
    epochs: int = 1,
    *,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
    from_logits: bool = True,
) -> keras.Model:
    """Train a classifier in place with Adam; masks stay in effect.

    Args:
        model: A model with logits `(samples, classes)`, or probabilities; one output stands for
            two classes.
        x: Samples `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers, or one-hot.
        epochs: Number of passes over the samples.
        learning_rate: Learning rate of Adam, or its schedule.
        batch_size: Samples per step; an incomplete last batch is left out, unless it is the
            only one.
        rng: Draws the order of the samples, and dropout.
        progress: Show a progress bar.
        from_logits: Whether the outputs are logits.

    Returns:
        The Keras model.

    Raises:
        InvalidArgumentError: if there are no samples, not one label for each, or no output for a
            label.
        InputShapeError: if the samples do not fit the model, or its input shape is not known.
        SeveralInputsError: if the model has several inputs.
    """
    generator = as_generator(rng)
    check_batch_size(batch_size)
    model, functional = _opened(model)
    x = _samples(functional, x)
    y = check_labels(y, len(x), _classes(functional))
    draw_dropout_seeds(model, generator)
    compile_classifier(model, keras.optimizers.Adam(learning_rate), from_logits)
    train_epochs(
        lambda rows, _: model.train_on_batch(x[rows], y[rows]),
        len(x),
        epochs,
        min(batch_size, len(x)),
        generator,
        drop_last=True,
        progress=progress,
    )
    return model


def imitate(
    model: ModelLike,
    teacher: ModelLike,
    x: DataLike,
    epochs: int = 1,
    *,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> keras.Model:
    """Train a model in place to reproduce a teacher's outputs; no labels are needed.

    Adam minimises the mean squared difference of the outputs. Each sample is blended with up to one
    half of another, and the teacher's outputs for the blends are the targets. This enlarges small
    sets of samples (after Zhang et al., "mixup", ICLR 2018). Tokens are not blended.

    Args:
        model: A model with outputs `(samples, classes)`.
        teacher: A model with the same inputs and outputs.
        x: Samples `(samples, *input_shape)`.
        epochs: Number of passes over the samples.
        learning_rate: Learning rate of Adam, or its schedule.
        batch_size: Samples per step; an incomplete last batch is left out, unless it is the
            only one.
        rng: Draws the order of the samples and their blends, and dropout.
        progress: Show a progress bar.

    Returns:
        The Keras model.

    Raises:
        InvalidArgumentError: if the outputs differ in size, or there are no samples.
        InputShapeError: if the samples do not fit the model, or its input shape is not known.
        SeveralInputsError: if the model has several inputs.
    """
    check_batch_size(batch_size)
    model, functional = _opened(model)
    teacher, of_teacher = _opened(teacher)
    if functional.output_shape != of_teacher.output_shape:
        raise InvalidArgumentError(
            "A model imitates a teacher with outputs of the same shape. "
            f"Received: {functional.output_shape}, {of_teacher.output_shape}"
        )
    x = _samples(functional, x)
    generator = as_generator(rng)
    draw_dropout_seeds(model, generator)
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, "mse", jit_compile=compiles_steps())
    build_optimizer(optimizer, model.trainable_variables)
    blends = not _takes_tokens(functional)

    def step(rows: np.ndarray, generator: np.random.Generator) -> float:
        batch = _blended(x[rows], generator) if blends else x[rows]
        return model.train_on_batch(batch, teacher.predict_on_batch(batch))

    train_epochs(
        step,
        len(x),
        epochs,
        min(batch_size, len(x)),
        generator,
        drop_last=True,
        progress=progress,
    )
    return model


def _opened(model: ModelLike) -> tuple[keras.Model, keras.Model]:
    """Return the Keras model, and a functional one with the same layers, which has shapes."""
    if isinstance(model, InstrumentedModel):
        return model.model, model.functional
    return model, as_functional(model, None)


def _classes(model: keras.Model) -> int | None:
    """Return the number of a classifier's classes, None if its outputs are not a vector."""
    shape = model.output_shape
    return max(2, shape[1]) if isinstance(shape, tuple) and len(shape) == 2 else None


def _samples(model: keras.Model, x: DataLike) -> np.ndarray:
    """Return the samples as an array that fits the model; axes without a size accept any."""
    if len(model.inputs) > 1:
        raise SeveralInputsError(
            f"Model '{model.name}' has {len(model.inputs)} inputs; this training takes models with "
            "one. Join the inputs in a wrapping model, which cuts one tensor into them."
        )
    shape = tuple(model.inputs[0].shape[1:])
    given = tuple(getattr(x, "shape", ()))
    if None in shape and len(given) == len(shape) + 1:
        shape = tuple(b if a is None else a for a, b in zip(shape, given[1:], strict=True))
    return Samples(x, shape).array()


def _takes_tokens(model: keras.Model) -> bool:
    embeddings = (keras.layers.Embedding, keras.layers.ReversibleEmbedding)
    whole_numbers = "int" in keras.backend.standardize_dtype(model.inputs[0].dtype)
    return whole_numbers or any(isinstance(layer, embeddings) for layer in _all_layers(model))


def _all_layers(model: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a model and of its nested models."""
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _all_layers(layer)


def _blended(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return samples that are each blended with a share, from 0 to 1/2, of another sample."""
    share = rng.uniform(0, 0.5, (len(x), *[1] * (x.ndim - 1))).astype(x.dtype)
    return (1 - share) * x + share * x[rng.permutation(len(x))]
