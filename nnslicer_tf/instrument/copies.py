"""Copies of models, which can be changed without changing the original.

`copy_model` gives a copy with equal outputs, and checks it; `rebuild` gives one with other weights,
sizes or layers. Both copy nested models and everything that a layer keeps outside its variables,
such as the statistics of an adapted `Normalization`. LoRA weights are merged into their kernels.

Cost: the layers are built again, and the check runs both models on four samples.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument._trace import (
    Shapes,
    _flat_shapes,
    as_functional,
    functional_class,
    input_name,
)
from nnslicer_tf.instrument.comparison import structure_of

After = Callable[[keras.layers.Layer, keras.layers.Layer, Any, tuple], Any]
"""Function of a layer, its copy, the copy's output and arguments; it returns what follows it."""


def copy_model(model: keras.Model, input_shape: Shapes | None = None) -> keras.Model:
    """Return a copy of a built model, with the same layer names, its own weights, equal outputs.

    Args:
        model: A functional, sequential or subclassed model. If a subclassed model has no config,
            the copy is functional.
        input_shape: The shape of one sample, if the model does not know it.

    Raises:
        InputShapeError: if a subclassed model has no config and its input's shape is not known.
        UnsupportedLayerError: if a layer cannot be copied: its class or a function that it uses is
            not registered with Keras, or it keeps something that Keras does not save.
    """
    if has_graph(model):
        check_copyable(model)
        copy = rebuild(as_functional(model, input_shape))  # which builds a sequential model
    else:
        copy = _copy_of_subclass(model, input_shape)
    check_copy(model, copy, input_shape)
    return copy


def rebuild(
    model: keras.Model,
    values: Mapping[int, np.ndarray] | None = None,
    configs: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    replacements: Mapping[int, keras.layers.Layer] | None = None,
    after: After | None = None,
    shapes: Shapes | None = None,
) -> keras.Model:
    """Return a copy of a functional or sequential model with some variables and layers changed.

    Args:
        model: The model; nested models are copied, too.
        values: Id of a variable → its value in the copy, with the copy's shape.
        configs: Id of a layer → entries of its config in the copy.
        replacements: Id of a layer → the layer that takes its place, built or not, whose weights
            are not changed.
        after: Called for every call of a copied layer; what it returns takes the place of the
            layer's output. Sequential models then become functional.
        shapes: The shapes of one sample, where the copy needs other ones than the model has.

    Raises:
        UnsupportedLayerError: as in `copy_model`.
    """
    builder = _Builder(values or {}, configs or {}, dict(replacements or {}), after)
    sizes = None if shapes is None else _flat_shapes(shapes)
    return builder.model(model, sizes)


def check_copyable(model: keras.Model) -> None:
    """Check that all layers of a model can be created from their configs, before long work.

    Raises:
        UnsupportedLayerError: naming the layer and the class or function that is not registered.
    """
    for layer in model.layers if has_graph(model) else ():
        if isinstance(layer, keras.Model):
            check_copyable(layer)
        elif isinstance(layer, keras.layers.Layer):
            _created(layer, {})


def check_copy(
    model: keras.Model, copy: keras.Model, input_shape: Shapes | None = None, what: str = "copy"
) -> None:
    """Check that two models give the same outputs for random, large, negative and zero inputs.

    Args:
        model: The model.
        copy: A model that has to give its outputs.
        input_shape: Shapes of one sample, where the model's are not fixed.
        what: What the second model is, for the message.

    Raises:
        UnsupportedLayerError: if an output differs by more than rounding, naming the first layer
            that does.
    """
    x = examples(model, input_shape)
    if x is None:
        return
    expected, outputs = _outputs(model, x), _outputs(copy, x)
    if all(map(agree, expected, outputs)):
        return
    if not all(map(agree, expected, _outputs(model, x))):
        raise UnsupportedLayerError(
            f"Model '{model.name}' gives different outputs for the same input: a layer is random "
            "even in inference. Was one called with training=True? Call it without."
        )
    name, layer = _first_difference(model, copy, x)
    raise UnsupportedLayerError(
        f"The {what} of model '{model.name}' gives other outputs than the model; the first layer "
        f"that differs is '{name}' ({type(layer).__name__}). It keeps something that is neither a "
        "variable nor in its config: create it in build() with add_weight, or return it from "
        "get_config()."
    )


