"""Tracing of a Keras model: the calls of its layers, in topological order.

It uses Keras's public functions only: `keras.models.clone_model` with a `call_function` visits
every call of a functional model. It does not descend into nested models, so each of these is
visited in turn, and the symbolic tensors inside are mapped to those outside. The visited
layers are never called, so the user's model gains no nodes.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import keras

from nnslicer_tf.errors import InputShapeError, UnsupportedLayerError


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or `keras.ops` operation.

    Attributes:
        layer: The layer or operation.
        path: Its name, prefixed with the names of the nested models that contain it.
        reuse: Number of earlier calls of the layer.
        inputs: Ids of the input tensors.
        input_shapes: Their shapes, without the batch axis.
        constants: Positional arguments that are not tensors, by position.
        outputs: Ids of the output tensors.
        output_shapes: Their shapes, without the batch axis.
    """

    layer: keras.Operation
    path: str
    reuse: int
    inputs: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    constants: dict[int, Any]
    outputs: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]


Shape = tuple[int, ...]
Shapes = Shape | Sequence[Shape] | Mapping[str, Shape]
"""The shape of one sample; of a model with several inputs a list or dict of the inputs' shapes."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The calls of a model; `inputs` and `outputs` are tensor ids."""

    inputs: tuple[int, ...]
    input_names: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    calls: tuple[Call, ...]
    outputs: tuple[int, ...]


def as_functional(model: keras.Model, input_shape: Shapes | None) -> keras.Model:
    """Return a functional or sequential model of the same layers.

    A subclassed model is traced by running its `call` on symbolic inputs.

    Raises:
        InputShapeError: if the shape of a subclassed model's input is not known.
    """
    functional = type(keras.Model(*_identity_graph()))
    if isinstance(model, keras.Sequential):
        if not model.built:
            if input_shape is None:
                raise _unknown_shape(model)
            model.build((None, *input_shape))
        return model
    if isinstance(model, functional):
        return model
    shape = input_shape or _built_shape(model)
    if shape is None:
        raise _unknown_shape(model)
    inputs = _symbolic(shape)
    outputs = model.call(inputs, **_inference_arguments(model))
    return keras.Model(inputs, outputs, name=model.name)


def trace(model: keras.Model, input_shape: Shapes | None = None) -> Trace:
    """Return the calls of `model` in topological order.

    Args:
        model: A functional or sequential model (see `as_functional`).
        input_shape: Replaces the model's own input shape (without batch axis), for
            models whose spatial size is not fixed.

    Raises:
        InputShapeError: if the model has axes of unknown size.
        UnsupportedLayerError: if a layer takes something that cannot be traced.
    """
    shapes = tuple(tuple(tensor.shape[1:]) for tensor in model.inputs)
    if input_shape:
        shapes = tuple(_flat_shapes(input_shape))
    for shape in shapes:
        if any(extent is None for extent in shape):
            raise InputShapeError(
                f"Model '{model.name}' has an input of shape {shape}, whose size is not fixed. "
                "Specify it: InstrumentedModel(model, input_shape=(height, width, channels))."
            )
    visitor = _Visitor()
    sources = [
        keras.Input(shape, dtype=tensor.dtype)
        for shape, tensor in zip(shapes, model.inputs, strict=True)
    ]
    outputs = visitor.run(model, sources, prefix="")
    return Trace(
        inputs=tuple(map(id, sources)),
        input_names=tuple(tensor.name for tensor in model.inputs),
        input_shapes=shapes,
        calls=tuple(visitor.calls),
        outputs=tuple(visitor.ids(outputs)),
    )


