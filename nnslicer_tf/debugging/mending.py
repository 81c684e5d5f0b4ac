"""Mend a model by changing only its most suspicious part: masking, scaling or retraining it."""

import keras
import numpy as np

from nnslicer_tf._checks import check_count, check_labels
from nnslicer_tf._names import check_name
from nnslicer_tf._random import as_generator
from nnslicer_tf._training import (
    are_logits,
    compile_classifier,
    draw_dropout_seeds,
    selective_optimizer,
    train_epochs,
)
from nnslicer_tf.debugging.localisation import Suspicion
from nnslicer_tf.instrument import InstrumentedModel, Synapses, copy_model

_FACTORS = (-1.0, -0.5, 0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

Masks = dict[str, np.ndarray]


def mend(
    im: InstrumentedModel,
    suspicion: Suspicion,
    x: np.ndarray,
    y: np.ndarray,
    how: str = "train",
    *,
    channels: int = 1,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    rng: int | np.random.Generator = 0,
) -> keras.Model:
    """Return a copy of a model in which only its most suspicious channels were changed.

    Args:
        im: The model, whose outputs are logits or probabilities.
        suspicion: Scores of its channels; those of the output layer are not changed.
        x: A few samples `(samples, *input_shape)`: some that the model gets wrong, and some that
            it gets right and should still get right afterwards.
        y: Their right classes `(samples,)`.
        how: "mask" sets the synapses that feed the channels to zero; "scale" multiplies them by
            the factor with the smallest loss on the samples; "train" trains only them, with Adam.
        channels: Number of channels.
        epochs: For "train": passes over the samples.
        learning_rate: For "train".
        rng: For "train": draws the order of the samples, and dropout.

    Raises:
        InvalidArgumentError: for an unknown `how`, or samples without labels.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
    """
    check_name("way of mending", how, ("mask", "scale", "train"))
    check_count("channels", channels)
    check_count("epochs", epochs)
    x = im.check(x)
    y = check_labels(y, len(x), im[im.logit_operation].shape[-1])
    masks = suspicious_synapses(im, suspicion, channels)
    model = copy_model(im.model)
    from_logits = are_logits(im[im.output_operations[0]].params)
    if how == "train":
        _compile(model, masks, learning_rate, from_logits)
        return _trained(model, x, y, epochs, as_generator(rng))
    factors = (0.0,) if how == "mask" else _FACTORS
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    losses = [_loss(_scaled(model, im, masks, factor), loss, x, y) for factor in factors]
    return _scaled(model, im, masks, factors[int(np.argmin(losses))])


def suspicious_synapses(im: InstrumentedModel, suspicion: Suspicion, channels: int = 1) -> Masks:
    """Return the synapses that feed the most suspicious channels, excluding those of the output.

    Returns:
        Kernel name → bool of its shape, for the kernels that have some.
    """
    ranked = suspicion.to_frame("channel", None)
    ranked = ranked[ranked["operation"] != im.logit_operation].head(channels)
    masks: Masks = {}
    for name, channel in zip(ranked["operation"], ranked["channel"], strict=True):
        kernel: Synapses = im[name].params
        matrix = np.zeros(kernel.matrix().shape, bool)
        matrix[..., channel] = True
        masks[kernel.name] = masks.get(kernel.name, False) | kernel.to_kernel(matrix)
    return masks


def _scaled(model: keras.Model, im: InstrumentedModel, masks: Masks, factor: float) -> keras.Model:
    """Set the masked weights of a copy to the original ones times a factor; return the copy."""
    kernels = InstrumentedModel(model).kernels
    for name, mask in masks.items():
        weights = im.kernels[name].kernel()
        kernels[name].variable().assign(np.where(mask, factor * weights, weights))
    return model


def _loss(model: keras.Model, loss: keras.losses.Loss, x: np.ndarray, y: np.ndarray) -> float:
    return float(loss(y, keras.ops.convert_to_tensor(model.predict_on_batch(x))))


def _compile(model: keras.Model, masks: Masks, learning_rate: float, from_logits: bool) -> None:
    """Compile so that only the masked weights are trained, with normalisation statistics fixed."""
    kernels = InstrumentedModel(model).kernels
    free = {id(kernels[name].variable()): mask for name, mask in masks.items()}
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    optimizer = selective_optimizer(keras.optimizers.Adam(learning_rate), free)
    compile_classifier(model, optimizer, from_logits)


def _trained(
    model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int, rng: np.random.Generator
) -> keras.Model:
    draw_dropout_seeds(model, rng)
    train_epochs(
        lambda rows, _: model.train_on_batch(x[rows], y[rows]),
        len(x),
        epochs,
        min(32, len(x)),
        rng,
        progress=False,
    )
    return model