def examples(model: keras.Model, input_shape: Shapes | None = None) -> Any:
    """Return four samples in the structure of a model's inputs, in the dtypes that it declares.

    They are random: between 0 and 1, of both signs, and large; the last is zero. Tokens are in the
    range of all vocabularies. Returns None if the model's inputs are not known.
    """
    tensors = keras.tree.flatten(_structure(model))
    if not tensors:
        return None
    shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
    if input_shape is not None:
        shapes = [tuple(shape) for shape in _flat_shapes(input_shape)]
    layers = list(sublayers(model))
    limits = [n for layer in layers for n in [_token_count(layer)] if n is not None]
    rng = np.random.default_rng(0)
    arrays = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if dtype == "string":
            return None
        samples = tensor.shape[0] or 4
        size = (samples, *(64 if n is None else n for n in shape))
        kind = np.arange(samples).reshape(-1, *[1] * len(shape)) % 4
        x = np.choose(
            kind, [rng.random(size), rng.normal(size=size), 30 * rng.normal(size=size), 0]
        )
        if limits:
            x = rng.integers(0, min(limits), size)
            x[-1, ..., -(-size[-1] // 2) :] = 0
        elif dtype == "bool":
            x = x > 0
        elif dtype.startswith("uint"):
            x = np.where(kind == 3, 0, rng.integers(0, 256, size))
        arrays.append(x.astype(dtype if dtype != "bfloat16" else "float32"))
    return keras.tree.pack_sequence_as(_structure(model), arrays)


def inputs_like(model: keras.Model, shapes: Iterable[tuple[int | None, ...]] | None = None) -> Any:
    """Return inputs for a clone of a functional model, in the structure of the model's inputs.

    They keep the names of the model's inputs; `clone_model` would use the names of their tensors,
    which Keras numbers.

    Args:
        model: A functional model.
        shapes: The shape of one sample of each input; by default, those of the model.
    """
    entries = [
        keras.Input(shape, tensor.shape[0], tensor.dtype, name=input_name(tensor))
        for shape, tensor in zip(
            shapes or [tensor.shape[1:] for tensor in model.inputs], model.inputs, strict=True
        )
    ]
    return keras.tree.pack_sequence_as(model.input, entries)


def sublayers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield a layer or model and all layers inside, in the order in which Keras keeps them."""
    yield from layer._flatten_layers(include_self=True, recursive=True)


class _Builder:
    """Builds a copy; see `rebuild`."""

    def __init__(
        self,
        values: Mapping[int, np.ndarray],
        configs: Mapping[int, Mapping[str, Any]],
        copies: dict[int, keras.Operation],
        after: After | None,
    ) -> None:
        self._values, self._configs, self._after = values, configs, after
        self._copies = copies
        self._replaced = frozenset(map(id, copies.values()))
        self._filled: set[int] = set()

    def model(
        self, model: keras.Model, shapes: Sequence[tuple[int | None, ...]] | None
    ) -> keras.Model:
        """Return a copy of a functional or sequential model for inputs of some shapes."""
        if isinstance(model, keras.Sequential) and self._after is None:
            copy = self._sequential(model, shapes)
        else:
            copy = self._functional(model, shapes)
        if model.compiled:
            try:
                copy.compile_from_config(model.get_compile_config())
            except (TypeError, ValueError):  # a loss that is not registered: it stays uncompiled
                copy.compiled = False
        return copy

    def _sequential(
        self, model: keras.Sequential, shapes: Sequence[tuple[int | None, ...]] | None
    ) -> keras.Model:
        (tensor,) = model.inputs
        shape = tensor.shape[1:] if shapes is None else shapes[0]
        entry = keras.Input(shape, tensor.shape[0], tensor.dtype, name=input_name(tensor))
        value: Any = entry
        stack = []
        for layer in model.layers:
            stack.append(self._copy(layer, (value,)))
            value = stack[-1](value)
            self._fill(layer, stack[-1])
        return keras.Sequential([entry, *stack], name=model.name, trainable=model.trainable)

    def _functional(
        self, model: keras.Model, shapes: Sequence[tuple[int | None, ...]] | None
    ) -> keras.Model:
        # A plain model of the same graph, without the user's class and compile().
        plain = keras.Model(structure_of(model, "input"), structure_of(model, "output"))
        entries = inputs_like(plain, shapes)
        clone = keras.models.clone_model(
            plain,
            input_tensors=entries,
            clone_function=lambda layer: layer,
            call_function=self._call,
        )
        is_plain = isinstance(model, keras.Sequential) or not _has_constructor_of_keras(model)
        kind = keras.Model if is_plain else type(model)
        copy = kind(entries, structure_of(clone, "output"), name=model.name)
        if not model.trainable:
            copy.trainable = False
        return copy

    def _call(self, layer: keras.Operation, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, keras.layers.InputLayer):
            return args[0]
        copy = self._copy(layer, args)
        # What takes a layer's place does not know its options, such as `mask`.
        y = copy(*args) if id(copy) in self._replaced else copy(*args, **kwargs)
        self._fill(layer, copy)
        return y if self._after is None else self._after(layer, copy, y, args)

    def _copy(self, layer: keras.Operation, args: tuple) -> keras.Operation:
        """Return the copy of a layer, which is made at its first call."""
        if id(layer) not in self._copies:
            self._copies[id(layer)] = self._new(layer, args)
        return self._copies[id(layer)]

    def _new(self, layer: keras.Operation, args: tuple) -> keras.Operation:
        if not isinstance(layer, keras.layers.Layer):  # `x + y` has nothing to copy
            return layer
        if has_graph(layer):
            # Axes without a size stay so; others may be smaller in the copy.
            shapes = [
                tuple(a and b for a, b in zip(tensor.shape[1:], value.shape[1:], strict=True))
                for tensor, value in zip(layer.inputs, keras.tree.flatten(args), strict=True)
            ]
            return self.model(layer, shapes)
        return _created(layer, self._configs.get(id(layer), {}))

    def _fill(self, layer: keras.Operation, copy: keras.Operation) -> None:
        """Give a copied layer the state of the original, once it is built."""
        is_own = copy is not layer and id(copy) not in self._replaced
        if is_own and id(copy) not in self._filled and not has_graph(layer):
            self._filled.add(id(copy))
            transfer(layer, copy, self._values)


def transfer(
    layer: keras.layers.Layer, copy: keras.layers.Layer, values: Mapping[int, np.ndarray]
) -> None:
    """Set the state of a built copy of a layer: its variables, and what it keeps beside them.

    Args:
        layer: The layer.
        copy: Its copy, with the same layers inside.
        values: Id of a variable → its value in the copy, with the copy's shape.

    Raises:
        UnsupportedLayerError: if the copy has other variables.
    """
    own, other = list(sublayers(layer)), list(sublayers(copy))
    merged = [part for part in own if getattr(part, "lora_enabled", False)]
    if len(own) != len(other) or (not merged and len(layer.weights) != len(copy.weights)):
        raise UnsupportedLayerError(
            f"Layer '{layer.name}' ({type(layer).__name__}) cannot be copied: created from its "
            f"config, it has {len(copy.weights)} variables instead of {len(layer.weights)}. "
            "Return everything that it is made from in get_config(), and create variables in "
            "__init__ or build()."
        )
    for part, twin in zip(own, other, strict=True):
        if part in merged:
            store: dict[str, Any] = {}
            part.save_own_variables(store)  # merges the LoRA weights
            twin.load_own_variables({k: keras.ops.copy(v) for k, v in store.items()})
            continue
        # Seeds come last: a dropout whose rate was set to 0 has one, and its copy has none.
        for variable, new in zip(_own_variables(part), _own_variables(twin), strict=False):
            # A copy: JAX's compiled calls delete the arrays that they are given.
            new.assign(keras.ops.copy(values.get(id(variable), variable)))
        for state, new in zip(_states(part), _states(twin), strict=True):
            new.assign(keras.ops.copy(state))
        if hasattr(part, "save_assets"):  # vocabularies
            with tempfile.TemporaryDirectory() as folder:
                part.save_assets(folder)
                twin.load_assets(folder)
        if hasattr(twin, "finalize_state") and _own_variables(twin):  # others have it in the config
            twin.finalize_state()


def _states(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the states that a recurrent layer keeps from batch to batch."""
    if not getattr(layer, "stateful", False):
        return []
    states = keras.tree.flatten(getattr(layer, "states", None))
    return [state for state in states if isinstance(state, keras.Variable)]


def _own_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return a layer's variables without those of layers inside."""
    seeds = [generator.state for generator in layer._seed_generators]
    return [*layer._trainable_variables, *layer._non_trainable_variables, *seeds]


def _created(layer: keras.layers.Layer, entries: Mapping[str, Any]) -> keras.layers.Layer:
    """Return a new layer with the config of another one and some entries changed.

    Raises:
        UnsupportedLayerError: if Keras cannot do it.
    """
    try:
        config = {**layer.get_config(), **entries}
        # The kernel of the copy has the LoRA weights merged.
        config = {k: v for k, v in config.items() if k not in ("lora_rank", "lora_alpha")}
        return type(layer).from_config(config)
    except (TypeError, ValueError, NotImplementedError, AttributeError, KeyError) as error:
        reason = ", ".join(_unregistered(layer)) or str(error).strip().partition("\n")[0][:200]
        raise UnsupportedLayerError(
            f"Layer '{layer.name}' ({type(layer).__name__}) cannot be copied, because Keras cannot "
            f"create it from its config: {reason}. Register its class and the functions that it "
            "uses with @keras.saving.register_keras_serializable(), and return all arguments of "
            "__init__ from get_config()."
        ) from error


def _unregistered(layer: keras.layers.Layer) -> list[str]:
    """Return the functions and classes in a layer's attributes that are not registered."""
    names = []
    for name, value in vars(layer).items():
        kind = value if hasattr(value, "__name__") else type(value)
        is_foreign = (kind.__module__ or "keras").split(".")[0] not in ("keras", "builtins")
        is_public = callable(value) and not name.startswith("_")
        is_registered = keras.saving.get_registered_name(kind) != kind.__name__
        if is_foreign and is_public and not is_registered:
            names.append(f"{name}='{kind.__name__}' is not registered")
    return names


def _copy_of_subclass(model: keras.Model, input_shape: Shapes | None) -> keras.Model:
    """Return a copy of a subclassed model, a functional one if the class has no config."""
    try:
        copy = type(model).from_config(model.get_config())
    except (NotImplementedError, TypeError):  # what Keras raises for a model without a config
        functional = as_functional(model, input_shape)
        check_copyable(functional)
        return rebuild(functional)
    if not copy.built:
        shape = model.get_build_config()["input_shape"]
        copy(np.zeros((1, *shape[1:]), np.float32))
    transfer(model, copy, {})
    return copy


def has_graph(model: keras.Model) -> bool:
    """Whether a model is functional or sequential."""
    return isinstance(model, (keras.Sequential, functional_class()))


def _has_constructor_of_keras(model: keras.Model) -> bool:
    """Whether the class of a functional model is created from inputs and outputs."""
    return type(model).__init__ is functional_class().__init__


def _structure(model: keras.Model) -> Any:
    """Return the tensors of a model's inputs in their structure; empty if they are not known."""
    if has_graph(model):
        return structure_of(model, "input") if model.built else []
    shape: Any = (model.get_build_config() or {}).get("input_shape")
    is_one = isinstance(shape, (tuple, list)) and all(isinstance(n, int | None) for n in shape)
    return keras.KerasTensor(tuple(shape)) if is_one else []


def _token_count(layer: keras.layers.Layer) -> int | None:
    """Return the number of tokens that a layer accepts, None for one that takes no tokens."""
    count = getattr(layer, "num_tokens", None)
    is_table = isinstance(layer, (keras.layers.Embedding, keras.layers.ReversibleEmbedding))
    return layer.input_dim if is_table else count if isinstance(count, int) else None


def _outputs(model: keras.Model, x: Any) -> list[np.ndarray]:
    """Return a model's outputs; the states of stateful layers stay as they are."""
    states = [
        (variable, keras.ops.copy(variable))
        for layer in sublayers(model)
        for variable in _states(layer)
    ]
    values = keras.tree.flatten(model(x, training=False))
    for variable, state in states:
        variable.assign(state)
    return [keras.ops.convert_to_numpy(value).astype(np.float64) for value in values]


def agree(expected: np.ndarray, values: np.ndarray, tolerance: float = 1e-5) -> bool:
    """Whether values of two models agree up to a share of each sample's largest."""
    if expected.shape != values.shape:
        return False
    for one, other in zip(expected, values, strict=True):
        scale = np.abs(one[np.isfinite(one)]).max(initial=1e-6)
        if not np.allclose(other, one, rtol=10 * tolerance, atol=tolerance * scale, equal_nan=True):
            return False
    return True


def _first_difference(
    model: keras.Model, copy: keras.Model, x: Any
) -> tuple[str, keras.layers.Layer]:
    """Return the name of the first layer whose output differs, and the layer."""
    same = {layer.name: layer for layer in copy.layers}
    for layer in model.layers if has_graph(model) else ():
        if layer.name not in same or isinstance(layer, keras.layers.InputLayer):
            continue
        try:
            pair = [
                keras.Model(structure_of(one, "input"), part.output)
                for one, part in ((model, layer), (copy, same[layer.name]))
            ]
        except (AttributeError, ValueError):  # it is called more than once
            continue
        if all(map(agree, *(_outputs(one, x) for one in pair))):
            continue
        inner = examples(layer) if has_graph(layer) else None
        if inner is not None:
            name, part = _first_difference(layer, same[layer.name], inner)
            return f"{layer.name}/{name}", part
        return layer.name, layer
    last = model.layers[-1]
    return last.name, last
