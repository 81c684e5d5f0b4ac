"""Compressed versions of a Keras model, to compare with it (paper, sections 2.2 and 5.4).

Two kinds of 8-bit quantisation (TFLite files, as bytes), magnitude pruning, knowledge
distillation, and the mutation of a share of the weights. The given model is never changed.
Pruned models are not fine-tuned, so that deviations are due to pruning alone.

Quantisation needs TensorFlow's converter; the rest works on every Keras backend.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_name
from nnslicer_tf._litert import interpreter_of
from nnslicer_tf._numerics import smallest
from nnslicer_tf._training import build_optimizer, draw_dropout_seeds, train_epochs
from nnslicer_tf.errors import InvalidArgumentError, SeveralInputsError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, copy_model
from nnslicer_tf.instrument.data import DataLike, Samples

if TYPE_CHECKING:
    import tensorflow as tf


def with_softmax(model: keras.Model) -> keras.Model:
    """Return a model that appends a softmax to one that returns logits; weights are shared.

    Raises:
        InvalidArgumentError: if the model already ends in probabilities, has one output or
            several, or is not a built functional or sequential model.
        UnsupportedLayerError: if the model cannot be instrumented, so that it is not known
            whether it ends in probabilities.
    """
    _check_one_output(model)
    sizes = [tuple(64 if extent is None else extent for extent in model.inputs[0].shape[1:])]
    sizes += [tuple(tensor.shape[1:]) for tensor in model.inputs[1:]]
    try:
        classes = InstrumentedModel(model, sizes if len(sizes) > 1 else sizes[0]).classes
    except UnsupportedLayerError as error:
        raise UnsupportedLayerError(
            f"It is not known whether '{model.name}' ends in probabilities already. {error} If it "
            "ends in logits, append keras.layers.Softmax() yourself."
        ) from error
    if classes.final in ("softmax", "sigmoid", "distribution"):
        raise InvalidArgumentError(
            f"Model '{model.name}' ends in a {classes.final} already: it gives probabilities, so "
            "take it as it is."
        )
    if classes.is_number:
        raise InvalidArgumentError(
            f"Model '{model.name}' has one output, whose softmax would always be 1. End it with a "
            "sigmoid if it tells two classes apart."
        )
    outputs = keras.layers.Softmax(name="probabilities")(model.outputs[0])
    return keras.Model(model.inputs, outputs, name=f"{model.name}_probabilities")


def quantize_dynamic(model: keras.Model) -> bytes:
    """Return a TFLite model with 8-bit weights; activations are quantised at run time.

    TFLite leaves kernels of fewer than 1,024 values in floating point.

    Raises:
        InvalidArgumentError: if the model is not built.
        UnsupportedLayerError: if TensorFlow's converter cannot convert the model.
    """
    _check_built(model)
    return _convert(_converter(model))


def quantize_integer(model: keras.Model, samples: DataLike, keep: Sequence[str] = ()) -> bytes:
    """Return a TFLite model that computes with 8-bit integers from input to output.

    Args:
        model: A Keras model.
        samples: `(samples, ...)` preprocessed inputs for calibrating the range of every
            activation; a few hundred are enough.
        keep: Names of the tensors whose steps stay in floating point, such as those of
            `debugging.Recipe.tensors`.

    Raises:
        InvalidArgumentError: if there are no samples, the model takes integers or has no input
            shape, or `keep` is not a list of names of tensors.
        InputShapeError: if samples have another shape.
        SeveralInputsError: if the model has several inputs.
        UnsupportedLayerError: if TensorFlow's converter cannot convert the model.
    """
    import tensorflow as tf

    if isinstance(keep, str):
        raise InvalidArgumentError(f"keep must be a list of names. Received the text {keep!r}")
    converter = _calibrated(model, samples)
    if keep:
        return _convert_but_for(converter, list(keep))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.int8
    converter.inference_output_type = tf.int8
    return _convert(converter)


def quantize_16x8(model: keras.Model, samples: DataLike) -> bytes:
    """Return a TFLite model with 8-bit weights and 16-bit activations throughout.

    TensorFlow's converter supports this only for whole models. To keep some layers of an 8-bit
    model in 16 bits, use `quantize_ai_edge` with `debugging.Recipe.ai_edge(kept="int16")`.

    Args:
        model: A Keras model.
        samples: As in `quantize_integer`.

    Raises:
        InvalidArgumentError, InputShapeError, SeveralInputsError, UnsupportedLayerError: as
            `quantize_integer` does.
    """
    import tensorflow as tf

    converter = _calibrated(model, samples)
    sets = tf.lite.OpsSet
    converter.target_spec.supported_ops = [
        sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    ]
    converter.inference_input_type = tf.int16
    converter.inference_output_type = tf.int16
    return _convert(converter)


def quantize_ai_edge(
    content: bytes, recipe: Sequence[Mapping], samples: np.ndarray | None = None
) -> bytes:
    """Quantise a floating-point LiteRT model with the AI Edge Quantizer.

    Args:
        content: The floating-point model, such as the result of `pruning.costs.to_litert`.
        recipe: The quantizer's recipe as JSON: its own, such as
            `ai_edge_quantizer.recipe.dynamic_wi8_afp32()`, followed by the result of
            `debugging.Recipe.ai_edge`.
        samples: Preprocessed inputs for calibrating the range of every activation, for recipes
            with integer activations.

    Raises:
        InvalidArgumentError: if the package ai-edge-quantizer is not installed.
    """
    try:
        from ai_edge_quantizer.quantizer import Quantizer
    except ImportError as error:
        raise InvalidArgumentError(
            "This needs the AI Edge Quantizer: pip install ai-edge-quantizer"
        ) from error
    quantizer = Quantizer(bytearray(content))
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantizer.load_quantization_recipe(list(recipe))
        result = None
        if quantizer.need_calibration:
            result = quantizer.calibrate(_signature_samples(content, samples))
        return bytes(quantizer.quantize(result).quantized_model)


def prune_magnitude(
    model: keras.Model, ratio: float, layers: Sequence[str] | None = None
) -> keras.Model:
    """Return a copy whose smallest weights are zero, the same share in every kernel.

    Args:
        model: A Keras model.
        ratio: The share of weights to set to zero, 0 … 1 (1 excluded); biases and other
            vectors are unchanged.
        layers: Names of the layers to prune; all if None.

    Raises:
        InvalidArgumentError: if the ratio is out of range, a layer does not exist, or the model
            cannot be copied.
    """
    if not 0 <= ratio < 1:
        raise InvalidArgumentError(f"ratio must be in 0 … 1, 1 excluded. Received: {ratio}")
    _check_copyable(model)
    names = [layer.name for layer in model.layers]
    for name in layers or ():
        check_name("layer", name, names)

    def prune(weights: np.ndarray) -> np.ndarray:
        return np.where(smallest(np.abs(weights), int(ratio * weights.size)), 0, weights)

    return _changed(model, prune, layers)


def mutate_weights(
    model: keras.Model, share: float, rng: int | np.random.Generator = 0
) -> keras.Model:
    """Return a copy in which a share of the weights is 10 % larger or smaller (section 5.4.1).

    Args:
        model: A Keras model.
        share: The share of the weights of all kernels together, 0 … 1.
        rng: Chooses the weights, and the sign of each change.

    Raises:
        InvalidArgumentError: if the share is out of range, or the model cannot be copied.
    """
    if not 0 <= share <= 1:
        raise InvalidArgumentError(f"share must be in 0 … 1. Received: {share}")
    generator = as_generator(rng)
    total = sum(weight.size for weight in model.get_weights() if weight.ndim > 1)
    factors = np.ones(total, np.float32)
    chosen = generator.choice(total, round(share * total), replace=False)
    factors[chosen] = generator.choice(np.array([0.9, 1.1], np.float32), len(chosen))
    position = 0

    def mutate(weights: np.ndarray) -> np.ndarray:
        nonlocal position
        part = factors[position : position + weights.size]
        position += weights.size
        return weights * part.reshape(weights.shape)

    return _changed(model, mutate)


def distill(
    teacher: keras.Model,
    student: keras.Model,
    x: np.ndarray,
    *,
    temperature: float = 4.0,
    epochs: int = 10,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> keras.Model:
    """Train a copy of `student` to reproduce the teacher's softened probabilities.

    Args:
        teacher: A model that returns probabilities.
        student: One that returns probabilities of the same classes, usually a smaller network.
        x: Training inputs `(samples, ...)`.
        temperature: Softening of both models' probabilities, p^(1/T) normalised.
        epochs: Passes over `x`.
        batch_size: Samples per step.
        learning_rate: Learning rate of Adam.
        rng: Order of the samples, and dropout. Training starts from the weights of `student`.
        progress: Whether to show a progress bar.

    Returns:
        The trained student.

    Raises:
        InvalidArgumentError: if the outputs differ in size, the temperature is not above 0, or a
            model has several outputs or is not a built functional or sequential model.
    """
    _check_one_output(teacher)
    _check_one_output(student)
    if teacher.output_shape[1:] != student.output_shape[1:] or not temperature > 0:
        raise InvalidArgumentError(
            "Teacher and student need outputs of one size, and temperature must be above 0. "
            f"Received: {teacher.output_shape}, {student.output_shape}, {temperature}"
        )
    generator = as_generator(rng)
    learner = copy_model(student)
    draw_dropout_seeds(learner, generator)
    soft = keras.layers.Lambda(lambda p: _soften(p, temperature))(learner.outputs[0])
    trained = keras.Model(learner.inputs, soft)
    optimizer = keras.optimizers.Adam(learning_rate)
    trained.compile(optimizer, "kl_divergence")
    build_optimizer(optimizer, trained.trainable_variables)
    teaching = teacher.predict(x, batch_size=batch_size, verbose=0)
    targets = keras.ops.convert_to_numpy(_soften(teaching, temperature))
    train_epochs(
        lambda rows, _: trained.train_on_batch(x[rows], targets[rows]),
        len(x),
        epochs,
        batch_size,
        generator,
        progress=progress,
    )
    return learner


def _soften(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    logits = keras.ops.log(keras.ops.maximum(probabilities, 1e-12))
    return keras.ops.softmax(logits / temperature)


def _converter(model: keras.Model) -> "tf.lite.TFLiteConverter":
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter


def _calibrated(model: keras.Model, samples: DataLike) -> "tf.lite.TFLiteConverter":
    _check_symbolic(model)
    if len(model.inputs) > 1:
        raise SeveralInputsError(
            f"Model '{model.name}' has {len(model.inputs)} inputs, and integers are made of models "
            "with one. Join the inputs in a wrapping model, which cuts one tensor into them."
        )
    dtype = model.inputs[0].dtype
    if "int" in dtype:
        raise InvalidArgumentError(
            f"Model '{model.name}' takes {dtype}, such as the numbers of words: only inputs of "
            "real numbers can be rounded to steps. quantize_dynamic takes this model."
        )
    given = Samples(samples, model.input_shape[1:]).array()
    converter = _converter(model)
    converter.representative_dataset = lambda: ([sample[None]] for sample in given)
    return converter


def _convert(converter: "tf.lite.TFLiteConverter") -> bytes:
    """Convert, suppressing the converter's output and its warnings about ignored entries."""
    from tensorflow.lite.python.convert import ConverterError

    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Statistics for quantized inputs")
        try:
            return converter.convert()
        except ConverterError as error:
            raise UnsupportedLayerError(
                "TensorFlow's converter cannot make a LiteRT model of this one; it fails with "
                "recurrent layers, for instance. Convert it with options of your own, and pass the "
                f"file, or prune it instead. It says: {str(error).strip().splitlines()[-1][:200]}"
            ) from error


