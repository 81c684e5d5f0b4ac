"""Copies of models, which can be changed without changing the original.

`copy_model` gives a copy with equal outputs, and checks it; `rebuild` one with other weights,
sizes or layers. Both copy nested models, state outside variables (such as an adapted
`Normalization`'s statistics) and the user's functions, and merge LoRA weights into kernels.

Cost: the layers are built again, and the check runs both models on four samples.
"""

import inspect
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InputShapeError, UnsupportedLayerError
from nnslicer_tf.instrument import functional
from nnslicer_tf.instrument.comparison import difference, random_input
from nnslicer_tf.instrument.functional import sublayers

After = Callable[[keras.layers.Layer, keras.layers.Layer, Any, tuple], Any]
"""Function of a layer, its copy, the copy's output and arguments; it returns what follows it."""


def copy_model(model: keras.Model, input_shape: functional.Shapes | None = None) -> keras.Model:
    """Return a copy of a built model with its own weights, and equal layer names and outputs.

    Args:
        model: Any Keras model. Without a config, a subclassed model's copy is functional.
        input_shape: The shape of one sample, if the model does not specify it.

    Raises InputShapeError if a subclassed model has no config and its input's shape is not known;
    UnsupportedLayerError if a layer cannot be copied: its class or a function that it uses is not
    registered with Keras, or it has state that Keras does not save.
    """
    copy = None
    if not functional.has_graph(model):
        # Keras raises these for a model without a config.
        with suppress(NotImplementedError, TypeError):
            copy = type(model).from_config(model.get_config())
    if copy is None:
        copy = rebuild(functional.as_functional(model, input_shape))  # it builds a sequential one
    else:
        if not copy.built:
            copy(np.zeros((1, *model.get_build_config()["input_shape"][1:]), np.float32))
        _keep_functions(model, copy)
        transfer(model, copy, {})
        # Keras has numbered the layers that the class creates.
        for layer, same in zip(model._flatten_layers(), copy._flatten_layers(), strict=True):
            same.name = layer.name
    check_copy(model, copy, input_shape)
    return copy


def rebuild(
    model: keras.Model,
    values: Mapping[int, np.ndarray] | None = None,  # id of a variable → its new value
    configs: Mapping[int, Mapping[str, Any]] | None = None,  # id of a layer → new entries
    *,
    replacements: Mapping[int, keras.layers.Layer] | None = None,  # id → layer used unchanged
    after: After | None = None,  # its result replaces the output of each call
    shapes: functional.Shapes | None = None,  # of one sample, if not the model's
) -> keras.Model:
    """Return a copy of a functional or sequential model with some variables and layers changed.

    Nested models are copied, too. With `after`, sequential and nested subclassed models become
    functional. Errors as in `copy_model`.
    """
    builder = _Builder(values or {}, configs or {}, dict(replacements or {}), after)
    return builder.model(model, None if shapes is None else functional.flat_shapes(shapes))


def check_copyable(model: keras.Model) -> None:
    """Check before long work that all layers can be copied; raise as `copy_model` does."""
    for layer in model.layers if functional.has_graph(model) else ():
        if isinstance(layer, keras.Model):
            check_copyable(layer)
        elif isinstance(layer, keras.layers.Layer):
            _created(layer, {})


def check_copy(
    model: keras.Model,
    copy: keras.Model,
    input_shape: functional.Shapes | None = None,
    what: str = "copy",
) -> None:
    """Raise UnsupportedLayerError unless two models agree on `examples`; `what` is the second."""
    x = examples(model, input_shape)
    if x is None:
        return
    expected = _outputs(model, x)
    if _agree(expected, _outputs(copy, x)):
        return
    if not _agree(expected, _outputs(model, x)):
        raise UnsupportedLayerError(
            f"Model '{model.name}' gives different outputs for the same input: a layer is random "
            "even in inference. Was one called with training=True? Call it without."
        )
    name, layer = _first_difference(model, copy, x)
    raise UnsupportedLayerError(
        f"The {what} of model '{model.name}' gives outputs that differ from the model's; the first "
        f"layer that differs is '{name}' ({type(layer).__name__}). It has state that is neither a "
        "variable nor in its config: create it with add_weight, or return it from get_config()."
    )


