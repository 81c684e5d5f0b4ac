"""Mending of a model from its most suspicious part alone: masked, scaled, or trained again."""

import keras
import numpy as np

from nnslicer_tf._checks import check_count, check_labels
from nnslicer_tf._names import check_name
from nnslicer_tf._random import as_generator
from nnslicer_tf._training import compile_classifier, selective_optimizer, train_epochs
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
        im: The model, whose outputs are logits.
        suspicion: Scores of its channels; those of the output layer are left alone.
        x: Few samples `(samples, *input_shape)`: some that the model gets wrong, and some that
            it gets right and is to get right afterwards.
        y: Their right classes `(samples,)`.
        how: "mask" sets the synapses that feed the channels to zero; "scale" multiplies them by
            the factor with the smallest loss on the samples; "train" trains them alone, by Adam.
        channels: Number of channels.
        epochs: For "train": passes over the samples.
        learning_rate: For "train".
        rng: For "train": draws the order of the samples.

    Raises:
        InvalidArgumentError: for an unknown way, or samples without labels.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
    """
    check_name("way of mending", how, ("mask", "scale", "train"))
    check_count("channels", channels)
    check_count("epochs", epochs)
    x = im.check(x)
    y = check_labels(y, len(x), im[im.logit_operation].shape[-1])
    masks = suspicious_synapses(im, suspicion, channels)
    model = copy_model(im.model)
    if how == "train":
        return _trained(model, masks, x, y, epochs, learning_rate, as_generator(rng))
    factors = (0.0,) if how == "mask" else _FACTORS
    losses = [_loss(_scaled(model, im, masks, factor), x, y) for factor in factors]
    return _scaled(model, im, masks, factors[int(np.argmin(losses))])


def suspicious_synapses(im: InstrumentedModel, suspicion: Suspicion, channels: int = 1) -> Masks:
    """Return the synapses that feed the most suspicious channels but for those of the output.

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


def _loss(model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    logits = keras.ops.convert_to_tensor(model.predict_on_batch(x))
    return float(keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits))


def _trained(
    model: keras.Model,
    masks: Masks,
    x: np.ndarray,
    y: np.ndarray,
    epochs: int,
    learning_rate: float,
    rng: np.random.Generator,
) -> keras.Model:
    """Train the masked weights alone, with the statistics of normalisations as they are."""
    kernels = InstrumentedModel(model).kernels
    free = {id(kernels[name].variable()): mask for name, mask in masks.items()}
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    compile_classifier(model, selective_optimizer(keras.optimizers.Adam(learning_rate), free))
    train_epochs(
        lambda rows, _: model.train_on_batch(x[rows], y[rows]),
        *(len(x), epochs, min(32, len(x)), rng),
        progress=False,
    )
    return model
