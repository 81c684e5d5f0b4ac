"""Tracing of a Keras model: the calls of its layers, in topological order.

`keras.models.clone_model` with a `call_function` visits every call of a functional model. It does
not enter nested models, so each is visited in turn, and tensors inside are mapped to those outside.
Layers are never called, so the user's model gains no nodes.

Masks are propagated as in Keras; a layer that makes a new mask gets a call that computes it. Each
tensor has a padding mask, and a mask that a layer receives with it. They differ where Keras drops
a mask: `MultiHeadAttention` removes the masks of its inputs (Keras 3.15).
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import shape_fits
from nnslicer_tf.errors import InputShapeError, UnsupportedLayerError


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or `keras.ops` operation; tensors by id, shapes without batch axis."""

    layer: keras.Operation
    path: str  # its name, prefixed with the names of the nested models that contain it
    reuse: int  # number of earlier calls of the layer
    inputs: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    constants: dict[int, Any] = field(default_factory=dict)  # positional ones that are no tensors
    input_dtypes: tuple[str, ...] = ()  # in the model; the graph computes in float32
    # By name, except propagated masks; tensors are replaced by `TensorAt`.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    masks: tuple[int | None, ...] = ()  # those that the layer receives with each input
    paddings: tuple[int | None, ...] = ()  # each input's padding mask
    mask: int | None = None  # the (first) output's padding mask
    mask_function: Callable[..., Any] | None = None  # from inputs to the mask that the call makes


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
    """Return a functional or sequential model with the same layers, run on symbolic inputs.

    Raises InputShapeError if the shape of a subclassed model's input is not known,
    UnsupportedLayerError if its `call` fails.
    """
    if isinstance(model, functional_class()) or (
        isinstance(model, keras.Sequential) and model.built
    ):
        return model
    shape: Any = input_shape
    if shape is None and not isinstance(model, keras.Sequential):
        shape = (model.get_build_config() or {}).get("input_shape")
        if isinstance(shape, Mapping):
            shape = {name: tuple(one[1:]) for name, one in shape.items()}
        elif isinstance(shape, (list, tuple)):
            shape = tuple(shape[1:]) if _is_shape(shape) else [tuple(one[1:]) for one in shape]
    if not shape and shape != ():
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
    try:
        outputs = model.call(inputs, **({"training": False} if takes_training else {}))
        return keras.Model(inputs, outputs, name=model.name)
    except UnsupportedLayerError:
        raise
    except Exception as error:  # whatever a user's `call` raises
        reason = next(filter(str.strip, str(error).splitlines()), type(error).__name__)
        raise UnsupportedLayerError(
            f"The call of model '{model.name}' ({type(model).__name__}) cannot be traced on "
            f"symbolic inputs: {reason} Use layers and keras.ops instead of functions of "
            "TensorFlow, no Python condition or loop on values of tensors, and a different name "
            "for each layer; or put such steps into a layer and register its operations with "
            "nnslicer_tf.register_layer."
        ) from error


def trace(model: keras.Model, input_shape: Shapes | None = None) -> Trace:
    """Return the calls of a functional or sequential model, in topological order.

    `input_shape`, without batch axis, replaces the model's own if that is not fixed. Raises
    InputShapeError for axes of unknown size and shapes that do not fit, UnsupportedLayerError for
    inputs that are not dense numbers and for arguments that cannot be traced.
    """
    for tensor in model.inputs:
        what = ""
        if tensor.dtype == "string":
            what = "text. Make a model of the layers after the one that turns it into numbers"
        elif getattr(tensor, "sparse", False):
            what = "sparse tensors. Build it with sparse=False, and pass x.toarray()"
        elif getattr(tensor, "ragged", False):
            what = "ragged tensors. Build it for one length, and pad: x.to_tensor()"
        if what:
            raise UnsupportedLayerError(
                f"Input '{input_name(tensor)}' of model '{model.name}' takes {what}."
            )
    own = tuple(tuple(tensor.shape[1:]) for tensor in model.inputs)
    shapes = tuple(map(tuple, flat_shapes(input_shape))) if input_shape else own
    fits = len(shapes) == len(own) and all(map(shape_fits, shapes, own))
    if not fits or any(None in shape for shape in shapes):
        problem = "whose size is not fixed" if fits else f"not {shapes}"
        raise InputShapeError(
            f"Model '{model.name}' has inputs of shape {str(own)[1:-1].rstrip(',')}, {problem}. "
            "Specify it: InstrumentedModel(model, input_shape=(height, width, channels))."
        )
    visitor = _Visitor()
    sources = [
        keras.Input(shape, dtype=tensor.dtype)
        for shape, tensor in zip(shapes, model.inputs, strict=True)
    ]
    try:
        outputs = visitor.ids(visitor.run(model, sources, prefix=""))
    except ValueError as error:  # Keras's, such as of images that are too small
        raise InputShapeError(
            f"'{model.name}' takes no inputs of shape {shapes}: {error}"
        ) from error

    # Calls that no output depends on are dropped, such as masks that Keras computes itself.
    reached = set(outputs)
    calls = []
    for call in reversed(visitor.calls):  # the call that makes the mask of an output precedes it
        if not reached.isdisjoint(call.outputs):
            masks = (*call.masks, *call.paddings, call.mask)
            reached.update(call.inputs, (mask for mask in masks if mask is not None))
            calls.append(call)
    return Trace(
        inputs=tuple(map(id, sources)),
        input_names=tuple(map(input_name, model.inputs)),
        input_shapes=shapes,
        calls=tuple(reversed(calls)),
        outputs=outputs,
    )


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


