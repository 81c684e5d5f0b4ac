"""Short training of a pruned or a stolen model (NNSlicer, sections 6.2.2 and 6.3.2)."""

import keras
import numpy as np

from nnslicer_tf._checks import check_labels
from nnslicer_tf._random import as_generator
from nnslicer_tf._training import compile_classifier, train_epochs
from nnslicer_tf.instrument import check_array


def fine_tune(
    model: keras.Model,
    x: np.ndarray,
    y: np.ndarray,
    epochs: int = 1,
    *,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
    from_logits: bool = True,
) -> keras.Model:
    """Train a classifier, in place, by Adam; masks hold.

    Args:
        model: A model with logits `(samples, classes)`, or probabilities.
        x: Samples `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers.
        epochs: Passes over the samples.
        learning_rate: Adam's, or its schedule.
        batch_size: Samples in a step; a batch that is not full at the end is left out,
            unless it is the only one.
        rng: Draws the order of the samples.
        progress: Show a progress bar.
        from_logits: Whether the outputs are logits.

    Returns:
        The model.

    Raises:
        InvalidArgumentError: if there are no samples, or there is not one label for each.
        InputShapeError: if the samples do not fit the model.
    """
    generator = as_generator(rng)
    x = check_array(x, tuple(model.input_shape[1:]))
    y = check_labels(y, len(x))
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
