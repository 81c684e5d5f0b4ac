"""Re-adaptation and incremental development (sections 4.2 and 4.3).

Re-adaptation trains only the critical neurons, on samples and their adversarial versions.
Incremental development trains only the others, on a new task, so that the critical ones
preserve what the model knows.

The units of the output layer are the classes. Re-adaptation trains all of them; development
freezes those of the classes learned before and trains the others.

A neuron's parameters are its incoming weights, bias and normalisation; its outgoing weights
belong to the neurons that read it. So in development the new classes also learn from critical
neurons, and may be predicted for old samples, which are not shown again. `freeze_outgoing`
freezes the outgoing weights of critical neurons as well: the new task is then learned from
the other neurons alone.
"""

from collections.abc import Iterable, Mapping
from typing import Unpack

import keras
import numpy as np

from nnslicer_tf._deprecated import renamed_argument
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.semantic.neurons import check_critical, neuron_layers, output_layer
from nnslicer_tf.semantic.selective_training import TrainingOptions, train_neurons


def readapt(
    model: ModelLike,
    critical: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    adversarial: np.ndarray,
    **options: Unpack[TrainingOptions],
) -> keras.Model:
    """Return a copy of a classifier whose critical neurons were trained on adversarial samples.

    The loss is the sum of the cross-entropies of samples and adversarial samples, up to a
    factor (Equation 6); only parameters of critical neurons change (Equation 7).

    Args:
        model: A classifier that ends in logits or a softmax; it is not changed.
        critical: Layer → bool array `(units,)`, from `semantic_slice`.
        x: Samples `(samples, *input shape)`.
        y: Their labels `(samples,)`.
        adversarial: Adversarial versions of the samples, of their shape.
        **options: `optimizer`, `epochs`, `batch_size`, `rng`, `progress` of `train_neurons`.

    Raises:
        InvalidArgumentError: if masks, labels or adversarial samples do not fit.
        InputShapeError: if the samples have another shape than the model's inputs.
        SeveralInputsError: if the model has several inputs.
    """
    im = instrumented(model)
    shape = im.input_shape  # raises an error for models with several inputs
    if np.shape(adversarial) != np.shape(x):
        raise InvalidArgumentError(
            f"There must be one adversarial sample for each sample, of shape {shape}. Received: "
            f"shapes {np.shape(adversarial)} and {np.shape(x)}"
        )
    neurons = readapted_neurons(im, critical)
    both = np.concatenate([x, adversarial])
    return train_neurons(im, neurons, both, np.concatenate([y, y]), **options)


@renamed_argument("sealed", "freeze_outgoing")
def develop(
    model: ModelLike,
    critical: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    learned: Iterable[int],
    *,
    freeze_outgoing: bool = False,
    **options: Unpack[TrainingOptions],
) -> keras.Model:
    """Return a copy of a classifier that was trained on new classes, critical neurons frozen.

    Only parameters of neurons that are not critical change (Equation 9).

    Args:
        model: A classifier that ends in logits or a softmax, with outputs for the new
            classes too; it is not changed.
        critical: Layer → bool array `(units,)`: the semantic slice on the earlier tasks.
        x: Samples of the new task `(samples, *input shape)`, plus any samples of earlier tasks
            to replay.
        y: Their labels `(samples,)`.
        learned: The classes of the earlier tasks, whose outputs are frozen.
        freeze_outgoing: Also freeze the outgoing weights of critical neurons (see the module).
        **options: `optimizer`, `epochs`, `batch_size`, `rng`, `progress` of `train_neurons`.

    Raises:
        InvalidArgumentError: if masks, labels or classes do not fit.
        InputShapeError: if the samples have another shape than the model's inputs.
    """
    im = instrumented(model)
    neurons = developed_neurons(im, critical, learned)
    frozen = critical if freeze_outgoing else None
    return train_neurons(im, neurons, x, y, frozen_outgoing=frozen, **options)


def readapted_neurons(
    model: ModelLike, critical: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the neurons that `readapt` trains: the critical ones and all classes.

    Raises:
        InvalidArgumentError: if the masks do not match the model's layers.
    """
    im = instrumented(model)
    check_critical(critical, neuron_layers(im))
    last = output_layer(im)
    return {**critical, last.name: np.ones(last.units, bool)}


def developed_neurons(
    model: ModelLike, critical: Mapping[str, np.ndarray], learned: Iterable[int]
) -> dict[str, np.ndarray]:
    """Return the neurons that `develop` trains: the non-critical ones and the new classes.

    Raises:
        InvalidArgumentError: if the masks or classes do not match the model.
    """
    im = instrumented(model)
    layers = neuron_layers(im)
    check_critical(critical, layers)
    last = output_layer(im)
    if im.classes.is_binary:
        raise InvalidArgumentError(
            f"Model '{im.model.name}' tells two classes apart with one sigmoid and has no output "
            "for new classes. Give a classifier with one output for each class, new ones included."
        )
    old = np.array(sorted(set(learned)), int)
    if not len(old) or old.min() < 0 or old.max() >= last.units:
        raise InvalidArgumentError(
            f"learned must be classes of 0 … {last.units - 1}, one at least. "
            f"Received: {old.tolist()}"
        )
    new = np.ones(last.units, bool)
    new[old] = False
    masks = {name: ~np.asarray(mask) for name, mask in critical.items()}
    return {**masks, last.name: new}
