"""Retraining on found inputs, labelled by the majority of the models (section 7.3)."""

import keras
import numpy as np

from nnslicer_tf._random import as_generator
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, copy_model

__all__ = ["retrain"]


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
    """Return a copy of a classifier that was trained on, with Adam; the model stays as it is.

    Args:
        model: A classifier whose output is logits or probabilities.
        x: Training inputs and found inputs together, `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers.
        epochs: Passes over the inputs, in an order that `rng` determines.
        learning_rate: Of Adam.
        batch_size: Samples in one step.
        rng: For the order.

    Raises:
        InvalidArgumentError: if there is not one class for every input, or a class is
            negative, such as the -1 of a tie.
    """
    if len(x) != len(y) or not len(x):
        raise InvalidArgumentError(f"One class is needed for each of {len(x)} inputs, not {len(y)}")
    if np.min(y) < 0:
        raise InvalidArgumentError(
            f"Classes must not be negative, {int(np.argmin(y))} is {np.min(y)}: leave out ties."
        )
    im = InstrumentedModel(model)
    from_logits = im.logit_operation == im.output_operations[0]
    copy = copy_model(model)
    copy.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        jit_compile=False,
    )
    rng = as_generator(rng)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(order), batch_size):
            rows = np.sort(order[start : start + batch_size])
            copy.train_on_batch(x[rows], y[rows])
    return copy
