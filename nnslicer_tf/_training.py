"""The training loop over shuffled batches, used for all training in this package.

The caller supplies the training step for a batch, and a random generator for the order of the
samples: equal generators give equal weights if the backend is deterministic.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_count, check_number
from nnslicer_tf._environment import track, without_retracing_warnings
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf.errors import InvalidArgumentError

TrainingStep = Callable[[np.ndarray, np.random.Generator], float]
"""Takes the indices of a batch's samples and the random generator, and returns the batch's loss."""

_STATE = "seed_generator_state"


def loss_of(kind: OutputClasses) -> Any:
    """Return the loss of an output: mean squared error for numbers, else cross-entropy.

    Labels are class indices, also of independent labels, of which each sample then has one.
    """
    from_logits = kind.are_logits
    if kind.is_number:
        return keras.losses.MeanSquaredError()
    if not kind.is_multi_label:
        if kind.is_binary:
            return keras.losses.BinaryCrossentropy(from_logits)
        return keras.losses.SparseCategoricalCrossentropy(from_logits, axis=kind.axis)

    def loss(y: Any, outputs: Any) -> Any:
        labels = keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32")
        labels = keras.ops.one_hot(labels, outputs.shape[-1])
        return keras.losses.binary_crossentropy(labels, outputs, from_logits=from_logits)

    return loss


def compile_loss(model: keras.Model, optimizer: keras.optimizers.Optimizer, loss: Any) -> None:
    """Compile for a loss, or one for each output, and create the optimiser's state."""
    # XLA's convolutions are slower than TensorFlow's.
    compiles = False if keras.backend.backend() == "tensorflow" else "auto"
    model.compile(optimizer=optimizer, loss=loss, jit_compile=compiles)
    build_optimizer(model.optimizer, model.trainable_variables)


def build_optimizer(optimizer: keras.optimizers.Optimizer, variables: list) -> None:
    """Create an optimiser's state before the first step, so that training leaves no graphs behind.

    Otherwise the first step is traced twice, and TensorFlow keeps a graph for every variable until
    the process ends. Summing gradients over replicas would keep the step's own graph, so it is left
    out where there is a single replica.
    """
    optimizer.build(variables)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if not tf.distribute.has_strategy():
            optimizer._all_reduce_sum_gradients = list


def adam(learning_rate: Any) -> Any:
    """Return Keras's Adam; raise InvalidArgumentError for an invalid learning rate."""
    try:
        if not callable(learning_rate):
            check_number("learning_rate", learning_rate, "(0, inf)")
        return keras.optimizers.Adam(learning_rate)
    except ValueError as error:
        raise InvalidArgumentError(
            "learning_rate must be a positive float or a Keras LearningRateSchedule. "
            f"Received: {learning_rate!r}"
        ) from error


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

    `rng` draws the order; `step` may draw from it as well. With `drop_last`, the last batch is
    skipped if it is not full. `what` is the name of the progress bar.
    """
    check_count("batch_size", batch_size)
    order = rng.permutation(samples)
    starts = range(0, samples - batch_size + 1 if drop_last else samples, batch_size)
    return [
        step(order[start : start + batch_size], rng)
        for start in track(starts, what, len(starts), progress)
    ]


@without_retracing_warnings()
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
    """Train for some epochs, as `train_epoch` does, and return each epoch's mean loss."""
    check_count("epochs", epochs, 0)
    means = []
    for epoch in range(1, epochs + 1):
        options: Any = {"drop_last": drop_last, "progress": progress}
        what = f"epoch {epoch}/{epochs}"
        losses = train_epoch(step, samples, batch_size, rng, what=what, **options)
        means.append(float(np.mean(losses)))
    return means


def selective_optimizer(
    optimizer: keras.optimizers.Optimizer, masks: Mapping[int, np.ndarray]
) -> keras.optimizers.Optimizer:
    """Return an optimiser of the same class and settings, without state, that freezes parameters.

    `masks` maps the id of a trained variable to a boolean array, True for what may change; other
    variables are frozen. Frozen values are restored after every step, so that weight decay and
    momentum leave them bit-identical.
    """
    kind = type(optimizer)
    # Converted here, because a compiled step would embed them in its graph.
    free = {key: keras.ops.convert_to_tensor(np.array(mask)) for key, mask in masks.items()}

    class Selective(kind):  # type: ignore[valid-type, misc]  # a base found at run time
        def apply(self, grads: list, trainable_variables: list | None = None) -> Any:
            given = trainable_variables
            variables = list(self._trainable_variables if given is None else given)
            masked = [
                gradient if gradient is None else keras.ops.where(_free(v), gradient, 0.0)
                for v, gradient in zip(variables, grads, strict=True)
            ]
            before = [keras.ops.copy(variable.value) for variable in variables]
            result = super().apply(masked, trainable_variables)
            _restore(variables, before)
            return result

        def finalize_variable_values(self, var_list: list) -> None:
            before = [keras.ops.copy(variable.value) for variable in var_list]
            super().finalize_variable_values(var_list)  # of a moving average of the weights
            _restore(var_list, before)

    def _free(variable: keras.Variable) -> Any:
        mask = free.get(id(variable))
        return keras.ops.zeros(variable.shape, dtype="bool") if mask is None else mask

    def _restore(variables: list, before: list) -> None:
        for variable, old in zip(variables, before, strict=True):
            variable.assign(keras.ops.where(_free(variable), variable.value, old))

    Selective.__name__ = f"Selective{kind.__name__}"
    return Selective.from_config(optimizer.get_config())


def set_dropout_seeds(model: keras.Model, seeds: Sequence[int]) -> None:
    """Set the random states of layers such as dropout; copies and files do not preserve them."""
    for i, state in enumerate([v for v in model.variables if v.path.endswith(_STATE)]):
        state.assign(np.random.SeedSequence([*seeds, i]).generate_state(2))


def draw_dropout_seeds(model: keras.Model, rng: np.random.Generator) -> None:
    """Draw the random states of layers such as dropout; without any, nothing is drawn."""
    if any(v.path.endswith(_STATE) for v in model.variables):
        set_dropout_seeds(model, [int(rng.integers(2**32))])
