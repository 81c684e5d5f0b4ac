"""The attacker of the paper's program, who retrains a model whose hidden weights are zero.

Unlike `nnslicer_tf.protection.Attacker`, it starts from zeros, trains only the stem and the 3×3
convolutions, by plain gradient descent, on the victim's own predictions, and its loss applies a
softmax to outputs that already went through one, which makes the gradients small.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from scipy.special import softmax

from nnslicer_tf._training import train_epoch
from nnslicer_tf.instrument import InstrumentedModel, copy_model


@dataclass(frozen=True)
class ProgramAttacker:
    """Retrains a model whose hidden weights are zero."""

    epochs: int = 10
    learning_rate: float = 5e-3
    momentum: float = 0.5  # Adam has none
    decay: float = 5e-4  # weight decay, added to the gradients
    batch_size: int = 256
    softmax_twice: bool = True  # the loss takes the softmax of probabilities
    trains_all: bool = False  # otherwise only convolutions wider than 1×1 are trained
    adam: bool = False  # otherwise gradient descent
    distils: bool = False  # learn the victim's probabilities, otherwise its classes

    def labels(self, logits: np.ndarray) -> np.ndarray:
        """Return the labels to learn from the victim's logits: classes, or probabilities."""
        return softmax(logits, axis=1) if self.distils else logits.argmax(axis=1)

    def retrain(
        self,
        model: keras.Model,
        hidden: Mapping[str, np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        rng: int | np.random.Generator,
    ) -> Iterator[keras.Model]:
        """Yield the stolen model before training, and after each epoch; see `labels` for `y`."""
        stolen = zeroed(model, hidden)
        variables = self.trained(stolen)
        optimizer = keras.optimizers.SGD(self.learning_rate, momentum=self.momentum)
        if self.adam:
            optimizer = keras.optimizers.Adam(self.learning_rate)
        optimizer.build(variables)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits
        if self.distils:
            losses = tf.nn.softmax_cross_entropy_with_logits

        @tf.function(reduce_retracing=True, autograph=False)
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                # Normalisations use the statistics of the batch, whatever is trained.
                outputs = stolen(x, training=True)
                if self.softmax_twice:
                    outputs = tf.nn.softmax(outputs)
                loss = tf.reduce_mean(losses(y, outputs))
            gradients = tape.gradient(loss, [v.value for v in variables])
            decayed = [g + self.decay * v for g, v in zip(gradients, variables, strict=True)]
            optimizer.apply(decayed, variables)
            return loss

        def loss_of(rows: np.ndarray, _: object) -> float:
            return float(step(x[rows], y[rows]))

        generator = np.random.default_rng(rng)
        yield stolen
        for _ in range(self.epochs):
            train_epoch(loss_of, len(x), self.batch_size, generator, progress=False)
            yield stolen

    def trained(self, model: keras.Model) -> list[keras.Variable]:
        """Return the weights to train."""
        if self.trains_all:
            return list(model.trainable_variables)
        kernels = (layer.kernel for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
        return [kernel for kernel in kernels if kernel.shape[0] > 1]


def zeroed(model: keras.Model, hidden: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a copy whose hidden weights are zero."""
    copy = copy_model(model)
    kernels = InstrumentedModel(copy).kernels
    for name, mask in hidden.items():
        kernels[name].variable().assign(np.where(mask, 0, kernels[name].kernel()))
    return copy
