"""Compressed versions of a Keras model (paper, sections 2.2 and 5.4).

8-bit quantisation (TFLite files, as bytes), which needs TensorFlow's converter, and magnitude
pruning. The original model is not changed. Pruned models are not fine-tuned, so that pruning is
the only cause of deviations.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import as_array, check_name, check_number
from nnslicer_tf._litert import LiteRTModel, to_litert
from nnslicer_tf._numerics import smallest
from nnslicer_tf.dflare.classifiers import ends_of
from nnslicer_tf.errors import InvalidArgumentError, MissingPackageError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, copy_model
from nnslicer_tf.instrument.data import DataLike, Samples

METHODS = ("dynamic", "int8", "int16", "ai_edge", "prune")


def compress(
    model: keras.Model | bytes,
    method: str,
    samples: DataLike | None = None,
    *,
    ratio: float = 0.5,
    layers: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    recipe: Sequence[Mapping] = (),
) -> Any:
    """Return a compressed copy of a model: the content of a TFLite file, or a Keras model.

    Args:
        model: A Keras model; for "ai_edge" the content of a floating-point TFLite file.
        method: How to compress it.

            - "dynamic": 8-bit weights, except in kernels of fewer than 1,024 values.
            - "int8": 8-bit integers from input to output.
            - "int16": 8-bit weights and 16-bit activations, for whole models only.
            - "ai_edge": as a recipe of the AI Edge Quantizer says.
            - "prune": the smallest weights are zero, the same share in every kernel.
        samples: For integer activations: a few hundred preprocessed inputs, which calibrate them.
        ratio: For "prune": the share of weights to remove, 0 to below 1; vectors are unchanged.
        layers: For "prune": names of the layers to prune; all if None.
        keep: For "int8": tensors whose steps stay float, such as `debugging.Recipe.tensors`.
        recipe: For "ai_edge": the quantizer's recipe as JSON, such as
            `ai_edge_quantizer.recipe.dynamic_wi8_afp32()`; see `debugging.Recipe.ai_edge`.

    Raises InvalidArgumentError if an option is invalid or names what the model does not have,
    samples are missing, or the model is not built, takes integers or cannot be copied;
    InputShapeError if samples have another shape; SeveralInputsError if the model has several
    inputs; UnsupportedLayerError if TensorFlow's converter cannot convert the model;
    MissingPackageError if "ai_edge" needs a package that is not installed.
    """
    check_name("method of compression", method, METHODS)
    if method == "ai_edge":
        if not isinstance(model, bytes):
            raise InvalidArgumentError("'ai_edge' takes a floating-point TFLite file's content.")
        return _quantised_by_recipe(model, recipe, samples)
    _check_built(model)
    if method == "prune":
        return _pruned(model, ratio, layers)
    return _converted(model, method, samples, keep)


def _pruned(model: keras.Model, ratio: float, layers: Sequence[str] | None) -> keras.Model:
    """Return a copy whose smallest weights are zero, in kernels of two or more dimensions."""
    check_number("ratio", ratio, "[0, 1)")
    has_config = type(model).get_config is not keras.Model.get_config
    if not getattr(model, "outputs", None) and not has_config:
        raise InvalidArgumentError(
            f"Model '{model.name}' cannot be copied: it is subclassed, and {type(model).__name__} "
            "does not define get_config, which Keras needs to rebuild it."
        )
    for name in () if layers is None else layers:
        check_name("layer", name, [layer.name for layer in model.layers])
    copy = copy_model(model)
    for part in [copy] if layers is None else [copy.get_layer(name) for name in layers]:
        for kernel in (weight for weight in part.weights if weight.ndim > 1):
            values = keras.ops.convert_to_numpy(kernel)
            kernel.assign(np.where(smallest(np.abs(values), int(ratio * values.size)), 0, values))
    return copy


def _converted(
    model: keras.Model, method: str, samples: DataLike | None, keep: Sequence[str]
) -> bytes:
    """Quantise with TensorFlow's converter."""
    import tensorflow as tf

    if isinstance(keep, str):
        raise InvalidArgumentError(f"keep must be a list of names. Received: the string {keep!r}")
    if keep and method != "int8":
        raise InvalidArgumentError(f"keep is for the method 'int8'. Received: method {method!r}")
    calibration = None
    if method != "dynamic":  # activations are calibrated
        check_one_output(model, several=True)
        dtype = model.inputs[0].dtype
        if "int" in dtype:
            raise InvalidArgumentError(
                f"Model '{model.name}' takes {dtype}, such as word indices: only real inputs can "
                "be rounded to steps. The method 'dynamic' takes this model."
            )
        if samples is None:
            raise InvalidArgumentError(
                "Integer quantisation needs samples: pass a few hundred preprocessed inputs."
            )
        calibration = Samples(samples, model.input_shape[1:]).array()

    def convert(converter: Any) -> bytes:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if calibration is None:
            return converter.convert()
        converter.representative_dataset = lambda: ([sample[None]] for sample in calibration)
        if keep:
            experimental = tf.lite.experimental
            debugger = experimental.QuantizationDebugger(
                converter=converter,
                debug_dataset=converter.representative_dataset,
                debug_options=experimental.QuantizationDebugOptions(
                    denylisted_nodes=list(keep), fully_quantize=True
                ),
            )
            # The converter would ignore unknown names.
            calibrated = LiteRTModel(debugger.calibrated_model, "the calibrated model")
            for name in keep:
                check_name("tensor", name, [t["name"] for t in calibrated.tensors.values()])
            return debugger.get_nondebug_quantized_model()
        sets, integers = tf.lite.OpsSet, {"int8": tf.int8, "int16": tf.int16}[method]
        operations = {
            "int8": sets.TFLITE_BUILTINS_INT8,
            "int16": sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
        }[method]
        converter.target_spec.supported_ops = [operations]
        converter.inference_input_type = converter.inference_output_type = integers
        return converter.convert()

    content = to_litert(model, convert)
    if method == "int8":
        LiteRTModel(content, f"'{model.name}' in int8")  # fails if calibration found no range
    return content