def _convert_but_for(converter: "tf.lite.TFLiteConverter", keep: list[str]) -> bytes:
    """Convert to integers, except for the steps that compute some tensors."""
    import tensorflow as tf

    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_nodes=keep, fully_quantize=True
    )
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter,
            debug_dataset=converter.representative_dataset,
            debug_options=options,
        )
        _check_tensors(keep, debugger.calibrated_model)
        return debugger.get_nondebug_quantized_model()


def _check_tensors(names: list[str], content: bytes) -> None:
    """Reject names of tensors that a file does not have; the converter would ignore them."""
    details = interpreter_of(content, "the calibrated model").get_tensor_details()
    known = [tensor["name"] for tensor in details]
    for name in names:
        check_name("tensor", name, known)


def _check_built(model: keras.Model) -> None:
    if not model.built:
        raise InvalidArgumentError(
            f"Model '{model.name}' is not built: its weights do not exist yet. Begin it with "
            "keras.Input, or call it once."
        )


def _check_symbolic(model: keras.Model) -> None:
    """Reject a model whose inputs and outputs are not symbolic, unlike a functional model's."""
    _check_built(model)
    if not getattr(model, "outputs", None):
        raise InvalidArgumentError(
            f"Model '{model.name}' is subclassed ({type(model).__name__}), so that its inputs and "
            "outputs are not known. Wrap it: keras.Model(inputs, model(inputs))."
        )


