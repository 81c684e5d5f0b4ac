"""Mend a model by masking, scaling or retraining only its most suspicious channels."""

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_count, check_labels, check_name
from nnslicer_tf._training import (
    classification_loss,
    compile_classifier,
    draw_dropout_seeds,
    selective_optimizer,
    train_epochs,
)
from nnslicer_tf.debugging.localisation import Suspicion
from nnslicer_tf.debugging.runs import check_classifier
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
    """Return a copy of a model in which only the most suspicious channels are changed.

    Args:
        im: The model, whose outputs are logits or probabilities.
        suspicion: Scores of its channels; the output layer's are not changed.
        x: A few samples `(samples, *input_shape)`, both misclassified ones and correctly
            classified ones that should stay correct.
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
    check_classifier(im)
    y = check_labels(y, len(x), im.classes.count)
    masks = suspicious_synapses(im, suspicion, channels)
    model = copy_model(im.model)
    from_logits = im.classes.are_logits
    kernels = InstrumentedModel(model).kernels
    if how == "train":
        for layer in model.layers:  # statistics stay fixed
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
        free = {id(kernels[name].variable()): mask for name, mask in masks.items()}
        optimizer = selective_optimizer(keras.optimizers.Adam(learning_rate), free)
        compile_classifier(model, optimizer, from_logits, binary=im.classes.is_binary)
        generator = as_generator(rng)
        draw_dropout_seeds(model, generator)
        train_epochs(
            lambda rows, _: model.train_on_batch(x[rows], y[rows]),
            len(x),
            epochs,
            min(32, len(x)),
            generator,
            progress=False,
        )
        return model

    def scale(factor: float) -> None:
        for name, mask in masks.items():
            weights = im.kernels[name].kernel()
            kernels[name].variable().assign(np.where(mask, factor * weights, weights))

    factors = (0.0,) if how == "mask" else _FACTORS
    loss = classification_loss(from_logits, im.classes.is_binary)
    losses = []
    for factor in factors:
        scale(factor)
        outputs = keras.ops.convert_to_tensor(model.predict_on_batch(x))
        losses.append(float(loss(y[:, None], outputs)))
    scale(factors[int(np.argmin(losses))])
    return model


def suspicious_synapses(im: InstrumentedModel, suspicion: Suspicion, channels: int = 1) -> Masks:
    """Return bool masks, by kernel, of the synapses that feed the most suspicious channels.

    The output's channels do not count.
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
