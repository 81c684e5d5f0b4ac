"""Layers that cannot be instrumented: why, and what to do instead."""

import keras

from nnslicer_tf.errors import UnsupportedLayerError

_BEFORE = (
    "it turns text or categories into numbers. Make a model of the layers after it, and apply it "
    "to the data: InstrumentedModel(keras.Model(numbers, outputs)), with x = layer(data)"
)
_BY_HISTOGRAM = "it changes values by the statistics of the image; apply it before the model"
_INTERPOLATES = "it interpolates between pixels; apply it to the data, before the model"
_CELL = "a cell is not a layer of a model; put it into keras.layers.RNN"
_FOREIGN = (
    "it runs code that Keras cannot see into, such as a SavedModel. Rebuild the model from Keras's "
    "layers, or load the original .keras or .h5 file"
)
_SPECTRUM = "it computes in the frequency domain; apply it to the data, before the model"
REASONS = {
    "AutoContrast": _BY_HISTOGRAM,
    "CategoryEncoding": _BEFORE,
    "ContrastLimitedAdaptiveHistogramEqualization": _BY_HISTOGRAM,
    "Discretization": _BEFORE,
    "Equalization": _BY_HISTOGRAM,
    "FlaxLayer": _FOREIGN,
    "GRUCell": _CELL,
    "HashedCrossing": _BEFORE,
    "Hashing": _BEFORE,
    "IntegerLookup": _BEFORE,
    "JaxLayer": _FOREIGN,
    "LSTMCell": _CELL,
    "Layer": "the base class",
    "MaxNumBoundingBoxes": "it changes bounding boxes, not images",
    "MelSpectrogram": _SPECTRUM,
    "Pipeline": "a chain of preprocessing: apply it to the data, before the model",
    "RandomCrop": _INTERPOLATES,
    "Resizing": _INTERPOLATES,
    "STFTSpectrogram": _SPECTRUM,
    "SimpleRNNCell": _CELL,
    "Solarization": "it inverts values above a threshold; apply it before the model",
    "SpectralNormalization": (
        "it computes its kernel. Build the model without it, from the layers that it wraps, and "
        "set_weights of those"
    ),
    "StackedRNNCells": _CELL,
    "StringLookup": _BEFORE,
    "TFSMLayer": _FOREIGN,
    "TextVectorization": _BEFORE,
    "TorchModuleWrapper": _FOREIGN,
    "Wrapper": "the base class of wrappers",
}


def no_rule(layer: keras.Operation, path: str) -> UnsupportedLayerError:
    """Return the error for a layer or operation for which no operations are registered."""
    name = type(layer).__name__
    if type(layer).__module__.startswith("keras.") and name in REASONS:
        return UnsupportedLayerError(
            f"Layer '{path}' ({name}) cannot be instrumented: {REASONS[name]}."
        )
    what = "Layer" if isinstance(layer, keras.layers.Layer) else "Operation"
    return UnsupportedLayerError(
        f"{what} '{path}' ({name}) has no rule: no operations are registered for it. Register "
        f'them with nnslicer_tf.register_layer({name}, operations_fn); see "Add a layer" in the '
        "documentation."
    )


def check_kernels(layer: keras.Operation, path: str) -> None:
    """Check that the kernels of a layer, and of the layers in it, are floating-point variables.

    Raises:
        UnsupportedLayerError: if one is quantised, or has a LoRA adapter.
    """
    for part in getattr(layer, "_flatten_layers", lambda: ())():
        mode = getattr(part.dtype_policy, "quantization_mode", None)
        if mode is not None:
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(part).__name__}) is quantised to {mode}. Analyse the model "
                "as it was before quantize(), or its LiteRT file with nnslicer_tf.dflare."
            )
        if getattr(part, "lora_enabled", False):
            raise UnsupportedLayerError(
                f"Layer '{path}' ({type(part).__name__}) has a LoRA adapter, so that its kernel is "
                "a sum. Merge it: nnslicer_tf.instrument.copy_model(model) returns a copy with the "
                "sum, as do save_weights() and load_weights() into a model without an adapter."
            )
