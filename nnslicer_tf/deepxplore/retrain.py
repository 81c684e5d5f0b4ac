"""Retraining on inputs that were found, labelled by the majority of the models (section 7.3)."""

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_labels
from nnslicer_tf._training import (
    are_logits,
    compile_classifier,
    draw_dropout_seeds,
    train_epochs,
)
from nnslicer_tf.instrument import InstrumentedModel, copy_model


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
    """Return a copy of a classifier, trained further with Adam; the model is not changed.

    Args:
        model: A classifier whose output is logits, probabilities or their logarithms, or one
            sigmoid.
        x: Training inputs together with those found, `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers.
        epochs: Passes over the inputs, in an order that `rng` determines.
        learning_rate: Learning rate of Adam.
        batch_size: Samples in one step.
        rng: Source of randomness of the order, and dropout.

    Raises:
        InvalidArgumentError: unless there is one class for every input, or if a class is
            negative, such as the -1 of a tie.
    """
    y = check_labels(y, len(x))
    im = InstrumentedModel(model)
    copy = copy_model(model)
    from_logits = are_logits(im[im.output_operations[0]].params)
    optimizer = keras.optimizers.Adam(learning_rate)
    compile_classifier(copy, optimizer, from_logits, binary=im.classes.is_binary)
    generator = as_generator(rng)
    draw_dropout_seeds(copy, generator)

    def step(rows: np.ndarray, _: np.random.Generator) -> float:
        rows = np.sort(rows)  # a memory-mapped x is read in order
        return copy.train_on_batch(x[rows], y[rows])

    train_epochs(step, len(x), epochs, batch_size, generator, progress=False)
    return copy
