"""Models as functions of symbolic inputs: their form, inputs and shapes."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, count
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import InputShapeError, UnsupportedLayerError
from nnslicer_tf.instrument.expansion import is_value, moved, why_not
from nnslicer_tf.instrument.registry import Shape

Shapes = Shape | Sequence[Shape] | Mapping[str, Shape]
"""The shape of one sample; for a model with several inputs, a list or dict of their shapes."""


def as_functional(model: keras.Model, input_shape: Shapes | None) -> keras.Model:
    """Return a functional or sequential model with the same layers, run on symbolic inputs.

    Raises InputShapeError if the shape of a subclassed model's input is not known,
    UnsupportedLayerError if its `call` fails.
    """
    if has_graph(model) and (model.built or not isinstance(model, keras.Sequential)):
        return model
    shape: Any = input_shape
    if shape is None and not isinstance(model, keras.Sequential):
        shape = (model.get_build_config() or {}).get("input_shape")
        if isinstance(shape, Mapping):
            shape = {name: tuple(one[1:]) for name, one in shape.items()}
        elif isinstance(shape, (list, tuple)):
            shape = tuple(shape[1:]) if _is_shape(shape) else [tuple(one[1:]) for one in shape]
    if shape is None or not (isinstance(shape, tuple) or len(shape)):
        raise InputShapeError(
            f"The input shape of model '{model.name}' ({type(model).__name__}) is not known. Call "
            "the model on data first, or specify it: InstrumentedModel(model, input_shape=(…))."
        )
    if isinstance(model, keras.Sequential):
        model.build((None, *shape))
        return model
    inputs: Any
    if isinstance(shape, Mapping):
        inputs = {name: keras.Input(one, name=name) for name, one in shape.items()}
    elif _is_shape(shape):
        inputs = keras.Input(shape, name="input_layer")
    else:
        inputs = [keras.Input(one, name=f"input_layer_{i}") for i, one in enumerate(shape)]
    takes_training = "training" in inspect.signature(model.call).parameters

    def traced() -> keras.Model:
        outputs = model.call(inputs, **({"training": False} if takes_training else {}))
        return keras.Model(inputs, outputs, name=model.name)

    try:
        functional = traced()
        if constants := _constants(functional):
            with keras.StatelessScope(moved(model.variables)):
                others = _constants(traced())
            if not all(map(np.array_equal, constants, others)):
                # Computed from variables, they would not follow these: `call` is expanded.
                return keras.Model(inputs, model(inputs), name=model.name)
        _number_anew(functional)
        return functional
    except UnsupportedLayerError:
        raise
    except Exception as error:  # whatever a user's `call` raises
        raise UnsupportedLayerError(
            f"The call of model '{model.name}' ({type(model).__name__}) cannot be traced on "
            f"symbolic inputs: {why_not(error)} Use layers and keras.ops instead of functions of "
            "TensorFlow, no Python condition or loop on values of tensors, and a different name "
            "for each layer; or put such steps into a layer and register its operations with "
            "nnslicer_tf.register_layer."
        ) from error


def _number_anew(model: keras.Model) -> None:
    """Number functions such as `add` within the model; Keras numbers them within the process."""
    functions = [o for o in model.operations if not isinstance(o, keras.layers.Layer)]
    used = {layer.name for layer in model.layers}
    for operation in functions:
        plain = re.sub(r"_\d+$", "", operation.name)
        names = chain([plain], (f"{plain}_{k}" for k in count(1)))
        operation.name = next(name for name in names if name not in used)
        used.add(operation.name)


def _constants(model: keras.Model) -> list[np.ndarray]:
    """Return the tensors with values among the arguments of a functional model's operations."""
    given = [node.arguments for depth in model._nodes_by_depth.values() for node in depth]
    leaves = [leaf for one in given for leaf in keras.tree.flatten((one.args, one.kwargs))]
    return [keras.ops.convert_to_numpy(leaf) for leaf in leaves if is_value(leaf)]


@cache
def functional_class() -> type[keras.Model]:
    """Return the class of functional models, which Keras does not export."""
    tensor = keras.Input((1,))
    return type(keras.Model(tensor, tensor))


def input_name(tensor: keras.KerasTensor) -> str:
    """Return the name of an input's layer; the tensor's own name is not saved in files."""
    return tensor._keras_history.operation.name


def structure_of(model: keras.Model, which: str) -> Any:
    """Return the structure of a functional or sequential model's "input" or "output" tensors."""
    if isinstance(model, keras.Sequential):  # it may not have been called yet
        return getattr(model, f"{which}s")[0]
    return getattr(model, which)


def in_order(model: keras.Model, x: Any) -> list[Any]:
    """Return a functional model's argument as a list: a dict's by its keys or by name."""
    if not isinstance(x, Mapping):
        return keras.tree.flatten(x)
    structure = structure_of(model, "input")
    if isinstance(structure, Mapping):
        return keras.tree.flatten({key: x[key] for key in structure})
    return [x[input_name(tensor)] for tensor in model.inputs]


def flat_shapes(shape: Any) -> list[Shape]:
    """Return the shapes of all inputs as a list."""
    if isinstance(shape, Mapping):
        return [tuple(one) for one in shape.values()]
    return [tuple(shape)] if _is_shape(shape) else [tuple(one) for one in shape]


def _is_shape(shape: Any) -> bool:
    return all(extent is None or isinstance(extent, int) for extent in shape)


def inputs_like(model: keras.Model, shapes: Sequence[tuple[int | None, ...]] | None = None) -> Any:
    """Return inputs for a clone of a model; `shapes` are of one sample, by default the model's.

    They keep the inputs' names: `clone_model` would use those of the tensors, which Keras numbers.
    """
    shapes = shapes or [tensor.shape[1:] for tensor in model.inputs]
    entries = [
        keras.Input(shape, tensor.shape[0], tensor.dtype, name=input_name(tensor))
        for shape, tensor in zip(shapes, model.inputs, strict=True)
    ]
    return keras.tree.pack_sequence_as(structure_of(model, "input"), entries)


def sublayers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield a layer or model and all layers inside, in the order in which Keras keeps them."""
    yield from layer._flatten_layers(include_self=True, recursive=True)


def has_graph(model: keras.Model) -> bool:
    """Whether a model is functional or sequential."""
    return isinstance(model, (keras.Sequential, functional_class()))
