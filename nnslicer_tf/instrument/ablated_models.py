"""Keras models of ablations: with other weights, with constants, or, where neither can, with masks.

Those with constants are compared with the ablation before they are returned.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf._checks import as_mask, check_name, with_article
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument.ablation import Ablation, Network, maskable
from nnslicer_tf.instrument.comparison import difference, free_count
from nnslicer_tf.instrument.copies import copy_model, examples, rebuild, transfer
from nnslicer_tf.instrument.functional import in_order, structure_of
from nnslicer_tf.instrument.model import InstrumentedModel
from nnslicer_tf.instrument.references import Weights, Zero


def check_masks(im: InstrumentedModel, keep: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return masks of kernels as bools; raise InvalidArgumentError if one fits no kernel."""
    kernels = im.kernels
    for name, mask in keep.items():
        check_name("kernel", name, kernels)
        if np.shape(mask) != kernels[name].shape:
            raise InvalidArgumentError(
                f"An array for kernel '{name}' has shape {np.shape(mask)}, expected the "
                f"kernel's, {kernels[name].shape}."
            )
    return {name: as_mask(name, mask) for name, mask in keep.items()}


def ablated_model(
    ablation: Ablation, masks: Mapping[str, np.ndarray], into: keras.Model | None
) -> keras.Model:
    """Return a model of an ablation's masks; see `Ablation.model`."""
    im, network, reference = ablation.im, ablation.network, ablation.reference
    if network.by_weight or (ablation.level == "synapse" and isinstance(reference, Zero)):
        model = copy_model(im.model, im.given_shape) if into is None else into
        shapes = [sorted(tuple(w.shape) for w in one.weights) for one in (model, im.model)]
        if into is not None and shapes[0] != shapes[1]:
            raise InvalidArgumentError("`into` must be a copy of the model, of the same shapes.")
        return _with_weights(ablation, masks, model)
    if into is not None:
        raise InvalidArgumentError(
            "`into` needs the reference Zero or Weights, and level 'synapse' or 'weight'."
        )
    if reference.paired:
        raise InvalidArgumentError(
            f"A model of level '{ablation.level}' with the reference Weights would need both "
            "versions. Use level='synapse' or 'weight'."
        )
    base = reference.values(im, None, network.bases)
    donors = len(next(iter(base.values())))
    if donors > 1:
        raise InvalidArgumentError(
            f"A model has one reference, but Samples has {donors} donors. Use one: Samples(x[:1])."
        )
    single = {name: value[0] for name, value in base.items()}
    if ablation.level == "synapse" and all(
        ablation.shapes[n] == im.kernels[n].shape and ((m == 0) | (m == 1)).all()
        for n, m in masks.items()
    ):
        try:
            return with_constants(im, masks, single)
        except UnsupportedLayerError:
            pass  # no constant can follow a layer: its sums are masked inside
    inner = copy_model(im.model, im.given_shape)
    groups = {name: [list(g) for g in lists] for name, lists in network.groups.items()}
    shape, lookups = im.given_shape, network.lookups
    model = AblatedModel(inner, ablation.level, list(masks), groups, shape, lookups)
    model.assign(masks, single)
    return model


def _with_weights(
    ablation: Ablation, masks: Mapping[str, np.ndarray], model: keras.Model
) -> keras.Model:
    """Assign the masked weights to a copy of the ablation's model."""
    im = ablation.im
    full = ablation.network.split(ops.convert_to_tensor(_flat(masks)[None]))
    own = ablation.network.variables or {n: k.variable() for n, k in im.kernels.items()}
    reference = ablation.reference
    other = ablation.network.references(reference) if isinstance(reference, Weights) else {}
    values: dict[int, np.ndarray] = {}
    for name, mask in full.items():
        mask = ops.convert_to_numpy(mask)[0]
        value = values.get(id(own[name]), ops.convert_to_numpy(own[name])) * mask
        values[id(own[name])] = value + (1 - mask) * other.get(name, 0.0)
    original = im.model
    if type(model) is not type(original):  # it lists its layers in another order
        original = im.functional
    for variable, twin in zip(original.variables, model.variables, strict=True):
        twin.assign(values.get(id(variable), ops.convert_to_numpy(variable)))
    return model


