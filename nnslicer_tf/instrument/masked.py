"""A model in which some synapses or neurons are ablated: `MaskedModel`.

Ablated parts contribute zero or their mean. With "mean", a weighted sum with masked weights W'
computes W'·(x − x̄) + ȳ, where x̄ and ȳ are the means of its input and output (as in the paper's
program), and an ablated neuron has its mean value.

Masks are arguments of compiled functions: trying another one builds no model, and outputs can be
differentiated with respect to masks. `masked_copy` builds a Keras model.

Cost: a forward pass; with "mean", also one of each masked sum for one sample.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_name, with_article
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.comparison import difference
from nnslicer_tf.instrument.copies import copy_model, examples, rebuild, transfer
from nnslicer_tf.instrument.graph import in_half_precision
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.model import InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.operations import Lookup, Operation

Masks = Mapping[str, Any]
Variables = Iterable[tuple[keras.Variable, np.ndarray]]
# Prefixes of the names of kernels and operations, and of the places of other variables.
_KERNEL, _NEURON, _VARIABLE, _VALUE = "k", "n", "v", "="


def maskable(model: ModelLike) -> InstrumentedModel:
    """Return an instrumented model whose kernels are variables: a copy if LoRA must be merged."""

    def computed(im: InstrumentedModel) -> list[Operation]:
        kernels = [(o, kernel) for o in im.operations for kernel in o.kernels]
        return [o for o, kernel in kernels if not isinstance(kernel.variable(), keras.Variable)]

    im = instrumented(model)
    if not computed(im):
        return im
    im = im.copy()
    for operation in computed(im):
        raise UnsupportedLayerError(
            f"The kernel of layer '{operation.layer}' ({type(operation.keras_layer).__name__}) is "
            "computed, so that it cannot be masked: only variables can. Replace the layer by one "
            "that stores the computed kernel, such as a Dense layer."
        )
    return im


def check_masks(im: InstrumentedModel, keep: Masks) -> dict[str, np.ndarray]:
    """Return masks of kernels as bools; raise InvalidArgumentError if one fits no kernel."""
    kernels = im.kernels
    for name, mask in keep.items():
        check_name("kernel", name, kernels)
        if np.shape(mask) != kernels[name].shape:
            raise InvalidArgumentError(
                f"An array for kernel '{name}' has shape {np.shape(mask)}, expected the "
                f"kernel's, {kernels[name].shape}."
            )
    return {name: np.asarray(mask, bool) for name, mask in keep.items()}


class MaskedModel:
    """A model whose outputs are computed for one mask after another.

    Args:
        model: The model; it is not changed.
        means: The model's profile, or operation → mean values `(*operation shape)`, for
            `ablation="mean"`.
        plain: Kernels whose ablated synapses always contribute zero.

    Attributes:
        im: The instrumented model; a copy if `model` has LoRA weights.

    Raises:
        UnsupportedLayerError: if a layer computes its kernel.
        ProfileMismatchError: if the profile belongs to a different model.
    """

    def __init__(self, model: ModelLike, means: Any = None, plain: Iterable[str] = ()) -> None:
        if hasattr(means, "check_model"):  # a profile
            means.check_model(instrumented(model))
            means = means.means
        self.im = maskable(model)
        self._kernels = self.im.kernels
        self._means = {name: mean[None].astype(np.float32) for name, mean in (means or {}).items()}
        self._plain = frozenset(plain)
        self._functions: dict[tuple[str, ...], Callable] = {}

    def logits(
        self,
        keep: Masks,
        x: Any,
        *,
        neurons: Masks | None = None,
        variables: Variables = (),
        ablation: str = "zero",
        renormalise_on: np.ndarray | None = None,
        batch_size: int = 200,
        of: str | None = None,
    ) -> np.ndarray:
        """Return the masked model's logits, or the values of an operation.

        Args:
            keep: Kernel → bools of its shape, False for ablated synapses; a leading axis of samples
                gives each sample its own mask. Other kernels are not masked.
            x: Samples `(samples, *input_shape)`, in any form that `InstrumentedModel.check` takes.
            neurons: Operation → bools `(*shape)`, `(channels,)` or `(samples, *shape)`, False for
                ablated neurons.
            variables: Pairs of another variable, such as a bias, and a factor of its shape.
            ablation: "zero" or "mean", the value of ablated parts.
            renormalise_on: Samples on which batch normalisations are measured again first.
            batch_size: Samples in one pass.
            of: Name of the operation, by default the logits'.

        Returns:
            `(samples, *operation shape)` float32.

        Raises:
            InvalidArgumentError: if a mask does not fit the model, or `ablation` is unknown.
            InputShapeError, InputRangeError, NonFiniteActivationError: for bad samples.
            UnsupportedLayerError: if a layer's synapses cannot be replaced by a mean.
        """
        x = self.im.check(x)
        name = self.im[of or self.im.logit_operation].name
        masks, each = self._checked(keep, neurons or {}, ablation, len(x))
        places = {id(v): i for i, v in enumerate(self.im.functional.variables)}
        masks |= {
            f"{_VARIABLE}{places[id(variable)]}": np.asarray(factor, np.float32)
            for variable, factor in variables
            if id(variable) in places
        }
        shared = {key: mask for key, mask in masks.items() if key not in each}

        def run(what: str, samples: Any, *of_samples: Masks) -> Any:
            function = self._function(what, name, ablation)
            tensors = [keras.ops.convert_to_tensor(array) for array in arrays_of(samples)]
            return function(tensors, *map(_floats, of_samples))

        if renormalise_on is not None:
            measured = run("statistics", self.im.check(renormalise_on), shared)
            shared |= {f"{_VALUE}{i}": value for i, value in measured.items()}
        parts = []
        for start in range(0, len(x), batch_size):
            rows = slice(start, start + batch_size)
            if each:
                values = run("each", x[rows], shared, {key: masks[key][rows] for key in each})
            else:
                values = run("values", x[rows], shared)
            parts.append(keras.ops.convert_to_numpy(values))
        return np.concatenate(parts)

    def values(
        self,
        x: Sequence[Any],
        keep: Masks,
        neurons: Masks | None = None,
        ablation: str = "zero",
        of: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        """Return the values of operations as tensors, differentiable with respect to the masks.

        Args:
            x: Tensors or arrays of the model's inputs, `(batch, …)`; tokens may be integers.
            keep: Kernel → float tensor of its shape, 0 for ablated synapses and 1 for others.
            neurons: Operation → float tensor that broadcasts to `(batch, *shape)`.
            ablation: "zero" or "mean".
            of: Names of operations, by default the logits'.
        """
        masks = {f"{_KERNEL}{name}": mask for name, mask in keep.items()}
        masks |= {f"{_NEURON}{name}": mask for name, mask in (neurons or {}).items()}
        inputs = [keras.ops.cast(keras.ops.convert_to_tensor(v), "float32") for v in x]
        return self._values(inputs, masks, tuple(of or [self.im.logit_operation]), ablation)[0]

    @cached_property
    def _working(self) -> tuple[keras.Model, list[tuple[keras.Variable, keras.Variable]]]:
        """A copy of the model, and its variables, each after the original."""
        original = self.im.model
        copy = copy_model(original, self.im.given_shape)
        if type(copy) is not type(original):  # it lists its layers in another order
            original, copy = self.im.functional, rebuild(self.im.functional)
        return copy, list(zip(original.variables, copy.variables, strict=True))

    def model(self, keep: Masks, variables: Variables = ()) -> keras.Model:
        """Return a Keras model with masked weights; the next call changes the same model.

        Args:
            keep: Kernel → bools of its shape, False for weights that become zero.
            variables: Pairs of another variable and a factor of its shape.

        Raises:
            InvalidArgumentError: if a mask does not fit the model.
        """
        copy, twins = self._working
        masks = check_masks(self.im, keep)
        factors = {id(self._kernels[name].variable()): mask for name, mask in masks.items()}
        factors |= {id(variable): factor for variable, factor in variables}
        for variable, twin in twins:
            value = keras.ops.convert_to_numpy(variable)
            twin.assign(value * factors[id(variable)] if id(variable) in factors else value)
        return copy

    def _checked(
        self, keep: Masks, neurons: Masks, ablation: str, samples: int
    ) -> tuple[dict[str, np.ndarray], set[str]]:
        """Return the masks as bools by key, and the keys of masks with an axis of samples."""
        check_name("ablation", ablation, ("zero", "mean"))
        if ablation == "mean" and not self._means:
            raise InvalidArgumentError("ablation='mean' needs `means`: MaskedModel(model, means).")
        for name in keep:
            check_name("kernel", name, self._kernels)
        masks: dict[str, np.ndarray] = {}
        each = set()
        entries = [("kernel", _KERNEL, n, mask, self._kernels[n].shape) for n, mask in keep.items()]
        entries += [("operation", _NEURON, n, m, self.im[n].shape) for n, m in neurons.items()]
        for what, prefix, name, mask, shape in entries:
            shapes = [shape, (samples, *shape)]
            if prefix == _NEURON:
                shapes.insert(1, shape[-1:])
            if np.shape(mask) not in shapes:
                raise InvalidArgumentError(
                    f"A mask for {what} '{name}' has shape {np.shape(mask)}, expected "
                    f"{' or '.join(map(str, dict.fromkeys(shapes)))}."
                )
            masks[prefix + name] = np.asarray(mask, bool)
            if np.ndim(mask) > len(shape):
                each.add(prefix + name)
        # A mean can stand in for the synapses of a weighted sum or an embedding only.
        for operation in self.im.operations if ablation == "mean" else ():
            plain = operation.kind == "weighted_sum" or isinstance(operation.params, Lookup)
            for kernel in () if plain else operation.kernels:
                if not np.all(masks.get(_KERNEL + kernel.name, True)):
                    raise UnsupportedLayerError(
                        f"Kernel '{kernel.name}' belongs to a recurrent layer "
                        f"({type(operation.keras_layer).__name__}), after which no mean can stand "
                        "in for synapses. Leave the kernel out, or use ablation='zero'."
                    )
        return masks, each

    def _function(self, what: str, name: str, ablation: str) -> Callable:
        """Return the compiled function for one operation, from the cache if it is there."""
        key = (what, name, ablation)
        if key in self._functions:
            return self._functions[key]

        def values(x: Any, masks: Masks) -> Any:
            return self._values(x, masks, (name,), ablation)[0][name]

        def each(x: Any, masks: Masks, single: Masks) -> Any:
            def one(sample: Any) -> Any:
                inputs, own = sample
                return values([v[None] for v in inputs], {**masks, **own})[0]

            return keras.ops.map(one, (list(x), dict(single)))

        def statistics(x: Any, masks: Masks) -> Any:
            return self._values(x, masks, (name,), ablation, measure=True)[1]

        functions: dict[str, Callable] = {"values": values, "each": each, "statistics": statistics}
        self._functions[key] = compiled_function(functions[what])
        return self._functions[key]

    def _values(
        self,
        x: Sequence[Any],
        masks: Masks,
        names: Sequence[str],
        ablation: str,
        measure: bool = False,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return operations' values, and if `measure`, batch statistics by a variable's index."""
        own = self.im.functional.variables
        mapping = []
        for key, mask in masks.items():
            prefix, name = key[0], key[1:]
            if prefix == _KERNEL:
                variable = self._kernels[name].variable()
                mapping.append((variable, variable * keras.ops.cast(mask, variable.dtype)))
            elif prefix == _VARIABLE:
                mapping.append((own[int(name)], own[int(name)] * mask))
            elif prefix == _VALUE:
                mapping.append((own[int(name)], mask))
        values: dict[str, Any] = {}
        measured: dict[str, Any] = {}

        def change(name: str, value: Any) -> Any:
            operation = self.im[name]
            layer = operation.keras_layer
            if measure and isinstance(layer, keras.layers.BatchNormalization):
                # Normalise by the statistics of the batch, which are stored.
                x = values[operation.inputs[0]]
                axis = layer.axis % len(x.shape)
                statistics = keras.ops.moments(x, [a for a in range(len(x.shape)) if a != axis])
                moving = (layer.moving_mean, layer.moving_variance)
                for variable, moment in zip(moving, statistics, strict=True):
                    place = next(i for i, known in enumerate(own) if known is variable)
                    measured[str(place)] = moment
                value = keras.ops.batch_normalization(
                    x, *statistics, axis, layer.beta, layer.gamma, layer.epsilon
                )
            if ablation == "mean":
                value = self._with_mean(operation, value, values, masks)
            mask = masks.get(_NEURON + name)
            if mask is not None:
                left = self._means[name] if ablation == "mean" else 0.0
                value = value * mask + left * (1 - mask)
            values[name] = value
            return value

        with keras.StatelessScope(mapping):
            self.im.graph.run(list(x), names, change)
        return {name: values[name] for name in names}, measured

    def _with_mean(self, operation: Operation, value: Any, values: Masks, masks: Masks) -> Any:
        """Add the mean contribution of the masked synapses to a sum or embedding."""
        kernels = [k for k in operation.kernels if _KERNEL + k.name in masks]
        if not kernels or kernels[0].name in self._plain:
            return value
        if isinstance(operation.params, Lookup):
            mask = masks[_KERNEL + kernels[0].name]
            with keras.StatelessScope([(kernels[0].variable(), keras.ops.cast(mask, "float32"))]):
                kept = operation.compute(*(values[name] for name in operation.inputs))
            return value + (1 - kept) * self._means[operation.name]
        mean = keras.ops.convert_to_tensor(self._means[operation.inputs[0]])
        masked = operation.compute(mean)
        with keras.StatelessScope():
            whole = operation.compute(mean)
        return value + (whole - masked)


