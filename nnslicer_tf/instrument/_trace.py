"""Tracing of a Keras model: the calls of its layers, in topological order.

Only Keras's public functions are used: `keras.models.clone_model` with a `call_function` visits
every call of a functional model. It does not descend into nested models, so each of these is
visited in turn, and the symbolic tensors inside are mapped to those outside. The visited
layers are never called, so the user's model gains no nodes.

Masks attached to tensors are propagated layer by layer, as in Keras; where a layer makes a new
mask, a call that computes it is added. Each tensor has two masks: one that says which of its
positions are padding, and one that a layer receives with it when the model runs. They differ where
Keras drops a mask: `MultiHeadAttention` removes the masks of its inputs (Keras 3.15).
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import keras
import numpy as np

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
        input_dtypes: Their dtypes in the model; the graph computes in float32.
        constants: Positional arguments that are not tensors, by position.
        outputs: Ids of the output tensors.
        output_shapes: Their shapes, without the batch axis.
        arguments: All arguments by name, except propagated masks; each tensor is replaced by
            its place among the inputs, a `TensorAt`.
        masks: Id of the mask that the layer receives with each input, None if there is none.
        paddings: Id of each input's padding mask, None if no position is padding.
        mask: Id of the (first) output's padding mask, None if no position is padding.
        mask_function: For a call that makes a mask: the function from the inputs to the mask.
    """

    layer: keras.Operation
    path: str
    reuse: int
    inputs: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    constants: dict[int, Any]
    outputs: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    masks: tuple[int | None, ...] = ()
    paddings: tuple[int | None, ...] = ()
    mask: int | None = None
    mask_function: Callable[..., Any] | None = None


@dataclass(frozen=True)
class TensorAt:
    """The place of a tensor among the inputs of a call."""

    place: int


Shape = tuple[int, ...]
Shapes = Shape | Sequence[Shape] | Mapping[str, Shape]
"""The shape of one sample; for a model with several inputs, a list or dict of their shapes."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The calls of a model; `inputs` and `outputs` are tensor ids."""

    inputs: tuple[int, ...]
    input_names: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    calls: tuple[Call, ...]
    outputs: tuple[int, ...]


def as_functional(model: keras.Model, input_shape: Shapes | None) -> keras.Model:
    """Return a functional or sequential model with the same layers.

    A subclassed model is traced by running its `call` on symbolic inputs.

    Raises:
        InputShapeError: if the shape of a subclassed model's input is not known.
    """
    functional = functional_class()
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
    try:
        outputs = model.call(inputs, **_inference_arguments(model))
        return keras.Model(inputs, outputs, name=model.name)
    except UnsupportedLayerError:
        raise
    except Exception as error:  # whatever a user's `call` raises
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise UnsupportedLayerError(
            f"The call of model '{model.name}' ({type(model).__name__}) cannot be traced on "
            f"symbolic inputs: {reason} Use layers and keras.ops instead of functions of "
            "TensorFlow, no Python condition or loop on values of tensors, and a different name "
            "for each layer; or put such steps into a layer and register its operations with "
            "nnslicer_tf.register_layer."
        ) from error


def trace(model: keras.Model, input_shape: Shapes | None = None) -> Trace:
    """Return the calls of `model` in topological order.

    Args:
        model: A functional or sequential model (see `as_functional`).
        input_shape: Replaces the model's own input shape (without batch axis), for
            models whose spatial size is not fixed.

    Raises:
        InputShapeError: if the model has axes of unknown size.
        UnsupportedLayerError: if a layer has an argument that cannot be traced.
    """
    for tensor in model.inputs:
        _check_input(model, tensor)
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
        input_names=tuple(map(input_name, model.inputs)),
        input_shapes=shapes,
        calls=_needed(visitor.calls, visitor.ids(outputs)),
        outputs=tuple(visitor.ids(outputs)),
    )


