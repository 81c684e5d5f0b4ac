"""Tracing of a Keras model: the calls of its layers, in topological order.

`keras.models.clone_model` with a `call_function` visits every call of a functional model. It does
not enter nested models, so each is visited in turn, and tensors inside are mapped to those outside.
Layers are never called, so the user's model gains no nodes.

A layer without a rule is expanded into the calls of its `call` (see `expansion`).

Masks are propagated as in Keras; a layer that makes a new mask gets a call that computes it. Each
tensor has a padding mask, and a mask that a layer receives with it. They differ where Keras drops
a mask: `MultiHeadAttention` removes the masks of its inputs (Keras 3.15).
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import shape_fits
from nnslicer_tf.errors import InputShapeError, UnsupportedLayerError
from nnslicer_tf.instrument.expansion import (
    OF_KERAS,
    TENSORFLOW,
    Constant,
    expand,
    of_constants,
    received_dtype,
)
from nnslicer_tf.instrument.functional import (
    Shapes,
    as_functional,
    flat_shapes,
    in_order,
    input_name,
)
from nnslicer_tf.instrument.registry import REASONS, LayerCall, Shape, registered


@dataclass(eq=False, kw_only=True)
class Call(LayerCall):
    """One call of a layer or `keras.ops` operation; tensors and masks by id."""

    layer: keras.Operation
    reuse: int  # number of earlier calls of the layer
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    mask: int | None = None  # the (first) output's padding mask
    mask_function: Callable[..., Any] | None = None  # from inputs to the mask that the call makes


@dataclass(frozen=True)
class TensorAt:
    """The place of a tensor among the inputs of a call."""

    place: int


@dataclass(frozen=True, eq=False)
class Trace:
    """The calls of a model; `inputs` and `outputs` are tensor ids."""

    inputs: tuple[int, ...]
    input_names: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    calls: tuple[Call, ...]
    outputs: tuple[int, ...]


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
    names = [input_name(tensor) for tensor in model.inputs]
    if isinstance(input_shape, Mapping) and set(input_shape) == set(names):
        input_shape = [input_shape[name] for name in names]
    shapes = own if input_shape is None else tuple(flat_shapes(input_shape))
    fits = len(shapes) == len(own) and all(map(shape_fits, shapes, own))
    if not fits or any(None in shape for shape in shapes):
        problem = "whose size is not fixed" if fits else f"not {shapes}"
        raise InputShapeError(
            f"Model '{model.name}' has inputs of shape {str(own)[1:-1].rstrip(',')}, {problem}. "
            "Analyses that get data use its shape. Otherwise specify it: "
            f"InstrumentedModel(model, input_shape={_example(names, own)})."
        )
    sources = [keras.Input(s, dtype=t.dtype) for s, t in zip(shapes, model.inputs, strict=True)]
    pairs = zip(sources, model.inputs, strict=True)
    visitor = _Visitor({id(source) for source, tensor in pairs if _is_token(tensor)}, model.outputs)
    try:
        outputs = tuple(map(id, visitor.run(model, sources, prefix="")))
    except ValueError as error:  # Keras's, such as of images that are too small
        raise InputShapeError(
            f"'{model.name}' does not accept inputs of shape {shapes}: {error}"
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


def _example(names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]) -> str:
    def spelled(shape: tuple[int | None, ...]) -> str:
        words = iter(("height", "width", "depth") if shape.count(None) > 1 else ("length",))
        entries = [str(n) if n is not None else next(words, "size") for n in shape]
        return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"

    if len(names) == 1:
        return spelled(shapes[0])
    return "{" + ", ".join(f"'{n}': {spelled(s)}" for n, s in zip(names, shapes, strict=True)) + "}"


def _is_token(tensor: keras.KerasTensor) -> bool:
    """Whether an input of a model is of integers or bools, or read by an embedding."""
    if "float" not in tensor.dtype:
        return True
    readers = (node.operation for node in tensor._keras_history.operation._outbound_nodes)
    return any(isinstance(reader, keras.layers.Embedding) for reader in readers)


class _Visitor:
    """Records the calls of a model in `calls`, in topological order."""

    def __init__(self, tokens: set[int], outputs: Sequence[Any]) -> None:
        self.calls: list[Call] = []
        # Id of a tensor → its padding mask, and the mask with which a layer receives it.
        self._paddings: dict[int, Any] = {}
        self._received: dict[int, Any] = {}
        self._reuse: Counter[int] = Counter()
        self._names: Counter[str] = Counter()  # inside expanded layers
        self._expanded = 0  # number of layers around that are being expanded
        self._values: set[int] = set()  # boolean tensors that depend on numbers
        self._tokens = tokens  # tokens, and what depends on them alone
        self._final = {id(output._keras_history.operation) for output in outputs}
        self._path: dict[int, str] = {}
        # Ids are unique only while the tensors are alive.
        self._alive: list[Any] = []

    def run(self, model: keras.Model, sources: Sequence[Any], prefix: str) -> list[Any]:
        """Visit every call of `model` applied to symbolic tensors; return its outputs."""
        self._alive.extend(sources)
        if isinstance(model, keras.Sequential):
            (outputs,) = sources
            for layer in model.layers:
                outputs = self.visit(layer, prefix, (outputs,))
        else:
            outputs = model._run_through_graph(
                sources, call_fn=lambda layer, *args, **kw: self.visit(layer, prefix, args, kw)
            )
        return keras.tree.flatten(outputs)

    def visit(
        self,
        layer: keras.Operation,
        prefix: str,
        args: tuple,
        kwargs: Mapping | None = None,
        specs: Any = None,  # of the outputs, if they are known
        parent: keras.layers.Layer | None = None,  # the expanded layer that makes the call
    ) -> Any:
        """Record one call; return its outputs, symbolic tensors and constants."""
        # Imported here, because the families of layers use this module.
        from nnslicer_tf.instrument.layers.rewrites import REWRITES

        path = prefix + (self._name_in(prefix, layer, parent) if self._expanded else layer.name)
        kwargs = dict(kwargs or {})
        is_layer = isinstance(layer, keras.layers.Layer)
        if is_layer and kwargs.get("training"):
            _check_inference(layer, path)
        if specs is None or _is_open(specs):

            def cast(x: Any) -> Any:
                if isinstance(x, Constant):
                    return keras.KerasTensor(x.shape, dtype=x.dtype)
                if not isinstance(x, keras.KerasTensor) or received_dtype(layer, x) == x.dtype:
                    return x
                return keras.KerasTensor(x.shape, dtype=received_dtype(layer, x))

            of_call = keras.tree.map_structure(cast, (args, kwargs))
            specs = layer.compute_output_spec(*of_call[0], **of_call[1])
            if _is_open(specs):  # by EinsumDense(…, output_shape=(None, 8)); its `call` tells
                with suppress(Exception):  # that of `call`, which is then refused with its reason
                    specs = keras.Operation.compute_output_spec(layer, *of_call[0], **of_call[1])
        leaves = keras.tree.flatten((args, kwargs))
        if not _tensors(leaves) and any(isinstance(leaf, Constant) for leaf in leaves):
            return of_constants(layer, args, kwargs, specs)

        # Arguments by name: those other than propagated masks, and the masks
        parameters = inspect.signature(layer.call)
        named: dict[str, Any] = {}
        explicit: dict[str, Any] = {}
        if is_layer and "training" not in parameters.parameters:
            # Keras drops it
            kwargs = {name: value for name, value in kwargs.items() if name != "training"}
        for name, value in parameters.bind_partial(*args, **kwargs).arguments.items():
            of = name.removesuffix("_mask")
            travels = name == "mask" or (of != name and of in parameters.parameters)
            travels &= is_layer and not isinstance(value, Constant)
            (explicit if travels else named)[name] = value
        tensors = _tensors(tuple(named.values()))
        if isinstance(layer, keras.Model):
            shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), args[0])
            functional = as_functional(layer, shapes)
            if layer not in functional.layers:  # else it is expanded, as a layer
                found = self.run(functional, in_order(functional, args[0]), f"{path}/")
                return keras.tree.pack_sequence_as(specs, found)
        outputs = keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), specs)
        flat = keras.tree.flatten(outputs)
        self._alive.append(outputs)
        # A shared layer keeps the path of its first call.
        path = self._path.setdefault(id(layer), path)
        paddings, masks = self._masks_of(named, explicit)
        of_keras = not is_layer and type(layer).__module__.startswith("keras.")
        rewrite = REWRITES.get(type(layer).__name__) if of_keras else None
        if type(layer).__name__ == "LogSoftmax" and id(layer) in self._final:
            rewrite = None  # a final activation stays one operation
        if rewrite is not None or (is_layer and not has_rule(layer, tensors)):
            function = layer.call if rewrite is None else partial(rewrite, layer)
            try:
                results = self._expand(layer, function, path, args, kwargs, named, explicit, masks)
            except UnsupportedLayerError as error:
                # A function of TensorFlow may still be one of single values, or a move.
                if TENSORFLOW not in str(error) or not is_recognised(layer, tensors, flat):
                    raise
                results = None
            if results is not None:
                if len(results) != len(flat):
                    results = [x for x in results if x is not None]
                # A rewrite may leave a result out.
                pairs = zip(results, flat, strict=True)
                results = [output if x is None else x for x, output in pairs]
                first = next(iter(named.values()), None)
                if is_layer and layer.supports_masking and _tensors((first,)):
                    self._set_masks(layer, path, named, results[0], paddings, masks)
                return keras.tree.pack_sequence_as(outputs, results)
        for tensor in (tensor for tensor in tensors if None in tensor.shape[1:]):
            raise UnsupportedLayerError(
                f"Layer '{path}': the batch axis must come first, and the size of all others be "
                f"known. Received: {tensor.shape}"
            )
        numbers = set(map(id, tensors)) - self._tokens
        kinds = {x.dtype for x in tensors if id(x) in numbers}
        is_value = any("float" in kind for kind in kinds) or not self._values.isdisjoint(numbers)
        for output in flat:
            if output.dtype == "bool" and is_value:
                self._values.add(id(output))
            if not (numbers or is_layer):
                self._tokens.add(id(output))
        mask = self._set_masks(layer, path, named, flat[0], paddings, masks)
        places = {id(tensor): TensorAt(place) for place, tensor in enumerate(tensors)}
        call = Call(
            layer=layer,
            path=path,
            reuse=self._reuse[id(layer)],
            inputs=tuple(map(id, tensors)),
            input_shapes=tuple(tuple(tensor.shape[1:]) for tensor in tensors),
            dtypes=tuple(tensor.dtype for tensor in tensors),
            outputs=tuple(map(id, flat)),
            output_shapes=tuple(tuple(output.shape[1:]) for output in flat),
            arguments=keras.tree.map_structure(lambda x: places.get(id(x), x), named),
            masks=_ids(masks),
            paddings=_ids(paddings),
            mask=_ids([mask])[0],
            dtype=flat[0].dtype,
            is_value=is_value,
            is_token=not numbers,
        )
        self._reuse[id(layer)] += 1
        self.calls.append(call)
        if isinstance(layer, keras.layers.MultiHeadAttention) and attention_takes_masks():
            self._received.update(dict.fromkeys(map(id, tensors)))
        return outputs

    def _expand(
        self,
        layer: keras.Operation,
        function: Callable[..., Any],
        path: str,
        args: tuple,
        kwargs: Mapping[str, Any],
        named: Mapping[str, Any],
        explicit: Mapping[str, Any],
        masks: Sequence[Any],
    ) -> list[Any] | None:
        """Visit the calls that a function makes for a layer or an operation; return its results.

        `named` are the call's arguments by name, `masks` the masks of their tensors, and `explicit`
        the arguments that are masks. Returns None if the function has no answer.
        """
        by_id = dict(zip(map(id, _tensors(tuple(named.values()))), masks, strict=True))
        given = dict(kwargs)
        is_layer = isinstance(layer, keras.layers.Layer)
        parameters = inspect.signature(layer.call).parameters if is_layer else {}
        if "training" in parameters:
            given["training"] = False
        for name in parameters:
            of = name.removesuffix("_mask")
            value = next(iter(named.values()), None) if name == "mask" else None
            value = named.get(of) if of != name else value
            if value is None or name in named or name in explicit:
                continue
            known = keras.tree.map_structure(lambda x: by_id.get(id(x)), value)
            if any(mask is not None for mask in keras.tree.flatten(known)):
                given[name] = known
        tensors = _tensors((args, given))
        known_masks = [by_id.get(id(tensor)) for tensor in tensors]
        expansion = expand(layer, function, (args, given), known_masks, self._values, path)
        if expansion is None:
            return None
        pairs = zip(expansion.entries, (*tensors, *known_masks), strict=True)
        outside = {id(entry): original for entry, original in pairs if entry is not None}
        reuse = self._reuse[id(layer)]
        self._reuse[id(layer)] += 1
        self._expanded += 1
        self._alive.append(expansion)
        prefix = f"{path}#{reuse}/" if reuse else f"{path}/"
        for call in expansion.calls:
            specs = [keras.KerasTensor((None, *x.shape[1:]), dtype=x.dtype) for x in call.outputs]
            given = keras.tree.map_structure(
                lambda x: outside.get(id(x), x), (call.args, call.kwargs)
            )
            results = self.visit(call.operation, prefix, given[0], given[1], specs, layer)
            results = keras.tree.flatten(results)
            outside.update(zip(map(id, call.outputs), results, strict=True))
        self._expanded -= 1
        return [outside.get(id(output), output) for output in expansion.outputs]

    def _name_in(
        self, prefix: str, layer: keras.Operation, parent: keras.layers.Layer | None
    ) -> str:
        """Return a name inside an expanded layer that is the same whenever a model is built.

        Names that Keras numbers become the attribute's that holds the layer, or numbers from 1.
        """
        if id(layer) in self._path:
            return layer.name
        name = layer.name
        plain = re.sub(r"_\d+$", "", name)
        if not isinstance(layer, keras.layers.Layer):
            name = plain
        elif plain.replace("_", "") == type(layer).__name__.lower().replace("_", ""):
            name = _attribute_of(layer, parent) or plain
        count = self._names[prefix + name]
        self._names[prefix + name] += 1
        return f"{name}_{count}" if count else name

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
            for i, tensor in enumerate(_tensors((value,))):
                given = passed[i] if i < len(passed) else None
                given = given if isinstance(given, keras.KerasTensor) else None
                padding, mask = self._paddings.get(id(tensor)), self._received.get(id(tensor))
                if self._expanded and given is not None:  # it is written, not propagated
                    padding = mask = given
                paddings.append(given if padding is None else padding)
                received.append(given if mask is None else mask)
                if i < len(of_mask) and isinstance(of_mask[i], keras.KerasTensor):
                    received[-1] = paddings[-1]
        return paddings, received

    def _set_masks(
        self,
        layer: keras.Operation,
        path: str,
        named: Mapping[str, Any],
        output: Any,
        paddings: list[Any],
        masks: list[Any],
    ) -> Any:
        """Note the masks of a call's output, given those of its inputs; return the padding mask."""
        padding = self._mask_after(layer, path, named, paddings)
        self._paddings[id(output)] = self._received[id(output)] = padding
        if list(map(id, masks)) != list(map(id, paddings)):
            self._received[id(output)] = self._mask_after(layer, path, named, masks)
        return padding

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

        def make(*values: Any) -> Any:
            stream = iter(values[len(tensors) :])
            present = [None if mask is None else next(stream) for mask in own]
            result = compute(_replaced(first, values), _replaced(first, present))
            return next(v for v in keras.tree.flatten(result) if v is not None)

        inputs = [*tensors, *(mask for mask in own if mask is not None)]
        mask = keras.KerasTensor(found.shape, dtype="bool")
        self._alive.extend((mask, result))
        self.calls.append(
            Call(
                layer=layer,
                path=path,
                reuse=self._reuse[id(layer)],
                inputs=tuple(map(id, inputs)),
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


def has_rule(layer: keras.layers.Layer, inputs: Sequence[Any]) -> bool:
    """Whether a layer's class has operations of its own, or a reason why it cannot have any.

    A Lambda has them if its function of one tensor is recognised by its values.
    """
    layer_class = type(layer)
    if layer_class is keras.layers.Lambda:
        return is_recognised(layer, inputs)
    refused = layer_class.__module__.startswith("keras.") and layer_class.__name__ in REASONS
    return refused or registered(layer_class) is not None


def is_recognised(
    layer: keras.Operation, inputs: Sequence[Any], outputs: Sequence[Any] = ()
) -> bool:
    """Whether a layer without weights computes a known function of one tensor, of its shape."""
    # Imported here, because the families of layers use this module.
    from nnslicer_tf.instrument.layers.probing import own_function, recognised

    shapes = [tuple(x.shape[1:]) for x in inputs]
    same = all(shapes == [tuple(x.shape[1:])] for x in outputs)
    if not (isinstance(layer, keras.layers.Layer) and not layer.weights and same):
        return False
    try:
        steps = own_function(layer, LayerCall(layer.name, shapes, shapes))
        return all(recognised(step, shapes, layer.name) for step in steps)
    except UnsupportedLayerError:
        return False


def _attribute_of(layer: keras.layers.Layer, parent: keras.layers.Layer | None) -> str:
    """Return the name of the attribute of `parent` that holds a layer, or ""."""
    for name, value in vars(parent).items() if parent is not None else ():
        if name.startswith(OF_KERAS):
            continue
        if value is layer:
            return name.lstrip("_")
        entries: Any = value.items() if isinstance(value, Mapping) else ()
        entries = enumerate(value) if isinstance(value, (list, tuple)) else entries
        for key, entry in entries:
            if entry is layer:
                return f"{name.lstrip('_')}_{key}"
    return ""


@cache
def attention_takes_masks() -> bool:
    """Whether this version of Keras removes the masks of `MultiHeadAttention`'s inputs."""
    embedded = keras.layers.Embedding(2, 1, mask_zero=True)(np.ones((1, 2), np.int32))
    keras.layers.MultiHeadAttention(1, 1)(embedded, embedded)
    return getattr(embedded, "_keras_mask", None) is None


def _replaced(structure: Any, values: Iterable[Any]) -> Any:
    stream = iter(values)
    return keras.tree.map_structure(
        lambda x: next(stream) if isinstance(x, keras.KerasTensor) else x, structure
    )


def _ids(tensors: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(None if tensor is None else id(tensor) for tensor in tensors)


def _check_inference(layer: keras.layers.Layer, path: str) -> None:
    """Refuse training=True for a layer that then depends on the batch or on chance."""
    for part in layer._flatten_layers():
        batch = isinstance(part, keras.layers.BatchNormalization) and part.trainable
        if batch or getattr(part, "seed_generator", None) is not None:
            why = "uses the statistics of the batch" if batch else "draws random numbers"
            name = path if part is layer else f"{path}/{part.name}"
            raise UnsupportedLayerError(
                f"Layer '{name}' ({type(part).__name__}) is called with training=True, so it "
                f"{why} at inference, too. Analyses need a model that treats each sample alike: "
                "rebuild it without that argument, and copy the weights with set_weights."
            )


def _is_open(specs: Any) -> bool:
    """Whether the size of an axis other than the batch's is not known."""
    return any(x.shape[:1] == (None,) and None in x.shape[1:] for x in _tensors(specs))


def _tensors(structure: Any) -> list[Any]:
    return [x for x in keras.tree.flatten(structure) if isinstance(x, keras.KerasTensor)]
