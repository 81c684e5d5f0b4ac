"""Selective training: only the parameters of chosen neurons change.

`train_neurons` trains a copy of a model with a `selective_optimizer`. A neuron's parameters are
its weights and bias (for a recurrent unit, those of all its gates), and its share of the batch
normalisation and the depthwise convolution after it. Batch normalisation uses its moving
statistics, as at inference, and does not update them: otherwise the values of frozen neurons
would change. Parameters that belong to no neuron are frozen.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import keras
import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import as_generator
from nnslicer_tf._deprecated import renamed_argument
from nnslicer_tf._training import compile_classifier, selective_optimizer, train_epochs
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, copy_model, instrumented
from nnslicer_tf.instrument.copies import rebuild
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.inputs import Inputs
from nnslicer_tf.instrument.masked import maskable
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.channels import ChannelGraph, is_reader
from nnslicer_tf.pruning.recurrent_units import gate_reads, is_removable
from nnslicer_tf.semantic.metrics import labelled
from nnslicer_tf.semantic.neurons import NeuronLayer, along, neuron_layers, output_layer

NeuronMasks = Mapping[str, np.ndarray]


class TrainingOptions(TypedDict, total=False):
    """Further arguments of `train_neurons`."""

    optimizer: keras.optimizers.Optimizer | None
    epochs: int
    batch_size: int
    rng: int | np.random.Generator
    progress: bool


@renamed_argument("sealed", "frozen_outgoing")
def train_neurons(
    model: ModelLike,
    neurons: NeuronMasks,
    x: DataLike,
    y: ArrayLike,
    *,
    frozen_outgoing: NeuronMasks | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
    epochs: int = 5,
    batch_size: int = 64,
    rng: int | np.random.Generator = 0,
    progress: bool = False,
) -> keras.Model:
    """Return a copy of a classifier in which only chosen neurons were trained.

    Args:
        model: A classifier that ends in logits or a softmax; it is not changed. The copy of a
            subclassed model is functional.
        neurons: Layer → bool array `(units,)`, True for the neurons to train; the output
            layer's units are the classes. Layers that are not named are not trained.
        x: Samples `(samples, *input shape)`.
        y: Labels `(samples,)`.
        frozen_outgoing: Neurons, in the same form, whose outgoing weights are not trained
            either, whichever neuron these belong to.
        optimizer: Any Keras optimiser, whose settings are used; Adam by default.
        epochs: Passes over the samples.
        batch_size: Samples in a step.
        rng: Order of the samples, and dropout.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if masks or labels do not fit the model, or nothing is chosen.
        InputShapeError: if the samples have another shape.
    """
    im = maskable(model)
    x, y = labelled(im, x, y, batch_size)
    masks = parameter_masks(im, neurons, frozen_outgoing)
    generator = as_generator(rng)
    original = im.functional
    learner = rebuild(original, replacements=_steady_normalisations(im))
    learner.set_weights(original.get_weights())
    _reseed(learner, generator)
    by_variable = {
        id(mine): masks[id(theirs)]
        for theirs, mine in zip(original.weights, learner.weights, strict=True)
        if id(theirs) in masks
    }
    logits = im.logit_operation in im.output_operations
    selective = selective_optimizer(optimizer or keras.optimizers.Adam(), by_variable)
    compile_classifier(learner, selective, logits, im.classes.is_multi_label)
    train_epochs(
        lambda rows, _: learner.train_on_batch(_as_keras(x[rows]), y[rows]),
        len(x),
        epochs,
        batch_size,
        generator,
        progress=progress,
    )
    trained = copy_model(original)
    trained.set_weights(learner.get_weights())
    return trained


def _as_keras(x: np.ndarray | Inputs) -> np.ndarray | dict[str, np.ndarray]:
    return dict(x) if isinstance(x, Inputs) else x


def parameter_share(model: ModelLike, neurons: NeuronMasks) -> float:
    """Return the share of a model's trained parameters that belong to chosen neurons (TPR).

    Args:
        model: A Keras model.
        neurons: As for `train_neurons`.

    Raises:
        InvalidArgumentError: if the masks do not fit the model, or nothing is chosen.
    """
    im = instrumented(model)
    masks = parameter_masks(im, neurons)
    total = sum(int(np.prod(variable.shape)) for variable in im.model.trainable_variables)
    return sum(int(mask.sum()) for mask in masks.values()) / total


def parameter_masks(
    im: InstrumentedModel, neurons: NeuronMasks, frozen_outgoing: NeuronMasks | None = None
) -> dict[int, np.ndarray]:
    """Return the id of each variable → bools of its shape, True for what `train_neurons` trains.

    Raises:
        InvalidArgumentError: if the masks do not fit the model, or nothing is chosen.
    """
    layers = _all_layers(im)
    _check_units(neurons, layers)
    masks = {}
    for name, chosen in neurons.items():
        for variable, axis in layers[name].parameters:
            shape = tuple(variable.shape)
            every = np.tile(
                chosen, shape[axis] // len(chosen)
            )  # a recurrent unit has several gates
            masks[id(variable)] = np.broadcast_to(along(every, len(shape), axis), shape)
    for variable, unread in _unread(im, layers, frozen_outgoing or {}).items():
        if variable in masks:
            masks[variable] = masks[variable] & unread
    if not any(mask.any() for mask in masks.values()):
        raise InvalidArgumentError("No neuron is chosen: there is nothing to train.")
    return masks


def _check_units(neurons: NeuronMasks, layers: Mapping[str, NeuronLayer]) -> None:
    for name, chosen in neurons.items():
        if name not in layers or np.shape(chosen) != (layers[name].units,):
            sizes = ", ".join(f"{layer.name} {layer.units}" for layer in layers.values())
            raise InvalidArgumentError(
                f"There is no layer '{name}' with {np.shape(chosen)} units. There are: {sizes}."
            )


def _unread(
    im: InstrumentedModel, layers: Mapping[str, NeuronLayer], neurons: NeuronMasks
) -> dict[int, np.ndarray]:
    """Return the id of each kernel → bools of its shape, False for weights that read the neurons.

    A channel that combines several neurons (an addition's) counts if all of them are given.
    """
    _check_units(neurons, layers)
    chosen: dict[str, np.ndarray] = {}
    for name, mask in neurons.items():
        chosen |= layers[name].channels(mask)
    channels = ChannelGraph(im).affected(chosen)
    unread = {}
    for operation in filter(is_reader, im.operations):
        kernel = operation.params
        if kernel.groups == 1:
            free = np.empty(kernel.matrix().shape, bool)
            free[:] = ~channels[operation.inputs[0]][:, None]
            unread[id(kernel.variable())] = kernel.to_kernel(free)
    for operation in filter(is_removable, im.operations):
        for source, weights in gate_reads(operation):
            kernel = weights.kernel
            free = unread.setdefault(id(kernel.variable()), np.ones(kernel.shape, bool))
            free[:, weights.start : weights.stop] &= ~channels[source][:, None]
    return unread


def _all_layers(im: InstrumentedModel) -> dict[str, NeuronLayer]:
    """Return the layers with neurons, with the output layer last."""
    last = output_layer(im)
    return {**neuron_layers(im), last.name: last}


@keras.saving.register_keras_serializable("nnslicer_tf")
class _SteadyNormalization(keras.layers.BatchNormalization):
    """Batch normalisation that uses its moving statistics even in training."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the normalised inputs."""
        return super().call(inputs, training=False, mask=mask)


def _steady_normalisations(im: InstrumentedModel) -> dict[int, keras.layers.Layer]:
    """Return the id of each batch normalisation → a steady one that takes its place."""
    steady = {}
    for operation in im.operations:
        layer = operation.keras_layer
        if type(layer) is keras.layers.BatchNormalization and id(layer) not in steady:
            steady[id(layer)] = _SteadyNormalization.from_config(layer.get_config())
    return steady


def _reseed(model: keras.Model, generator: np.random.Generator) -> None:
    """Seed the dropout layers, as Keras gives those of a clone new random states."""
    for variable in model.variables:
        if variable.path.endswith("seed_generator_state"):
            variable.assign(generator.integers(1 << 32, size=variable.shape, dtype=np.uint32))