def _check_one_output(model: keras.Model) -> None:
    _check_symbolic(model)
    if len(model.outputs) > 1:
        raise InvalidArgumentError(
            f"Model '{model.name}' has {len(model.outputs)} outputs, and a classifier has one. "
            "Choose one: keras.Model(model.inputs, model.outputs[0])."
        )


def _check_copyable(model: keras.Model) -> None:
    _check_built(model)
    has_config = type(model).get_config is not keras.Model.get_config
    if not getattr(model, "outputs", None) and not has_config:
        raise InvalidArgumentError(
            f"Model '{model.name}' cannot be copied: it is subclassed, and {type(model).__name__} "
            "has no get_config of its own, from which Keras makes another one."
        )


def _signature_samples(content: bytes, samples: np.ndarray | None) -> dict[str, list[dict]]:
    """Return samples in the format that the quantizer takes."""
    if samples is None or not len(samples):
        raise InvalidArgumentError("This recipe needs samples: at least one preprocessed input.")
    interpreter = interpreter_of(content, "the given bytes")
    ((name, signature),) = interpreter.get_signature_list().items()
    (given,) = signature["inputs"]
    return {name: [{given: sample[None].astype(np.float32)} for sample in samples]}


def _changed(
    model: keras.Model,
    change: Callable[[np.ndarray], np.ndarray],
    layers: Sequence[str] | None = None,
) -> keras.Model:
    """Return a copy with `change` applied to its kernels (weights of two or more dimensions)."""
    _check_copyable(model)
    copy = copy_model(model)
    changed = [copy] if layers is None else [copy.get_layer(name) for name in layers]
    for kernel in (weight for part in changed for weight in part.weights if weight.ndim > 1):
        kernel.assign(change(keras.ops.convert_to_numpy(kernel)))
    return copy