def _flat(masks: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(mask) for mask in masks.values()]).astype(np.float32)


def with_constants(
    im: InstrumentedModel,
    keep: Mapping[str, Any],
    means: Mapping[str, np.ndarray],
    configs: Mapping[int, dict[str, Any]] | None = None,
) -> keras.Model:
    """Return a Keras model in which masked synapses contribute a reference, such as their mean.

    A `Normalization` after each layer with masked synapses adds the constant, so that the copy
    consists of ordinary Keras layers; it is functional, and a fused activation becomes a layer.

    `keep` maps kernels to bools of their shape, `means` operations to values `(*operation shape)`,
    and `configs` a layer's id to further entries of its config in the copy.

    Raises InvalidArgumentError if a mask does not fit the model, UnsupportedLayerError if a layer
    cannot be followed by a constant, such as attention, recurrent layers, shared nested models.
    """
    im = maskable(im)
    keep = check_masks(im, keep)
    inputs: dict[int, list[str]] = {}  # id of a masked layer → the operations its calls read
    inactive = {name for name, mask in keep.items() if not mask.all()}
    layers = [o.keras_layer for o in im.operations if inactive & {k.name for k in o.kernels}]
    for operation in im.operations:
        masked = [k.name for k in operation.kernels if k.name in inactive]
        has_activation = hasattr(operation.keras_layer, "activation")
        if masked and not (operation.kind == "weighted_sum" and has_activation):
            raise UnsupportedLayerError(
                f"Kernel '{masked[0]}' belongs to "
                f"{with_article(type(operation.keras_layer).__name__)} layer, after which no "
                "constant can be added: it needs one kernel and activation. Omit kernel or means."
            )
        # A separable convolution is two weighted sums: the second reads the first.
        is_second = operation.kernels and operation.kernels[0].name.endswith("/pointwise")
        is_masked = any(operation.keras_layer is layer for layer in layers)
        if is_masked and operation.kind == "weighted_sum" and not is_second:
            inputs.setdefault(id(operation.keras_layer), []).append(operation.inputs[0])
    kernels = im.kernels
    values = {
        id(kernels[name].variable()): np.where(mask, kernels[name].kernel(), 0)
        for name, mask in keep.items()
    }
    calls: dict[int, int] = {}

    def after(layer: Any, copy: Any, y: Any, args: tuple) -> Any:
        if id(layer) not in inputs:
            return y
        index = calls[id(layer)] = calls.get(id(layer), -1) + 1
        mean = means[inputs[id(layer)][index]][None].astype(np.float32)
        takes = args[0].shape[1:]
        if None not in takes:  # an operation may read a layer's input in another shape
            mean = mean.reshape(1, *takes)
        masked = keras.ops.convert_to_numpy(copy(mean))
        transfer(layer, copy, {})
        offset = (keras.ops.convert_to_numpy(copy(mean)) - masked)[0]
        transfer(layer, copy, values)
        name = f"{layer.name}_{index}" if index else layer.name
        if offset.any():
            if None in y.shape[1:]:  # a size that the layer leaves open
                y = keras.layers.Reshape(offset.shape, name=f"{name}_shape")(y)
            y = keras.layers.Normalization(
                axis=tuple(range(1, offset.ndim + 1)),
                mean=-offset,
                variance=np.ones_like(offset),
                name=f"{name}_mean",
            )(y)
        if layer.activation is not keras.activations.linear:
            y = keras.layers.Activation(layer.activation, name=f"{name}_activation")(y)
        return y

    configs = dict(configs or {})
    configs |= {key: {**configs.get(key, {}), "activation": None} for key in inputs}
    shapes = list(im.input_shapes.values())  # those of the constants
    copy = rebuild(im.functional, values, configs, after=after, shapes=shapes)
    refusal = UnsupportedLayerError(
        f"A copy of '{im.model.name}' in plain Keras layers cannot compute the masked model: no "
        "constant can be added after a layer inside a custom layer, or inside a nested model that "
        "is called with different means. Omit the means, or use "
        "instrument.Ablation(model, means).model."
    )
    for key, read in inputs.items():
        added = calls.get(key, -1) + 1  # the calls of a nested model share what is added inside
        alike = added and all(np.array_equal(means[name], means[read[0]]) for name in read)
        if added < len(read) and not alike:
            raise refusal
    x = examples(im.functional, shapes)
    if x is None or not keep:
        return copy
    network = Network(im, "synapse", False, im.output_operations, list(keep))
    count = free_count(4, im.operations)
    x = keras.tree.map_structure(lambda v: np.resize(v, (count, *v.shape[1:])), x)
    tensors = [ops.convert_to_tensor(v, "float32") for v in keras.tree.flatten(x)]
    base = {name: ops.convert_to_tensor(means[name][None], "float32") for name in network.bases}
    mask = ops.convert_to_tensor(_flat({name: keep[name] for name in network.shapes})[None])
    expected = network.run(mask, tensors, base, network.sums_of(base))
    found = keras.tree.flatten(copy(x, training=False))
    tolerance = 0.1 if im.graph.has_halves else 1e-3
    if any(difference(*pair, tolerance) > 1 for pair in zip(expected, found, strict=True)):
        raise refusal
    return copy


