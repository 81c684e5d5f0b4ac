"""The registry of layer classes and their operations, and why some classes have none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from nnslicer_tf.errors import InvalidArgumentError, NNSlicerError, UnsupportedLayerError
from nnslicer_tf.instrument.operations import Elementwise, Step

Shape = tuple[int, ...]


@dataclass
class LayerCall:
    """One call of a layer, as passed to the layer's operations function; shapes without batch axis.

    Attributes:
        path: Name of the layer, prefixed with the names of the nested models that contain it.
        input_shapes: Shapes of the input tensors.
        output_shapes: Shapes of the output tensors.
        arguments: Name → argument, except masks; a tensor is its place in the inputs, a `TensorAt`.
        masks: Name of the mask that comes with each input, or None. In steps it is `MaskOf(i)`.
        paddings: Name of each input's padding mask, or None, for steps `PaddingOf(i)`. It differs
            from `masks` where Keras drops a mask on the way to the layer.
        dtypes: Dtypes of the input tensors in the model; the graph computes in float32.
        dtype: Dtype of the (first) output in the model.
        is_value: Whether a boolean output depends on numbers; otherwise it is a mask.
        is_token: Whether all inputs are tokens, or depend on tokens alone.
    """

    path: str
    input_shapes: Sequence[Shape]
    output_shapes: Sequence[Shape]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    masks: Sequence[Any] = ()
    paddings: Sequence[Any] = ()
    dtypes: Sequence[str] = ()
    dtype: str = "float32"
    is_value: bool = True
    is_token: bool = False

    def __post_init__(self) -> None:
        self.masks = self.masks or (None,) * len(self.input_shapes)
        self.paddings = self.paddings or (None,) * len(self.input_shapes)

    @property
    def output_shape(self) -> Shape:
        """Shape of the (first) output tensor, without the batch axis."""
        return self.output_shapes[0]


OperationsFunction = Callable[[Any, LayerCall], Sequence[Step]]
LayerTable = dict[type | str, OperationsFunction]

_BY_CLASS: dict[type, OperationsFunction] = {}
# Classes that Keras does not export: those behind keras.ops, and some of keras.applications.
_BY_KERAS_NAME: dict[str, OperationsFunction] = {}


def register_layer(layer_class: type | str, operations_fn: OperationsFunction) -> None:
    """Register the operations of a layer class, replacing earlier ones.

    Subclasses are not covered, because they may compute something else: register each separately.

    Args:
        layer_class: A `keras.layers.Layer` subclass, or the name of one that Keras does not export.
        operations_fn: Called as `operations_fn(layer, call)` with a `LayerCall`; returns the
            layer's `Step`s in the order of computation, ending with those of its outputs.

    Raises InvalidArgumentError if `layer_class` is neither a class nor a name.
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
    """Return the operations function of a layer class, or None."""
    operations_fn = _BY_CLASS.get(layer_class)
    if operations_fn is None and layer_class.__module__.startswith("keras."):
        operations_fn = _BY_KERAS_NAME.get(layer_class.__name__)
    return operations_fn


def layer_steps(layer: keras.Layer, call: LayerCall) -> tuple[Step, ...]:
    """Return the steps of a call; refuse layers without operations, quantised or adapted ones."""
    kind, path = type(layer).__name__, call.path
    is_layer = isinstance(layer, keras.layers.Layer)
    operations_fn = registered(type(layer))
    if operations_fn is None and not is_layer:
        from nnslicer_tf.instrument.layers.functions import function_of_tensors as operations_fn
    elif operations_fn is None and not layer.weights and kind not in REASONS:
        from nnslicer_tf.instrument.layers.probing import own_function as operations_fn
    if operations_fn is None:
        if type(layer).__module__.startswith("keras.") and kind in REASONS:
            raise UnsupportedLayerError(
                f"Layer '{path}' ({kind}) cannot be instrumented: {REASONS[kind]}."
            )
        raise UnsupportedLayerError(
            f"{'Layer' if is_layer else 'Operation'} '{path}' ({kind}) has no rule: no operations "
            f"are registered for it. Register them with nnslicer_tf.register_layer({kind}, "
            'operations_fn); see "Add a layer" in the documentation.'
        )
    for part in getattr(layer, "_flatten_layers", lambda: ())():
        name = path if part is layer else f"{path}/{part.name}"
        mode = getattr(part.dtype_policy, "quantization_mode", None)
        if mode is not None:
            raise UnsupportedLayerError(
                f"Layer '{name}' ({type(part).__name__}) is quantised to {mode}. Analyse the model "
                "as it was before quantize(), or its LiteRT file with nnslicer_tf.dflare."
            )
        if getattr(part, "lora_enabled", False):
            raise UnsupportedLayerError(
                f"Layer '{name}' ({type(part).__name__}) has a LoRA adapter, so its kernel is a "
                "sum. Merge it: nnslicer_tf.instrument.copy_model(model) returns a copy with the "
                "sum, as do save_weights() and load_weights() into a model without an adapter."
            )
    if is_layer:
        return tuple(operations_fn(layer, call))
    from nnslicer_tf.instrument.expansion import variables_of, why_not, with_moved

    try:
        steps = tuple(operations_fn(layer, call))
        # What a function is must not depend on what its weights are now, such as 0 or 1.
        weights = variables_of(dict(call.arguments))
        if weights:
            with with_moved(weights):
                others = tuple(operations_fn(layer, call))
            knots = [[getattr(s.params, "knots", None) for s in one] for one in (steps, others)]
            if [step.kind for step in steps] != [step.kind for step in others]:
                steps = others
            if knots[0] != knots[1]:
                steps = tuple(
                    replace(s, params=replace(s.params, knots=None))
                    if isinstance(s.params, Elementwise)
                    else s
                    for s in steps
                )
        return steps
    except Exception as error:
        if isinstance(error, NNSlicerError):
            raise
        raise UnsupportedLayerError(
            f"Operation '{path}' ({kind}) has no rule for these arguments: "
            f"{why_not(error).rstrip('.')}. Write it with other functions of keras.ops."
        ) from error


_BEFORE = (
    "it turns text or categories into numbers. Make a model of the layers after it, and apply it "
    "to the data: InstrumentedModel(keras.Model(numbers, outputs)), with x = layer(data)"
)
_PREPROCESSING = "it is preprocessing without a rule; apply it to the data, before the model"
_CELL = "a cell is not a layer of a model; put it into keras.layers.RNN"
_FOREIGN = (
    "it runs code that Keras cannot see into, such as a SavedModel. Rebuild the model from Keras's "
    "layers, or load the original .keras or .h5 file"
)
REASONS = {
    **dict.fromkeys(("CategoryEncoding", "Discretization", "HashedCrossing", "Hashing"), _BEFORE),
    **dict.fromkeys(("IntegerLookup", "StringLookup", "TextVectorization"), _BEFORE),
    **dict.fromkeys(
        (
            *("AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "Equalization"),
            *("MaxNumBoundingBoxes", "MelSpectrogram", "Pipeline", "RandomCrop", "Solarization"),
            "STFTSpectrogram",
        ),
        _PREPROCESSING,
    ),
    **dict.fromkeys(("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper"), _FOREIGN),
    **dict.fromkeys(("GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"), _CELL),
    "Layer": "the base class",
    "SpectralNormalization": (
        "it computes its kernel. Build the model without it, from the layers that it wraps, and "
        "set_weights of those"
    ),
    "Wrapper": "the base class of wrappers",
}
