"""The training loop over shuffled batches that all training in this package uses.

The caller supplies the step that trains on a batch. Its random generator determines the order
of the samples, so that equal generators give equal weights where the backend is deterministic.
"""

from collections.abc import Callable

import keras
import numpy as np

from nnslicer_tf._progress import track

TrainingStep = Callable[[np.ndarray, np.random.Generator], float]
"""Takes the indices of a batch's samples and the random generator, and returns the batch's loss."""


def compile_classifier(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, from_logits: bool = True
) -> None:
    """Compile a model `(samples, classes)` for cross-entropy with integer labels."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        jit_compile=False,  # XLA's convolutions are slower on a CPU
    )


def train_epoch(
    step: TrainingStep,
    samples: int,
    batch_size: int,
    rng: np.random.Generator,
    *,
    drop_last: bool = False,
    what: str = "Training",
    progress: bool = True,
) -> list[float]:
    """Train on every sample once, in random order; return the loss of each batch.

    Args:
        step: Called with each batch.
        samples: Number of samples.
        batch_size: Samples per step; the last batch may have fewer.
        rng: Generator of the order; `step` may draw from it as well.
        drop_last: Leave out the last batch if it is not full.
        what: Name of the progress bar.
        progress: Show a progress bar.
    """
    order = rng.permutation(samples)
    starts = range(0, samples - batch_size + 1 if drop_last else samples, batch_size)
    return [
        step(order[start : start + batch_size], rng)
        for start in track(starts, what, len(starts), progress)
    ]


def train_epochs(
    step: TrainingStep,
    samples: int,
    epochs: int,
    batch_size: int,
    rng: np.random.Generator,
    *,
    drop_last: bool = False,
    progress: bool = True,
) -> list[float]:
    """Train for `epochs` epochs, each in a new random order; return each epoch's mean loss.

    The other arguments are those of `train_epoch`.
    """
    means = []
    for epoch in range(1, epochs + 1):
        losses = train_epoch(
            step,
            samples,
            batch_size,
            rng,
            drop_last=drop_last,
            what=f"epoch {epoch}/{epochs}",
            progress=progress,
        )
        means.append(float(np.mean(losses)))
    return means