class _Visitor:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._reuse: Counter[int] = Counter()
        self._path: dict[int, str] = {}
        self._same_as: dict[int, int] = {}
        # Ids are unique only while the tensors are alive.
        self._alive: list[Any] = []

    def run(self, model: keras.Model, sources: Sequence[Any], prefix: str) -> list[Any]:
        """Visit every call of `model` applied to symbolic tensors."""
        self._alive.extend(sources)
        if isinstance(model, keras.Sequential):
            (source,) = sources
            for layer in model.layers:
                source = self.visit(layer, prefix, (source,))
            return keras.tree.flatten(source)
        # A plain Model of the same graph, without the user's class and compile().
        plain = keras.Model(model.inputs, model.outputs)
        entries = [keras.Input(source.shape[1:], dtype=source.dtype) for source in sources]
        for entry, source in zip(entries, sources, strict=True):
            self._same_as[id(entry)] = self._resolve(id(source))
        clone = keras.models.clone_model(
            plain,
            input_tensors=entries,
            clone_function=lambda layer: layer,
            call_function=lambda layer, *args, **kwargs: self.visit(layer, prefix, args, kwargs),
        )
        self._alive.append(clone)
        return clone.outputs

    def visit(
        self, layer: keras.Operation, prefix: str, args: tuple, kwargs: dict | None = None
    ) -> Any:
        """Record one call and return its symbolic outputs."""
        if isinstance(layer, keras.layers.InputLayer):
            return args[0]
        path = prefix + layer.name
        kwargs = dict(kwargs or {})
        if kwargs.get("initial_state") is not None:  # of a recurrent layer, after the sequence
            args = (*args, kwargs.pop("initial_state"))
        tensors = _tensors(args)
        if len(tensors) < len(_tensors((*args, *kwargs.values()))):
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(layer).__name__}) takes a tensor as keyword argument; "
                "pass it by position."
            )
        specs = layer.compute_output_spec(*args, **kwargs)
        outputs = _Placeholder(specs)(*tensors)
        flat = _tensors((outputs,))
        self._alive.append(outputs)
        if isinstance(layer, keras.Model):
            shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), args[0])
            inner = self.run(as_functional(layer, shapes), tensors, f"{path}/")
            for outside, inside in zip(flat, inner, strict=True):
                self._same_as[id(outside)] = id(inside)
            return outputs
        self._record(layer, path, args, tensors, flat)
        return outputs

    def ids(self, tensors: Iterable[Any]) -> list[int]:
        """Return the ids of the traced tensors that `tensors` are equal to."""
        return [self._resolve(id(tensor)) for tensor in tensors]

    def _record(
        self, layer: keras.Operation, path: str, args: tuple, tensors: list, outputs: list
    ) -> None:
        # A shared layer keeps the path of its first call.
        first_path = self._path.setdefault(id(layer), path)
        constants = {
            position: value for position, value in enumerate(args) if not _tensors((value,))
        }
        call = Call(
            layer=layer,
            path=first_path,
            reuse=self._reuse[id(layer)],
            inputs=tuple(self._resolve(id(tensor)) for tensor in tensors),
            input_shapes=tuple(tuple(tensor.shape[1:]) for tensor in tensors),
            constants=constants,
            outputs=tuple(map(id, outputs)),
            output_shapes=tuple(tuple(output.shape[1:]) for output in outputs),
        )
        self._reuse[id(layer)] += 1
        self.calls.append(call)

    def _resolve(self, tensor_id: int) -> int:
        while tensor_id in self._same_as:
            tensor_id = self._same_as[tensor_id]
        return tensor_id


class _Placeholder(keras.Operation):
    """A stand-in for a visited call in the clone's graph: the same shapes, no computation."""

    def __init__(self, specs: Any) -> None:
        super().__init__()
        self._specs = specs

    def compute_output_spec(self, *tensors: Any) -> Any:
        return keras.tree.map_structure(
            lambda spec: keras.KerasTensor(spec.shape, dtype=spec.dtype), self._specs
        )


def _tensors(structure: Any) -> list[Any]:
    return [x for x in keras.tree.flatten(structure) if isinstance(x, keras.KerasTensor)]


def _identity_graph() -> tuple[Any, Any]:
    tensor = keras.Input((1,))
    return tensor, tensor


def _symbolic(shape: Shapes) -> Any:
    """Return symbolic inputs, in the structure of their shapes."""
    if isinstance(shape, Mapping):
        return {name: keras.Input(one, name=name) for name, one in shape.items()}
    if _is_shape(shape):
        return keras.Input(shape)
    return [keras.Input(one) for one in shape]


def _flat_shapes(shape: Shapes) -> list[Shape]:
    if isinstance(shape, Mapping):
        return [tuple(one) for one in shape.values()]
    if _is_shape(shape):
        return [cast(Shape, tuple(shape))]
    return [tuple(one) for one in cast(Sequence[Shape], shape)]


def _is_shape(shape: Any) -> bool:
    return all(extent is None or isinstance(extent, int) for extent in shape)


def _built_shape(model: keras.Model) -> Shapes | None:
    """Return the input shapes that a subclassed model was built with, if it has them."""
    shape = (model.get_build_config() or {}).get("input_shape")
    if isinstance(shape, Mapping):
        return {name: tuple(one[1:]) for name, one in shape.items()}
    if not isinstance(shape, (list, tuple)):
        return None
    return tuple(shape[1:]) if _is_shape(shape) else [tuple(one[1:]) for one in shape]


def _inference_arguments(model: keras.Model) -> dict[str, Any]:
    takes_training = "training" in inspect.signature(model.call).parameters
    return {"training": False} if takes_training else {}


def _unknown_shape(model: keras.Model) -> InputShapeError:
    return InputShapeError(
        f"The input shape of model '{model.name}' ({type(model).__name__}) is not known. Call "
        "the model on data first, or specify it: InstrumentedModel(model, input_shape=(…))."
    )