def examples(model: keras.Model, input_shape: functional.Shapes | None = None) -> Any:
    """Return four `random_input`s in the structure of a model's inputs; None if not known."""
    structure: Any = []
    if functional.has_graph(model):
        structure = functional.structure_of(model, "input") if model.built else []
    else:
        shape: Any = (model.get_build_config() or {}).get("input_shape")
        if isinstance(shape, (tuple, list)) and all(isinstance(n, int | None) for n in shape):
            structure = keras.KerasTensor(tuple(shape))
    tensors = keras.tree.flatten(structure)
    if not tensors or any(tensor.dtype == "string" for tensor in tensors):
        return None
    shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
    if input_shape is not None:
        shapes = functional.flat_shapes(input_shape)
    if len(shapes) != len(tensors):
        raise InputShapeError(
            f"Model '{model.name}' has {counted(len(tensors), 'input')}. Received: {input_shape!r}"
        )
    tables = (keras.layers.Embedding, keras.layers.ReversibleEmbedding)
    counts = [
        layer.input_dim if isinstance(layer, tables) else getattr(layer, "num_tokens", None)
        for layer in sublayers(model)
    ]
    tokens = min((n for n in counts if isinstance(n, int)), default=None)
    rng = np.random.default_rng(0)
    arrays = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        size = (tensor.shape[0] or 4, *(64 if n is None else n for n in shape))
        name = functional.input_name(tensor) if hasattr(tensor, "_keras_history") else ""
        of = None if name.endswith("mask") else tokens
        arrays.append(random_input(rng, size, tensor.dtype, of, None, tokens is not None, name))
    return keras.tree.pack_sequence_as(structure, arrays)


@dataclass
class _Builder:
    """Builds a copy; see `rebuild`."""

    _values: Mapping[int, np.ndarray]
    _configs: Mapping[int, Mapping[str, Any]]
    _copies: dict[int, keras.Operation]
    _after: After | None

    def __post_init__(self) -> None:
        self._replaced = frozenset(map(id, self._copies.values()))
        self._filled: set[int] = set()

    def model(
        self, model: keras.Model, shapes: Sequence[tuple[int | None, ...]] | None
    ) -> keras.Model:
        if isinstance(model, keras.Sequential) and self._after is None:
            value = entry = functional.inputs_like(model, shapes)
            stack = []
            for layer in model.layers:
                stack.append(self._copy(layer, (value,)))
                value = stack[-1](value)
                self._fill(layer, stack[-1])
            copy = keras.Sequential([entry, *stack], name=model.name, trainable=model.trainable)
        else:
            # A plain model of the same graph, without the user's class and compile().
            plain = keras.Model(
                functional.structure_of(model, "input"), functional.structure_of(model, "output")
            )
            entries = functional.inputs_like(plain, shapes)
            clone = keras.models.clone_model(
                plain,
                input_tensors=entries,
                clone_function=lambda layer: layer,
                call_function=self._call,
            )
            # A class of the user's is kept if it is created from inputs and outputs.
            keeps_class = type(model).__init__ is functional.functional_class().__init__
            kind = type(model) if keeps_class else keras.Model
            copy = kind(entries, functional.structure_of(clone, "output"), name=model.name)
            if not model.trainable:
                copy.trainable = False
        if model.compiled:
            try:
                copy.compile_from_config(model.get_compile_config())
            except (TypeError, ValueError):  # a loss that is not registered: it stays uncompiled
                copy.compiled = False
        copy.loss = getattr(model, "loss", None)
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
        if id(layer) in self._copies:
            return self._copies[id(layer)]
        copy: keras.Operation = layer
        graph = layer
        if self._after is not None and isinstance(layer, keras.Model):
            given = keras.tree.map_structure(lambda value: tuple(value.shape[1:]), args[0])
            graph = functional.as_functional(layer, given)
        if isinstance(graph, keras.layers.Layer) and functional.has_graph(graph):
            # Axes without a size stay so; others may be smaller in the copy.
            pairs = zip(graph.inputs, functional.in_order(graph, *args), strict=True)
            shapes = [
                tuple(a and b for a, b in zip(tensor.shape[1:], value.shape[1:], strict=True))
                for tensor, value in pairs
            ]
            copy = self.model(graph, shapes)
        elif isinstance(layer, keras.layers.Layer):  # `x + y` has nothing to copy
            copy = _created(layer, self._configs.get(id(layer), {}))
        self._copies[id(layer)] = copy
        return copy

    def _fill(self, layer: keras.Operation, copy: keras.Operation) -> None:
        is_own = copy is not layer and id(copy) not in self._replaced
        if is_own and id(copy) not in self._filled and not functional.has_graph(copy):
            self._filled.add(id(copy))
            transfer(layer, copy, self._values)