def _check_input(model: keras.Model, tensor: keras.KerasTensor) -> None:
    """Check that an input takes dense numbers."""
    if tensor.dtype == "string":
        what = "text. Make a model of the layers after the one that turns it into numbers"
    elif getattr(tensor, "sparse", False):
        what = "sparse tensors. Build it with keras.Input(…, sparse=False), and pass x.toarray()"
    elif getattr(tensor, "ragged", False):
        what = "ragged tensors. Build it for one length, and pad: x.to_tensor()"
    else:
        return
    raise UnsupportedLayerError(
        f"Input '{input_name(tensor)}' of model '{model.name}' takes {what}."
    )


def functional_class() -> type[keras.Model]:
    """Return the class of functional models, which Keras does not export."""
    return type(keras.Model(*_identity_graph()))


def input_name(tensor: keras.KerasTensor) -> str:
    """Return the name of an input's layer; the tensor's own name is not saved in files."""
    return tensor._keras_history.operation.name


def _needed(calls: Iterable[Call], outputs: Iterable[int]) -> tuple[Call, ...]:
    """Drop calls that no output depends on, such as masks that Keras computes itself."""
    reached = set(outputs)
    needed = []
    for call in reversed(list(calls)):  # the call that makes the mask of an output precedes it
        if not reached.isdisjoint(call.outputs):
            reached.update(call.inputs)
            masks = (*call.masks, *call.paddings, call.mask)
            reached.update(mask for mask in masks if mask is not None)
            needed.append(call)
    return tuple(reversed(needed))