def _floats(masks: Masks) -> dict[str, Any]:
    return {key: keras.ops.convert_to_tensor(mask, "float32") for key, mask in masks.items()}


def masked_copy(
    im: InstrumentedModel,
    keep: Masks,
    means: Mapping[str, np.ndarray],
    configs: Mapping[int, dict[str, Any]] | None = None,
) -> keras.Model:
    """Return a Keras model in which masked synapses contribute their mean.

    A `Normalization` after each layer with masked synapses adds the constant, so that the copy
    consists of ordinary Keras layers; it is functional, and a fused activation becomes a layer.

    `keep` maps kernels to bools of their shape, `means` operations to values `(*operation shape)`,
    and `configs` a layer's id to further entries of its config in the copy.

    Raises InvalidArgumentError if a mask does not fit the model, UnsupportedLayerError if a layer
    cannot be followed by a constant, such as attention, recurrent layers, shared nested models.
    """
    im = maskable(im)
    keep = check_masks(im, keep)
    inputs: dict[int, list[str]] = {}  # id of a layer → the operations that its calls read
    for operation in im.operations:
        masked = [k.name for k in operation.kernels if not keep.get(k.name, np.True_).all()]
        has_activation = hasattr(operation.keras_layer, "activation")
        if masked and not (operation.kind == "weighted_sum" and has_activation):
            raise UnsupportedLayerError(
                f"Kernel '{masked[0]}' belongs to "
                f"{with_article(type(operation.keras_layer).__name__)} layer, "
                "after which no constant can be added: only after layers with one kernel and an "
                "activation. Leave the kernel out, or leave the means out."
            )
        # A separable convolution is two weighted sums: the second reads the first.
        is_second = operation.kernels and operation.kernels[0].name.endswith("/pointwise")
        if operation.kind == "weighted_sum" and has_activation and not is_second:
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
        masked = keras.ops.convert_to_numpy(copy(mean))
        transfer(layer, copy, {})
        offset = (keras.ops.convert_to_numpy(copy(mean)) - masked)[0]
        transfer(layer, copy, values)
        name = f"{layer.name}_{index}" if index else layer.name
        if offset.any():
            constant = keras.layers.Normalization(
                axis=tuple(range(1, offset.ndim + 1)),
                mean=-offset,
                variance=np.ones_like(offset),
                name=f"{name}_mean",
            )
            y = constant(y)
        if layer.activation is not keras.activations.linear:
            y = keras.layers.Activation(layer.activation, name=f"{name}_activation")(y)
        return y

    configs = dict(configs or {})
    configs |= {key: {**configs.get(key, {}), "activation": None} for key in inputs}
    shapes = list(im.input_shapes.values())  # those of the constants
    copy = rebuild(im.functional, values, configs, after=after, shapes=shapes)
    x = examples(im.functional, shapes)
    if x is None:
        return copy
    tensors = [keras.ops.convert_to_tensor(v, "float32") for v in keras.tree.flatten(x)]
    outputs = im.output_operations
    expected = MaskedModel(im, means).values(tensors, _floats(keep), ablation="mean", of=outputs)
    halves = any(in_half_precision(step.layer) for step in im.graph.wrappers.values())
    found = keras.tree.flatten(copy(x, training=False))
    for name, output in zip(outputs, found, strict=True):
        if difference(expected[name], output, tolerance=0.1 if halves else 1e-3) > 1:
            raise UnsupportedLayerError(
                f"The masked copy of model '{im.model.name}' does not compute the masked model's "
                f"output '{name}'. Perhaps a nested model is called more than once, with different "
                "means. Leave the means out, or build the model without nested models."
            )
    return copy