def transfer(
    layer: keras.layers.Layer, copy: keras.layers.Layer, values: Mapping[int, np.ndarray]
) -> None:
    """Copy variables and other state to a built copy; `values` are new ones, by variable's id.

    Raises UnsupportedLayerError if the copy has other variables.
    """
    own, other = list(sublayers(layer)), list(sublayers(copy))
    merged = [part for part in own if getattr(part, "lora_enabled", False)]
    if len(own) != len(other) or (not merged and len(layer.weights) != len(copy.weights)):
        raise UnsupportedLayerError(
            f"Layer '{layer.name}' ({type(layer).__name__}) cannot be copied: created from its "
            f"config, it has {len(copy.weights)} variables instead of {len(layer.weights)}. Return "
            "all arguments of __init__ from get_config(), and create variables in build()."
        )
    for part, twin in zip(own, other, strict=True):
        if part is not layer and twin.name != part.name:  # Keras has numbered it
            twin.name = part.name
        if part in merged:
            store: dict[str, Any] = {}
            part.save_own_variables(store)  # merges the LoRA weights
            twin.load_own_variables({k: keras.ops.copy(v) for k, v in store.items()})
            continue
        # Seeds come last: a dropout whose rate was set to 0 has one, and its copy has none.
        for variable, new in zip(_own_variables(part), _own_variables(twin), strict=False):
            if tuple(values.get(id(variable), variable).shape) != tuple(new.shape):
                why = (
                    "creates its own layers, so no unit inside it can be removed. Build it as a "
                    "functional model: keras.Model(inputs, outputs)."
                    if len(own) > 1 or not type(layer).__module__.startswith("keras.")
                    else "reads units that are removed, but no output depends on it. Build the "
                    "model without this layer."
                )
                raise UnsupportedLayerError(f"'{layer.name}' ({type(layer).__name__}) {why}")
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
    """Return a new layer from a layer's config, with some entries changed."""
    try:
        config = {**layer.get_config(), **entries}
        # The kernel of the copy has the LoRA weights merged.
        config = {k: v for k, v in config.items() if k not in ("lora_rank", "lora_alpha")}
        with _policy_inside(layer):
            copy = type(layer).from_config(config)
    except (TypeError, ValueError, NotImplementedError, AttributeError, KeyError) as error:
        names = []
        for name, value in vars(layer).items():
            kind = value if hasattr(value, "__name__") else type(value)
            is_foreign = (kind.__module__ or "keras").split(".")[0] not in ("keras", "builtins")
            is_registered = keras.saving.get_registered_name(kind) != kind.__name__
            if is_foreign and callable(value) and not name.startswith("_") and not is_registered:
                names.append(f"{name}='{kind.__name__}' is not registered")
        reason = ", ".join(names) or str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise UnsupportedLayerError(
            f"Layer '{layer.name}' ({type(layer).__name__}) cannot be copied, because Keras cannot "
            f"create it from its config: {reason}. Register its class and the functions that it "
            "uses with @keras.saving.register_keras_serializable(), and return all arguments of "
            "__init__ from get_config()."
        ) from error
    if copy.name != layer.name and "name" not in entries:  # its class takes no name
        copy.name = layer.name
    _keep_functions(layer, copy, entries)
    return copy


@contextmanager
def _policy_inside(layer: keras.layers.Layer) -> Iterator[None]:
    """Create layers with the dtype policy of those inside a layer, which its config lacks."""
    before = keras.config.dtype_policy()
    inside = next((part.dtype_policy for part in sublayers(layer) if part is not layer), before)
    keras.config.set_dtype_policy(inside if inside.name.startswith("mixed") else before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _keep_functions(
    layer: keras.layers.Layer, copy: keras.layers.Layer, changed: Container[str] = ()
) -> None:
    """Give a copy the original's functions, except those `changed`; configs only name them."""
    for name, value in vars(layer).items():
        is_option = not name.startswith("_") and not hasattr(type(layer), name)
        if is_option and inspect.isfunction(value) and name not in changed:
            setattr(copy, name, value)
    # Level by level: a copy that is not built may lack the layers inside an attention, and the
    # inputs of a sequential model.
    own, other = (
        [part for part in one._layers if not isinstance(part, keras.layers.InputLayer)]
        for one in (layer, copy)
    )
    for part, twin in zip(own, other, strict=False):
        if type(part) is type(twin):
            _keep_functions(part, twin, changed)


def _outputs(model: keras.Model, x: Any) -> list[Any]:
    """Return a model's outputs; the states of stateful layers stay as they are."""
    states = [(v, keras.ops.copy(v)) for layer in sublayers(model) for v in _states(layer)]
    values = keras.tree.flatten(model(x, training=False))
    for variable, state in states:
        variable.assign(state)
    return values


def _agree(expected: Sequence[Any], values: Sequence[Any]) -> bool:
    pairs = zip(expected, values, strict=True)
    return all(difference(one, other, tolerance=1e-5) <= 1 for one, other in pairs)


def _first_difference(
    model: keras.Model, copy: keras.Model, x: Any
) -> tuple[str, keras.layers.Layer]:
    """Return the path of the first layer whose output differs, and the layer."""
    same = {layer.name: layer for layer in copy.layers}
    for layer in model.layers if functional.has_graph(model) else ():
        if layer.name not in same or isinstance(layer, keras.layers.InputLayer):
            continue
        try:
            pair = [
                keras.Model(functional.structure_of(one, "input"), part.output)
                for one, part in ((model, layer), (copy, same[layer.name]))
            ]
        except (AttributeError, ValueError):  # it is called more than once
            continue
        if not _agree(*(_outputs(one, x) for one in pair)):
            return layer.name, layer
    last = model.layers[-1]
    return last.name, last