class _Visitor:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._paddings: dict[int, Any] = {}
        self._found: dict[int, Any] = {}
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
        _check_inference(layer, path, kwargs or {})
        named, explicit = _bound(layer, args, kwargs or {})
        tensors = _tensors(tuple(named.values()))
        paddings = _masks_of(named, explicit, lambda x: self._paddings.get(self._resolve(id(x))))
        masks = _masks_of(named, explicit, lambda x: self._found.get(self._resolve(id(x))))
        masks = self._handed_over(named, explicit, masks, paddings)
        specs = layer.compute_output_spec(*args, **(kwargs or {}))
        outputs = _Placeholder(specs)(*tensors)
        flat = _tensors((outputs,))
        self._alive.append(outputs)
        if isinstance(layer, keras.Model):
            shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), args[0])
            inner = self.run(as_functional(layer, shapes), tensors, f"{path}/")
            for outside, inside in zip(flat, inner, strict=True):
                self._same_as[id(outside)] = id(inside)
            return outputs
        # A shared layer keeps the path of its first call.
        path = self._path.setdefault(id(layer), path)
        self._paddings[id(flat[0])] = self._mask_after(layer, path, named, paddings)
        self._found[id(flat[0])] = self._paddings[id(flat[0])]
        if list(map(id, masks)) != list(map(id, paddings)):
            self._found[id(flat[0])] = self._mask_after(layer, path, named, masks)
        self._record(layer, path, args, named, masks, paddings, flat)
        if isinstance(layer, keras.layers.MultiHeadAttention) and _attention_takes_masks():
            self._found.update({self._resolve(id(tensor)): None for tensor in tensors})
        return outputs

    def ids(self, tensors: Iterable[Any]) -> list[int]:
        """Return the ids under which `tensors` were traced."""
        return [self._resolve(id(tensor)) for tensor in tensors]

    def _record(
        self,
        layer: keras.Operation,
        path: str,
        args: tuple,
        named: Mapping[str, Any],
        masks: list[Any],
        paddings: list[Any],
        outputs: list[Any],
    ) -> None:
        tensors = _tensors(tuple(named.values()))
        places = {id(tensor): TensorAt(place) for place, tensor in enumerate(tensors)}
        call = Call(
            layer=layer,
            path=path,
            reuse=self._reuse[id(layer)],
            inputs=tuple(self._resolve(id(tensor)) for tensor in tensors),
            input_shapes=tuple(tuple(tensor.shape[1:]) for tensor in tensors),
            input_dtypes=tuple(tensor.dtype for tensor in tensors),
            constants={p: value for p, value in enumerate(args) if not _tensors((value,))},
            outputs=tuple(map(id, outputs)),
            output_shapes=tuple(tuple(output.shape[1:]) for output in outputs),
            arguments=keras.tree.map_structure(lambda x: places.get(id(x), x), dict(named)),
            masks=tuple(self._id(mask) for mask in masks),
            paddings=tuple(self._id(mask) for mask in paddings),
            mask=self._id(self._paddings[id(outputs[0])]),
        )
        self._reuse[id(layer)] += 1
        self.calls.append(call)

    def _id(self, mask: Any) -> int | None:
        return None if mask is None else self._resolve(id(mask))

    def _handed_over(
        self,
        named: Mapping[str, Any],
        explicit: Mapping[str, Any],
        masks: list[Any],
        paddings: list[Any],
    ) -> list[Any]:
        """Return the masks that a layer receives, including those that were passed as "mask".

        Keras passed these when the model was built, so they are not lost when it runs.
        """
        given = keras.tree.flatten(explicit.get("mask"))
        count = len(_tensors(next(iter(named.values()), None)))
        handed = [isinstance(mask, keras.KerasTensor) for mask in given][:count]
        handed += [False] * (len(masks) - len(handed))
        return [p if h else m for p, m, h in zip(paddings, masks, handed, strict=True)]

    def _mask_after(
        self, layer: keras.Operation, path: str, named: Mapping[str, Any], masks: list[Any]
    ) -> Any:
        """Return the mask tensor of a layer's output, None if it has no mask.

        Args:
            layer: The layer.
            path: The layer's name.
            named: The layer's arguments, by name.
            masks: The mask tensors of its inputs, None for those without one.
        """
        compute = _mask_rule(layer)
        if compute is None or named.get("reverse"):  # a ReversibleEmbedding's second use
            return None
        first = next(iter(named.values()))
        tensors = _tensors((first,))
        own = masks[: len(tensors)]
        result = compute(first, _replaced(first, own))
        found = next(iter(_tensors((result,))), None)
        if found is None or any(found is mask for mask in own):
            return found
        same = own[0] is not None and all(mask is own[0] for mask in own)
        if same and isinstance(layer, _MERGES) and own[0].shape == found.shape:
            return own[0]
        known = [mask for mask in own if mask is not None]

        def make(*values: Any) -> Any:
            given = iter(values[len(tensors) :])
            present = [None if mask is None else next(given) for mask in own]
            result = compute(_replaced(first, values), _replaced(first, present))
            return next(v for v in keras.tree.flatten(result) if v is not None)

        inputs = [*tensors, *known]
        mask = keras.KerasTensor(found.shape, dtype="bool")
        self._alive.extend((mask, result))
        self.calls.append(
            Call(
                layer=layer,
                path=path,
                reuse=self._reuse[id(layer)],
                inputs=tuple(self._resolve(id(tensor)) for tensor in inputs),
                input_shapes=tuple(tuple(tensor.shape[1:]) for tensor in inputs),
                constants={},
                outputs=(id(mask),),
                output_shapes=(tuple(found.shape[1:]),),
                mask_function=make,
            )
        )
        return mask

    def _resolve(self, tensor_id: int) -> int:
        while tensor_id in self._same_as:
            tensor_id = self._same_as[tensor_id]
        return tensor_id


_MERGES = (
    *(keras.layers.Add, keras.layers.Subtract, keras.layers.Multiply, keras.layers.Average),
    *(keras.layers.Maximum, keras.layers.Minimum, keras.layers.Concatenate),
)


