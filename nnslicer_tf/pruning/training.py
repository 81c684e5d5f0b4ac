"""Short training of a pruned or a stolen model (NNSlicer, sections 6.2.2 and 6.3.2)."""

import keras
import numpy as np

from nnslicer_tf._progress import track
from nnslicer_tf._random import as_generator
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import check_array

__all__ = ["fine_tune"]


def fine_tune(
    model: keras.Model,
    x: np.ndarray,
    y: np.ndarray,
    epochs: int = 1,
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 128,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> keras.Model:
    """Train a model whose outputs are logits, in place, by Adam; masks hold.

    Args:
        model: A model with logits `(samples, classes)`.
        x: Samples `(samples, *input_shape)`.
        y: Their classes, `(samples,)` integers.
        epochs: Passes over the samples.
        learning_rate: Adam's.
        batch_size: Samples in a step; a batch that is not full at the end is left out,
            unless it is the only one.
        rng: Draws the order of the samples.
        progress: Show a progress bar.

    Returns:
        The model.

    Raises:
        InvalidArgumentError: if there are no samples, or not as many labels.
        InputShapeError: if the samples do not fit the model.
    """
    generator = as_generator(rng)
    x = check_array(x, tuple(model.input_shape[1:]))
    if not len(x) or len(x) != len(y):
        raise InvalidArgumentError(f"x has {len(x)} samples, y has {len(y)} labels.")
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # XLA's convolutions are slower on a CPU
    )
    size = min(batch_size, len(x))
    steps = len(x) // size
    for _ in range(epochs):
        order = generator.permutation(len(x))[: steps * size].reshape(steps, size)
        for chosen in track(order, "Training", steps, progress):
            model.train_on_batch(x[chosen], np.asarray(y)[chosen])
    return model