@keras.saving.register_keras_serializable(package="nnslicer_tf")
class AblatedModel(keras.Model):
    """A model some of whose parts contribute constants, where no ordinary layers can express it.

    Keras finds it when loading a model if `nnslicer_tf.instrument.ablated_models` was imported.

    Args:
        ablated: The model, whose weights are used.
        level: The level of the masked units; see `Ablation`.
        names: Names of the kernels or operations with units.
        groups: Name → lists of units that are masked together.
        input_shape: Shape of one sample, if the model does not say.
        lookups: Whether synapses of embeddings are units.
    """

    def __init__(
        self,
        ablated: keras.Model,
        level: str,
        names: Sequence[str],
        groups: Mapping[str, Sequence[Sequence[int]]] | None = None,
        input_shape: Any = None,
        lookups: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.ablated = ablated
        lists = {n: [list(g) for g in parts] for n, parts in (groups or {}).items()}
        self._settings: dict[str, Any] = {"level": level, "names": list(names), "groups": lists}
        self._settings |= {"input_shape": input_shape, "lookups": lookups}
        self._im = im = InstrumentedModel(ablated, input_shape)
        self._network = Network(im, level, False, im.output_operations, names, groups, lookups)
        make = {"initializer": "zeros", "trainable": False}
        self.mask = self.add_weight(shape=(self._network.units,), name="mask", **make)
        self.base = {
            name: self.add_weight(shape=im[name].shape, name=f"base{i}", **make)
            for i, name in enumerate(self._network.bases)
        }
        self.built = True

    def assign(self, masks: Mapping[str, Any], base: Mapping[str, Any]) -> None:
        """Set the masks, and the values of inactive parts."""
        self.mask.assign(_flat(masks))
        for variable, value in zip(self.base.values(), base.values(), strict=True):
            variable.assign(value)  # a copy's operations may have other names

    def call(self, x: Any, training: bool = False) -> Any:
        """Return the outputs; `training` has no effect."""
        functional = self._im.functional
        inputs = [ops.cast(value, "float32") for value in in_order(functional, x)]
        base = {name: ops.convert_to_tensor(v)[None] for name, v in self.base.items()}
        mask = ops.convert_to_tensor(self.mask)[None]
        values = self._network.run(mask, inputs, base, self._network.sums_of(base))
        return keras.tree.pack_sequence_as(structure_of(functional, "output"), values)

    def get_config(self) -> dict[str, Any]:
        """Return the model and which of its units are masked."""
        model = keras.saving.serialize_keras_object(self.ablated)
        return {**super().get_config(), "ablated": model, **self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "AblatedModel":
        """Create the model from its config; masks and values are weights."""
        config = dict(config)
        ablated = keras.saving.deserialize_keras_object(config.pop("ablated"), custom_objects)
        shape = config.pop("input_shape")
        shape = tuple(shape) if isinstance(shape, list) else shape
        return cls(ablated, input_shape=shape, **config)
