"""LiteRT (TFLite) models: files, interpreters, and what their integers stand for."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter


def read_content(model: str | os.PathLike | bytes) -> tuple[bytes, str]:
    """Return the content of a LiteRT model, and its name for messages.

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
    """Return an interpreter with one thread that is ready to run.

    Args:
        content: The content of the file.
        name: What the model is called in messages.
        keep_tensors: Keep the values of all tensors, to be read after a run. The operations are
            then run by LiteRT's own kernels, not by a delegate, which round otherwise.

    Raises:
        CorruptFileError: if it is no LiteRT model or a damaged one.
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
    """Return real numbers as a tensor of the file holds them.

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
    """Return the real numbers that a tensor of the file stands for, float32 if it has integers.

    Args:
        values: What the tensor holds, of its shape or with another size of the first axis.
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
    """Whether a tensor holds floats, or integers that stand for real numbers.

    Args:
        tensor: The interpreter's details of the tensor.
    """
    if np.issubdtype(tensor["dtype"], np.integer):
        return bool(len(tensor["quantization_parameters"]["scales"]))
    return bool(np.issubdtype(tensor["dtype"], np.floating))
