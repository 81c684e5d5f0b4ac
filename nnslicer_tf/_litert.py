"""LiteRT (TFLite) models: files, interpreters, and conversion of quantised integers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import shape_fits
from nnslicer_tf.errors import CorruptFileError, InputShapeError, InvalidArgumentError

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter

_UNCHANGING = ("DEQUANTIZE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS")
"""Steps whose output has the values of their first input."""


def read_content(model: str | os.PathLike | bytes) -> tuple[bytes, str]:
    """Return the content of a LiteRT model, and its name for error messages.

    Args:
        model: A path, or the content itself.

    Raises:
        InvalidArgumentError: if the file cannot be read.
    """
    if isinstance(model, bytes):
        return model, "the given bytes"
    try:
        return Path(model).read_bytes(), f"'{os.fspath(model)}'"
    except OSError as error:
        reason = error.strerror or error
        raise InvalidArgumentError(f"Cannot read '{os.fspath(model)}': {reason}.") from error


def interpreter_of(content: bytes, name: str, keep_tensors: bool = False) -> "Interpreter":
    """Return a single-threaded interpreter.

    It is ready to run, unless axes of the input other than the first are free: then `fit_input`
    makes it ready, since many steps cannot run on the placeholder size of 1.

    Args:
        content: The content of the file.
        name: The model's name in error messages.
        keep_tensors: Keep the values of all tensors, to be read after a run. LiteRT's own
            kernels then run the operations, not a delegate, whose kernels round differently.

    Raises:
        CorruptFileError: if it is not a LiteRT model, or is damaged.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    if content[4:8] != b"TFL3":
        raise CorruptFileError(
            f"{name} is not a TFLite model: the identifier 'TFL3' is missing at byte 4. "
            f"Received {len(content)} bytes that begin with {content[:8]!r}."
        )
    options: dict[str, Any] = {}
    if keep_tensors:
        options = {
            "experimental_preserve_all_tensors": True,
            "experimental_op_resolver_type": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        }
    try:
        interpreter = Interpreter(model_content=content, num_threads=1, **options)
        if not any(None in input_shape(tensor) for tensor in interpreter.get_input_details()):
            interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().rstrip(".")
        raise CorruptFileError(
            f"The TFLite model in {name} ({len(content)} bytes) is damaged: {reason}. "
            "Convert or copy it again."
        ) from error
    return interpreter


def input_shape(tensor: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Return the shape of one sample that an input takes; None for free axes.

    Args:
        tensor: The interpreter's details of the input.
    """
    signature = tensor["shape_signature"]
    return tuple(None if axis < 0 else axis for axis in signature[1:].tolist())


def one_input_and_output(interpreter: "Interpreter", name: str) -> tuple[dict, dict]:
    """Return the details of a model's only input and output.

    Raises:
        InvalidArgumentError: if it has several.
    """
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    if len(inputs) != 1 or len(outputs) != 1:
        raise InvalidArgumentError(
            f"The TFLite model in {name} must have one input and one output. "
            f"Received: {len(inputs)} inputs and {len(outputs)} outputs."
        )
    return inputs[0], outputs[0]


def fit_input(interpreter: "Interpreter", name: str, shape: tuple[int, ...]) -> None:
    """Make an interpreter ready for one sample of a shape, by resizing free axes.

    Args:
        interpreter: An interpreter of a model with one input.
        name: The model's name in error messages.
        shape: Shape of one sample.

    Raises:
        InputShapeError: if the model does not take such samples.
        InvalidArgumentError: if it takes only batches of a fixed size.
    """
    tensor = interpreter.get_input_details()[0]
    expected = input_shape(tensor)
    if not shape_fits(shape, expected):
        raise InputShapeError(
            f"The TFLite model in {name} takes inputs of shape {expected}. Received: {shape}"
        )
    if tuple(tensor["shape"]) == (1, *shape) and None not in expected:
        return
    try:
        interpreter.resize_tensor_input(tensor["index"], (1, *shape))
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().rstrip(".")
        if tensor["shape_signature"][0] > 1:
            raise InvalidArgumentError(
                f"The TFLite model in {name} takes batches of {tensor['shape_signature'][0]} "
                f"inputs only ({reason}). Convert it with a batch size of 1."
            ) from error
        raise InputShapeError(
            f"The TFLite model in {name} cannot compute with inputs of shape {shape}: {reason}"
        ) from error


def output_step(interpreter: "Interpreter", output: Mapping[str, Any]) -> float:
    """Return the step between two values of an output; 0 if it is computed in floating point.

    Files with float outputs often compute in integers and convert the result.

    Args:
        interpreter: The interpreter.
        output: Its details of the output.
    """
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    makers = {
        int(index): int(step["inputs"][0])
        for step in interpreter._get_ops_details()
        if step["op_name"] in _UNCHANGING and len(step["inputs"])
        for index in step["outputs"]
    }
    index = output["index"]
    while index in makers and not np.issubdtype(tensors[index]["dtype"], np.integer):
        index = makers[index]
    is_integer = np.issubdtype(tensors[index]["dtype"], np.integer)
    return float(tensors[index]["quantization"][0]) if is_integer else 0.0


def quantised(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Return real numbers in the representation of one of the model's tensors.

    Args:
        values: Real numbers.
        tensor: The interpreter's details of the tensor.
    """
    if not np.issubdtype(tensor["dtype"], np.integer):
        return np.ascontiguousarray(values, tensor["dtype"])
    scale, zero = tensor["quantization"]
    limits = np.iinfo(tensor["dtype"])
    steps = np.round(values / scale) + zero if scale else np.round(values)
    return np.clip(steps, limits.min, limits.max).astype(tensor["dtype"])


def dequantised(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Return the real numbers that a tensor represents, float32 if it holds integers.

    Args:
        values: The tensor's values, in its shape or with a different size of the first axis.
        tensor: The interpreter's details of the tensor.
    """
    if not np.issubdtype(tensor["dtype"], np.integer):
        return values
    if not stands_for_numbers(tensor):
        return values.astype(np.float32)
    scale, zero = tensor["quantization"]
    parameters = tensor["quantization_parameters"]
    if len(parameters["scales"]) > 1:
        axis = parameters["quantized_dimension"]
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        scale, zero = (parameters[name].reshape(shape) for name in ("scales", "zero_points"))
    return ((values.astype(np.float32) - zero) * scale).astype(np.float32)


def stands_for_numbers(tensor: Mapping[str, Any]) -> bool:
    """Whether a tensor holds floats, or integers that represent real numbers.

    Args:
        tensor: The interpreter's details of the tensor.
    """
    if np.issubdtype(tensor["dtype"], np.integer):
        return bool(len(tensor["quantization_parameters"]["scales"]))
    return bool(np.issubdtype(tensor["dtype"], np.floating))
