"""LiteRT (TFLite) models: files, interpreters, and conversion of quantised integers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter


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
    """Return a single-threaded interpreter that is ready to run.

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
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().rstrip(".")
        raise CorruptFileError(
            f"The TFLite model in {name} ({len(content)} bytes) is damaged: {reason}. "
            "Convert or copy it again."
        ) from error
    return interpreter


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
