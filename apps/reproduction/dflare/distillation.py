"""Knowledge distillation: a smaller model that reproduces another one's probabilities.

Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015; DFlare's students.
"""

from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_number
from nnslicer_tf._training import build_optimizer, draw_dropout_seeds, train_epochs
from nnslicer_tf.dflare.compressors import check_one_output
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import copy_model


def distill(
    teacher: keras.Model,
    student: keras.Model,
    x: np.ndarray,
    *,
    temperature: float = 4.0,
    epochs: int = 10,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> keras.Model:
    """Train a copy of `student` to reproduce the teacher's softened probabilities, and return it.

    Args:
        teacher: A model that returns probabilities.
        student: One for the same classes, usually smaller; training starts from its weights.
        x: Training inputs `(samples, ...)`.
        temperature: Softening of both models' probabilities, p^(1/T) normalised.
        epochs: Passes over `x`.
        batch_size: Samples per step.
        learning_rate: Learning rate of Adam.
        rng: Order of the samples, and dropout.
        progress: Whether to show a progress bar.

    Raises:
        InvalidArgumentError: if the outputs differ in size, the temperature is not above 0, or a
            model has several outputs or is not a built functional or sequential model.
    """
    for model in (teacher, student):
        check_one_output(model)
    check_number("temperature", temperature, "(0, inf)")
    if teacher.output_shape[1:] != student.output_shape[1:]:
        raise InvalidArgumentError(
            "Teacher and student must have outputs of the same size. Received: "
            f"{teacher.output_shape}, {student.output_shape}"
        )

    def soften(probabilities: Any) -> Any:
        logits = keras.ops.log(keras.ops.maximum(probabilities, 1e-12))
        return keras.ops.softmax(logits / temperature)

    generator = as_generator(rng)
    learner = copy_model(student)
    draw_dropout_seeds(learner, generator)
    soft = keras.layers.Lambda(soften)(learner.outputs[0])
    trained = keras.Model(learner.inputs, soft)
    optimizer = keras.optimizers.Adam(learning_rate)
    trained.compile(optimizer, "kl_divergence")
    build_optimizer(optimizer, trained.trainable_variables)
    targets = keras.ops.convert_to_numpy(soften(teacher.predict(x, batch_size, verbose=0)))

    def step(rows: np.ndarray, _: np.random.Generator) -> float:
        return trained.train_on_batch(x[rows], targets[rows])

    train_epochs(step, len(x), epochs, batch_size, generator, progress=progress)
    return learner
