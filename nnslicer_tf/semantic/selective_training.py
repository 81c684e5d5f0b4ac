"""Selective training: only the parameters of chosen neurons change (sections 4.2 and 4.3).

A neuron's parameters are its incoming weights and bias (for a recurrent unit, of all gates), and
its share of the batch normalisation and the depthwise convolution after it. Batch normalisation
uses its moving statistics and does not update them, which would change the values of frozen
neurons. Parameters that belong to no neuron are frozen.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import ArrayLike, as_generator, is_int
from nnslicer_tf._training import compile_loss, loss_of, selective_optimizer, train_epochs
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import DataLike, InstrumentedModel, ModelLike, copy_model, instrumented
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.copies import rebuild
from nnslicer_tf.instrument.data import Samples
from nnslicer_tf.instrument.inputs import Inputs
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.semantic.metrics import labelled
from nnslicer_tf.semantic.neurons import check_critical, neuron_layers

NeuronMasks = Mapping[str, np.ndarray]


def readapt(
    model: ModelLike,
    critical: NeuronMasks,
    x: np.ndarray,
    y: np.ndarray,
    adversarial: np.ndarray,
    **options: Any,
) -> keras.Model:
    """Return a copy of a classifier whose critical neurons were trained on adversarial samples.

    The loss is the sum of the cross-entropies of samples and adversarial samples, up to a factor
    (Equation 6); only parameters of critical neurons and of the output layer change (Equation 7).

    `adversarial` are versions of the samples, of their shape. The other arguments, `options`
    included, and errors are those of `train_neurons`, with `critical` in place of `neurons`.
    """
    im = instrumented(model, x).named_by(x, adversarial)
    shape = im.input_shape  # raises an error for models with several inputs
    x, adversarial = (Samples(part, shape, columns=im.columns).array() for part in (x, adversarial))
    if adversarial.shape != x.shape:
        raise InvalidArgumentError(
            f"There must be one adversarial sample for each sample, of shape {shape}. Received: "
            f"shapes {adversarial.shape} and {x.shape}"
        )
    *hidden, last = neuron_layers(im, classes=True).items()
    critical = check_critical(critical, dict(hidden))
    neurons = {**critical, last[0]: np.ones(last[1].units, bool)}
    both = np.concatenate([x, adversarial])
    return train_neurons(im, neurons, both, np.concatenate([y, y]), **options)


def develop(
    model: ModelLike,
    critical: NeuronMasks,
    x: np.ndarray,
    y: np.ndarray,
    learned: Iterable[int],
    **options: Any,
) -> keras.Model:
    """Return a copy of a classifier that was trained on new classes, critical neurons frozen.

    Only parameters of neurons that are not critical, and of the new classes, change (Equation 9).
    Outgoing weights belong to the neurons that read them, so the new classes also learn from
    critical neurons, and may be predicted for samples of earlier tasks.

    The model has outputs for the new classes, too; `critical` is the semantic slice on the earlier
    tasks, and `learned` are their classes, whose outputs are frozen. `x` may have samples of these
    tasks to replay. Other arguments and `options`, and errors, are those of `train_neurons`.
    """
    im = instrumented(model)
    return train_neurons(im, free_neurons(im, critical, learned), x, y, **options)


def free_neurons(
    im: InstrumentedModel, critical: NeuronMasks, learned: Iterable[int]
) -> dict[str, np.ndarray]:
    """Return the neurons that `develop` trains: those that are not critical, and new classes."""
    *hidden, (name, last) = neuron_layers(im, classes=True).items()
    critical = check_critical(critical, dict(hidden))
    if im.classes.is_binary:
        raise InvalidArgumentError(
            f"Model '{im.model.name}' separates two classes with one sigmoid and has no output for "
            "new classes. Pass a classifier with one output for each class, new ones included."
        )
    old = sorted(set(learned))
    if not old or not all(is_int(label) and 0 <= label < last.units for label in old):
        raise InvalidArgumentError(f"learned needs classes 0 … {last.units - 1}. Received: {old}")
    neurons = {layer: ~mask for layer, mask in critical.items()}
    return neurons | {name: ~np.isin(np.arange(last.units), old)}


def train_neurons(
    model: ModelLike,
    neurons: NeuronMasks,
    x: DataLike,
    y: ArrayLike,
    *,
    optimizer: keras.optimizers.Optimizer | None = None,
    epochs: int = 5,
    batch_size: int = 64,
    rng: int | np.random.Generator = 0,
    progress: bool = False,
    allowed: Mapping[int, np.ndarray] | None = None,
) -> keras.Model:
    """Return a copy of a classifier in which only chosen neurons were trained.

    Args:
        model: A classifier of logits or softmax, unchanged. A subclassed one's copy is functional.
        neurons: Layer → bool array `(units,)`, True for the neurons to train; the output layer's
            units are the classes. Layers that are not named are not trained.
        x: Samples `(samples, *input shape)`.
        y: Labels `(samples,)`.
        optimizer: Any Keras optimiser, whose settings are used; Adam by default.
        epochs: Passes over the samples.
        batch_size: Samples in a step.
        rng: Order of the samples, and dropout.
        progress: Show a progress bar.
        allowed: Id of a variable → bools of its shape, the only values of it that may change.

    Raises InvalidArgumentError if masks or labels do not fit the model, or nothing is chosen;
    InputShapeError if the samples have another shape; SeveralInputsError if the model has several
    inputs.
    """
    im = maskable(model)
    masks = parameter_masks(im, neurons)
    check_classifier(im, one_output=True)
    x, y = labelled(im, x, y, batch_size)
    generator = as_generator(rng)
    # A copy with steady normalisations, and dropout with new random states.
    steady = {}
    for operation in im.operations:
        layer = operation.keras_layer
        if type(layer) is keras.layers.BatchNormalization and id(layer) not in steady:
            steady[id(layer)] = _SteadyNormalization.from_config(layer.get_config())
    original = im.functional
    learner = rebuild(original, replacements=steady)
    learner.set_weights(original.get_weights())
    for variable in learner.variables:
        if variable.path.endswith("seed_generator_state"):
            variable.assign(generator.integers(1 << 32, size=variable.shape, dtype=np.uint32))
    by_variable = {
        id(mine): masks[id(theirs)] & (allowed or {}).get(id(theirs), True)
        for theirs, mine in zip(original.weights, learner.weights, strict=True)
        if id(theirs) in masks
    }
    selective = selective_optimizer(optimizer or keras.optimizers.Adam(), by_variable)
    compile_loss(learner, selective, loss_of(im.classes))

    def step(rows: np.ndarray, _: np.random.Generator) -> float:
        batch = x[rows]
        return learner.train_on_batch(dict(batch) if isinstance(batch, Inputs) else batch, y[rows])

    train_epochs(step, len(x), epochs, batch_size, generator, progress=progress)
    trained = copy_model(original)
    trained.set_weights(learner.get_weights())
    return trained


def parameter_share(model: ModelLike, neurons: NeuronMasks) -> float:
    """Return the share of a model's parameters that `train_neurons` trains (TPR)."""
    im = instrumented(model)
    total = sum(int(np.prod(variable.shape)) for variable in im.model.trainable_variables)
    return sum(int(mask.sum()) for mask in parameter_masks(im, neurons).values()) / total


def parameter_masks(im: InstrumentedModel, neurons: NeuronMasks) -> dict[int, np.ndarray]:
    """Return the id of each variable → bools of its shape, True for what `train_neurons` trains."""
    layers = neuron_layers(im, classes=True)
    neurons = check_critical(neurons, layers)
    masks = {}
    for name, mask in neurons.items():
        for variable, axis in layers[name].parameters:
            shape = tuple(variable.shape)
            masks[id(variable)] = whole = np.empty(shape, bool)
            # A recurrent unit has several gates.
            np.moveaxis(whole, axis, -1)[:] = np.tile(mask, shape[axis] // len(mask))
    if not any(mask.any() for mask in masks.values()):
        raise InvalidArgumentError("No neuron is selected: there is nothing to train.")
    return masks


@keras.saving.register_keras_serializable("nnslicer_tf")
class _SteadyNormalization(keras.layers.BatchNormalization):
    """Batch normalisation that uses its moving statistics even in training."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return super().call(inputs, training=False, mask=mask)