def _quantised_by_recipe(
    content: bytes, recipe: Sequence[Mapping], samples: DataLike | None
) -> bytes:
    """Quantise a floating-point LiteRT model with the AI Edge Quantizer."""
    try:
        from ai_edge_quantizer.quantizer import Quantizer
    except ImportError as error:
        raise MissingPackageError(
            "This needs the AI Edge Quantizer: pip install ai-edge-quantizer"
        ) from error
    quantizer = Quantizer(bytearray(content))
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantizer.load_quantization_recipe(list(recipe))
        result = None
        if quantizer.need_calibration:
            rows = np.zeros(0) if samples is None else as_array(samples).astype(np.float32)
            if not len(rows):
                raise InvalidArgumentError("This recipe needs samples: pass preprocessed inputs.")
            ((name, signature),) = LiteRTModel(content).interpreter.get_signature_list().items()
            (tensor,) = signature["inputs"]
            feeds = [{tensor: rows[i : i + 1]} for i in range(len(rows))]
            result = quantizer.calibrate({name: feeds})
        return bytes(quantizer.quantize(result).quantized_model)


def with_softmax(model: keras.Model) -> keras.Model:
    """Return a model that appends a softmax to one that returns logits; weights are shared.

    For one logit of two classes, or those of independent labels, it is a sigmoid. Raises
    InvalidArgumentError if the model already ends in probabilities, does not have exactly one
    vector of outputs, or is not a built functional or sequential model, and UnsupportedLayerError
    if it cannot be instrumented to check this.
    """
    check_one_output(model)
    sizes = [tuple(64 if extent is None else extent for extent in model.inputs[0].shape[1:])]
    sizes += [tuple(tensor.shape[1:]) for tensor in model.inputs[1:]]
    try:
        classes = InstrumentedModel(model, sizes if len(sizes) > 1 else sizes[0]).classes
    except UnsupportedLayerError as error:
        raise UnsupportedLayerError(
            f"Cannot determine whether '{model.name}' ends in probabilities. {error} If it ends in "
            "logits, append keras.layers.Softmax() yourself."
        ) from error
    if not classes.are_logits:
        raise InvalidArgumentError(
            f"Model '{model.name}' ends in a {classes.final} already: it gives probabilities, so "
            f"use it as it is. {classes.remark}"
        )
    if classes.is_number:
        raise InvalidArgumentError(f"Model '{model.name}' predicts a number. {classes.remark}")
    function = "softmax" if classes.task == "multiclass" else "sigmoid"
    outputs = keras.layers.Activation(function, name="probabilities")(model.outputs[0])
    return keras.Model(model.inputs, outputs, name=f"{model.name}_probabilities")


def _check_built(model: keras.Model) -> None:
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(f"model must be a Keras model. Received: {type(model).__name__}")
    if not model.built:
        raise InvalidArgumentError(
            f"Model '{model.name}' is not built: its weights do not exist yet. Start it with "
            "keras.Input, or call it once."
        )


def check_one_output(model: keras.Model, several: bool = False) -> None:
    """Reject a model that is not built, not functional or sequential, or has several outputs."""
    _check_built(model)
    if not getattr(model, "outputs", None):
        raise InvalidArgumentError(
            f"Model '{model.name}' is subclassed ({type(model).__name__}), so that its inputs and "
            "outputs are not known. Wrap it: keras.Model(inputs, model(inputs))."
        )
    ends_of(model, several)