def _masks_of(
    named: Mapping[str, Any], explicit: Mapping[str, Any], known: Callable[[Any], Any]
) -> list[Any]:
    """Return the mask tensor of each input, None for inputs without one.

    Args:
        named: The arguments of a layer, by name.
        explicit: Masks that were passed as arguments: "mask" for the first argument, or
            "key_mask" for the argument "key". Keras passes propagated masks in this way too.
        known: Maps a tensor to its mask, or to None; an explicit mask is then used instead.
    """
    masks = []
    for position, (name, value) in enumerate(named.items()):
        found = [known(tensor) for tensor in _tensors((value,))]
        given = explicit.get(f"{name}_mask", explicit.get("mask") if position == 0 else None)
        for i, mask in enumerate(keras.tree.flatten(given)[: len(found)]):
            if found[i] is None and isinstance(mask, keras.KerasTensor):
                found[i] = mask
        masks.extend(found)
    return masks


@cache
def _attention_takes_masks() -> bool:
    """Whether this version of Keras removes the masks of `MultiHeadAttention`'s inputs."""
    embedded = keras.layers.Embedding(2, 1, mask_zero=True)(np.ones((1, 2), np.int32))
    keras.layers.MultiHeadAttention(1, 1)(embedded, embedded)
    return getattr(embedded, "_keras_mask", None) is None


def _mask_rule(layer: keras.Operation) -> Callable[[Any, Any], Any] | None:
    """Return the function that maps a layer's inputs and their masks to its output's mask.

    None if the layer's output has no mask.
    """
    if not isinstance(layer, keras.layers.Layer) or not layer.supports_masking:
        return None
    if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.Attention)):
        return lambda inputs, masks: next(iter(keras.tree.flatten(masks)))  # the queries'
    if isinstance(layer, keras.layers.Embedding):
        # Not a subclass's method: ReversibleEmbedding computes its mask in `call`.
        return lambda inputs, masks: keras.layers.Embedding.compute_mask(layer, inputs, masks)
    return layer.compute_mask


def _replaced(structure: Any, values: Iterable[Any]) -> Any:
    """Return `structure` with its tensors replaced by `values`."""
    values = iter(values)
    return keras.tree.map_structure(
        lambda x: next(values) if isinstance(x, keras.KerasTensor) else x, structure
    )


def _bound(
    layer: keras.Operation, args: tuple, kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a call's arguments by name: those other than propagated masks, and the masks."""
    signature = inspect.signature(layer.call)
    bound = signature.bind_partial(*args, **kwargs).arguments
    named: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    for name, value in bound.items():
        of = name.removesuffix("_mask")
        travels = name == "mask" or (of != name and of in signature.parameters)
        is_mask = travels and isinstance(layer, keras.layers.Layer)
        (masks if is_mask else named)[name] = value
    return named, masks


def _check_inference(layer: keras.Operation, path: str, kwargs: Mapping[str, Any]) -> None:
    """Check that a call is not always in training mode, such as `dropout(x, training=True)`.

    Raises:
        UnsupportedLayerError: if it is, and that makes a difference.
    """
    if not kwargs.get("training") or not isinstance(layer, keras.layers.Layer):
        return
    for part in layer._flatten_layers():
        batch = isinstance(part, keras.layers.BatchNormalization) and part.trainable
        if batch or getattr(part, "seed_generator", None) is not None:
            why = "uses the statistics of the batch" if batch else "draws random numbers"
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(part).__name__}) is called with training=True, so that it "
                f"{why} at inference, too. Analyses need a model that treats each sample alike: "
                "build it without that argument, and set_weights of this model."
            )


class _Placeholder(keras.Operation):
    """A stand-in for a visited call in the clone's graph: same shapes, no computation."""

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
    """Return symbolic inputs in the structure of their shapes; their names are always the same."""
    if isinstance(shape, Mapping):
        return {name: keras.Input(one, name=name) for name, one in shape.items()}
    if _is_shape(shape):
        return keras.Input(shape, name="input_layer")
    return [keras.Input(one, name=f"input_layer_{i}") for i, one in enumerate(shape)]


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