def flat_shapes(shape: Any) -> list[Shape]:
    """Return the shapes of all inputs as a list."""
    if isinstance(shape, Mapping):
        return [tuple(one) for one in shape.values()]
    return [tuple(shape)] if _is_shape(shape) else [tuple(one) for one in shape]


def _is_shape(shape: Any) -> bool:
    return all(extent is None or isinstance(extent, int) for extent in shape)


class _Visitor:
    """Records the calls of a model in `calls`, in topological order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        # Id of a tensor → its padding mask, and the mask with which a layer receives it.
        self._paddings: dict[int, Any] = {}
        self._received: dict[int, Any] = {}
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
        self._same_as |= {
            id(entry): self.ids([source])[0] for entry, source in zip(entries, sources, strict=True)
        }
        clone = keras.models.clone_model(
            plain,
            input_tensors=entries,
            clone_function=lambda layer: layer,
            call_function=lambda layer, *args, **kwargs: self.visit(layer, prefix, args, kwargs),
        )
        self._alive.append(clone)
        return clone.outputs

    def ids(self, tensors: Iterable[Any]) -> tuple[Any, ...]:
        """Return the ids under which tensors were traced; None for None."""
        ids = []
        for tensor in tensors:
            tensor_id = None if tensor is None else id(tensor)
            while tensor_id in self._same_as:
                tensor_id = self._same_as[tensor_id]
            ids.append(tensor_id)
        return tuple(ids)

    def visit(
        self, layer: keras.Operation, prefix: str, args: tuple, kwargs: Mapping | None = None
    ) -> Any:
        """Record one call and return its symbolic outputs; refuse calls with training=True."""
        if isinstance(layer, keras.layers.InputLayer):
            return args[0]
        path = prefix + layer.name
        kwargs = kwargs or {}
        is_layer = isinstance(layer, keras.layers.Layer)
        for part in layer._flatten_layers() if is_layer and kwargs.get("training") else ():
            batch = isinstance(part, keras.layers.BatchNormalization) and part.trainable
            if batch or getattr(part, "seed_generator", None) is not None:
                why = "uses the statistics of the batch" if batch else "draws random numbers"
                name = path if part is layer else f"{path}/{part.name}"
                raise UnsupportedLayerError(
                    f"Layer '{name}' ({type(part).__name__}) is called with training=True, so that "
                    f"it {why} at inference, too. Analyses need a model that treats each sample "
                    "alike: build it without that argument, and set_weights of this model."
                )
        # Arguments by name: those other than propagated masks, and the masks
        parameters = inspect.signature(layer.call)
        named: dict[str, Any] = {}
        explicit: dict[str, Any] = {}
        for name, value in parameters.bind_partial(*args, **kwargs).arguments.items():
            of = name.removesuffix("_mask")
            travels = name == "mask" or (of != name and of in parameters.parameters)
            (explicit if travels and is_layer else named)[name] = value
        tensors = _tensors(tuple(named.values()))
        # Symbolic outputs that stand for the call's
        specs = layer.compute_output_spec(*args, **kwargs)
        outputs = _Placeholder(specs)(*tensors)
        flat = _tensors((outputs,))
        self._alive.append(outputs)
        if isinstance(layer, keras.Model):
            shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), args[0])
            inner = self.run(as_functional(layer, shapes), tensors, f"{path}/")
            self._same_as |= {
                id(outside): id(inside) for outside, inside in zip(flat, inner, strict=True)
            }
            return outputs
        # A shared layer keeps the path of its first call.
        path = self._path.setdefault(id(layer), path)
        paddings, masks = self._masks_of(named, explicit)
        mask = self._mask_after(layer, path, named, paddings)
        self._paddings[id(flat[0])] = self._received[id(flat[0])] = mask
        if list(map(id, masks)) != list(map(id, paddings)):
            self._received[id(flat[0])] = self._mask_after(layer, path, named, masks)
        places = {id(tensor): TensorAt(place) for place, tensor in enumerate(tensors)}
        call = Call(
            layer=layer,
            path=path,
            reuse=self._reuse[id(layer)],
            inputs=self.ids(tensors),
            input_shapes=tuple(tuple(tensor.shape[1:]) for tensor in tensors),
            input_dtypes=tuple(tensor.dtype for tensor in tensors),
            constants={p: value for p, value in enumerate(args) if not _tensors((value,))},
            outputs=tuple(map(id, flat)),
            output_shapes=tuple(tuple(output.shape[1:]) for output in flat),
            arguments=keras.tree.map_structure(lambda x: places.get(id(x), x), named),
            masks=self.ids(masks),
            paddings=self.ids(paddings),
            mask=self.ids([mask])[0],
        )
        self._reuse[id(layer)] += 1
        self.calls.append(call)
        if isinstance(layer, keras.layers.MultiHeadAttention) and attention_takes_masks():
            self._received.update(dict.fromkeys(self.ids(tensors)))
        return outputs

    def _masks_of(
        self, named: Mapping[str, Any], explicit: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return the padding mask of each input, and the mask that the layer receives with it.

        `explicit` are masks passed as arguments: "mask" for the first one, "key_mask" for "key".
        Keras passes propagated masks in this way too, so "mask" is not lost when the model runs.
        """
        paddings: list[Any] = []
        received: list[Any] = []
        for position, (name, value) in enumerate(named.items()):
            by_default = explicit.get("mask") if position == 0 else None
            passed = keras.tree.flatten(explicit.get(f"{name}_mask", by_default))
            of_mask = keras.tree.flatten(by_default)
            for i, tensor_id in enumerate(self.ids(_tensors((value,)))):
                given = passed[i] if i < len(passed) else None
                given = given if isinstance(given, keras.KerasTensor) else None
                padding, mask = self._paddings.get(tensor_id), self._received.get(tensor_id)
                paddings.append(given if padding is None else padding)
                received.append(given if mask is None else mask)
                if i < len(of_mask) and isinstance(of_mask[i], keras.KerasTensor):
                    received[-1] = paddings[-1]
        return paddings, received

    def _mask_after(
        self, layer: keras.Operation, path: str, named: Mapping[str, Any], masks: list[Any]
    ) -> Any:
        """Return the mask of a layer's output, or None; `masks` are those of its inputs."""
        if not isinstance(layer, keras.layers.Layer) or not layer.supports_masking:
            return None
        if named.get("reverse"):  # a ReversibleEmbedding's second use
            return None
        compute: Callable[[Any, Any], Any] = layer.compute_mask
        if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.Attention)):
            compute = lambda inputs, masks: next(iter(keras.tree.flatten(masks)))  # noqa: E731
        elif isinstance(layer, keras.layers.Embedding):
            # Not a subclass's method: ReversibleEmbedding computes its mask in `call`.
            compute = lambda x, masks: keras.layers.Embedding.compute_mask(layer, x, masks)  # noqa: E731
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
            stream = iter(values[len(tensors) :])
            present = [None if mask is None else next(stream) for mask in own]
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
                inputs=self.ids(inputs),
                input_shapes=tuple(tuple(tensor.shape[1:]) for tensor in inputs),
                outputs=(id(mask),),
                output_shapes=(tuple(found.shape[1:]),),
                mask_function=make,
            )
        )
        return mask


_MERGES = (
    *(keras.layers.Add, keras.layers.Subtract, keras.layers.Multiply, keras.layers.Average),
    *(keras.layers.Maximum, keras.layers.Minimum, keras.layers.Concatenate),
)


@cache
def attention_takes_masks() -> bool:
    """Whether this version of Keras removes the masks of `MultiHeadAttention`'s inputs."""
    embedded = keras.layers.Embedding(2, 1, mask_zero=True)(np.ones((1, 2), np.int32))
    keras.layers.MultiHeadAttention(1, 1)(embedded, embedded)
    return getattr(embedded, "_keras_mask", None) is None


def _replaced(structure: Any, values: Iterable[Any]) -> Any:
    """Return `structure` with its tensors replaced by `values`."""
    stream = iter(values)
    return keras.tree.map_structure(
        lambda x: next(stream) if isinstance(x, keras.KerasTensor) else x, structure
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
