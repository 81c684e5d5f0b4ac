"""Retraining on inputs on which models disagree (DeepXplore, section 7.3)."""

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_labels
from nnslicer_tf._training import compile_loss, draw_dropout_seeds, loss_of, train_epochs
from nnslicer_tf.instrument import InstrumentedModel, copy_model


def majority_of(predictions: np.ndarray) -> np.ndarray:
    """Return each input's majority class of `(inputs, models)` predictions; -1 for a tie."""
    votes = np.zeros((len(predictions), predictions.max(initial=0) + 1), np.int64)
    for column in predictions.T:
        votes[np.arange(len(predictions)), column] += 1
    most = votes.max(axis=1, keepdims=True)
    tie = (votes == most).sum(axis=1) > 1
    return np.where(tie, -1, votes.argmax(axis=1))


def retrain(
    model: keras.Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    epochs: int = 5,
    learning_rate: float = 1e-4,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
) -> keras.Model:
    """Return a copy of a classifier, trained further with Adam.

    The paper labels the inputs found by the majority of the models (section 7.3), `majority_of`.

    Args:
        model: A classifier whose output is logits, probabilities or their logarithms, or one
            sigmoid.
        x: Training inputs together with those found, `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers.
        epochs: Passes over the inputs.
        learning_rate: Learning rate of Adam.
        batch_size: Samples in one step.
        rng: Seed or generator of the order, and of dropout.

    Raises:
        InvalidArgumentError: if inputs and classes differ in number, or the model lacks a class.
    """
    im = InstrumentedModel(model)
    y = check_labels(y, len(x), im.classes.count)
    copy = copy_model(model)
    compile_loss(copy, keras.optimizers.Adam(learning_rate), loss_of(im.classes))
    generator = as_generator(rng)
    draw_dropout_seeds(copy, generator)

    def step(rows: np.ndarray, _: np.random.Generator) -> float:
        rows = np.sort(rows)  # a memory-mapped x is read in order
        return copy.train_on_batch(x[rows], y[rows])

    train_epochs(step, len(x), epochs, batch_size, generator, progress=False)
    return copy
