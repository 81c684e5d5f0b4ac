"""The registry that maps layer classes to their operations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.layers.refused import check_kernels, no_rule
from nnslicer_tf.instrument.operations import Step


class LayerCall:
    """One call of a layer, as it is passed to the layer's operations function.

    Attributes:
        path: Name of the layer, prefixed with the names of the nested models that contain it.
        input_shapes: Shapes of the input tensors, without the batch axis.
        output_shapes: Shapes of the output tensors, without the batch axis.
        constants: Position → positional argument of a `keras.ops` call, except tensors;
            empty for layers.
        arguments: All arguments by name, except propagated masks; tensors are replaced by their
            places among the inputs, `TensorAt`.
        masks: Name of the mask that the layer receives with each input, None if there is none.
            Steps can use an existing one as the source `MaskOf(i)`.
        paddings: Name of each input's padding mask, None if there is none. Steps can use an
            existing one as `PaddingOf(i)`. It can differ from the mask in `masks`, because Keras
            drops some masks on the way to a layer.
    """

    def __init__(
        self,
        path: str,
        input_shapes: Sequence[tuple[int, ...]],
        output_shapes: Sequence[tuple[int, ...]],
        constants: dict[int, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        masks: Sequence[str | None] = (),
        paddings: Sequence[str | None] = (),
    ) -> None:
        self.path = path
        self.input_shapes = tuple(input_shapes)
        self.output_shapes = tuple(output_shapes)
        self.constants = constants or {}
        self.arguments = arguments or {}
        self.masks = tuple(masks) or (None,) * len(self.input_shapes)
        self.paddings = tuple(paddings) or (None,) * len(self.input_shapes)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the (first) output tensor, without the batch axis."""
        return self.output_shapes[0]


OperationsFunction = Callable[[keras.Operation, LayerCall], Sequence[Step]]

_BY_CLASS: dict[type, OperationsFunction] = {}
# Classes that Keras does not export: those behind keras.ops, and some of keras.applications.
_BY_KERAS_NAME: dict[str, OperationsFunction] = {}


def register_layer(layer_class: type | str, operations_fn: OperationsFunction) -> None:
    """Register the operations that a layer class consists of.

    A later registration of a class replaces an earlier one. Subclasses are not covered, because
    they may compute something else; each has to be registered separately.

    Args:
        layer_class: A `keras.layers.Layer` subclass, or the name of a class inside Keras
            that Keras does not export.
        operations_fn: Called as `operations_fn(layer, call)` with a `LayerCall`; returns
            the layer's `Step`s in the order of computation; the last ones compute its outputs.

    Raises:
        InvalidArgumentError: if `layer_class` is neither a class nor a name.
    """
    if isinstance(layer_class, str):
        _BY_KERAS_NAME[layer_class] = operations_fn
    elif isinstance(layer_class, type):
        _BY_CLASS[layer_class] = operations_fn
    else:
        raise InvalidArgumentError(
            f"register_layer needs a layer class. Received: {layer_class!r} "
            f"of type {type(layer_class).__name__}"
        )


def registered(layer_class: type) -> OperationsFunction | None:
    """Return the operations function of a layer class, None if it has none."""
    operations_fn = _BY_CLASS.get(layer_class)
    if operations_fn is None and layer_class.__module__.startswith("keras."):
        operations_fn = _BY_KERAS_NAME.get(layer_class.__name__)
    return operations_fn


def layer_steps(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of one call of a layer.

    Raises:
        UnsupportedLayerError: if no operations are registered for the layer's class, or its kernel
            is quantised or has an adapter.
    """
    operations_fn = registered(type(layer))
    is_layer = isinstance(layer, keras.layers.Layer)
    if operations_fn is None and not is_layer and len(call.input_shapes) == 1:
        from nnslicer_tf.instrument.layers.probing import operation_steps as operations_fn
    if operations_fn is None:
        raise no_rule(layer, call.path)
    check_kernels(layer, call.path)
    return tuple(operations_fn(layer, call))
