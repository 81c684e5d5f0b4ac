"""LiteRT (TFLite) models: files, interpreters, and conversion of quantised integers."""

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import cached_property
from io import StringIO
from typing import Any

import numpy as np

from nnslicer_tf import errors
from nnslicer_tf._checks import shape_fits
from nnslicer_tf._environment import hidden_stderr, keras
from nnslicer_tf._files import as_path

_UNCHANGING = ("DEQUANTIZE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS")
"""Steps whose output has the values of their first input."""


class LiteRTModel:
    """The content of a LiteRT file, with a single-threaded interpreter.

    Call `fit` before a run if axes of the input other than the first are free, since many steps
    cannot run on the placeholder size of 1. `model` is a path or the content of a file, and `name`
    the model's name in messages. With `keep_tensors`, all values can be read after a run; LiteRT's
    own kernels then run the operations, not a delegate, whose kernels round differently. With the
    `kernels` "reference", plain C++ loops without vector instructions run them.
    """

    def __init__(
        self,
        model: str | os.PathLike | bytes,
        name: str = "",
        keep_tensors: bool = False,
        kernels: str = "",
    ) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        if isinstance(model, bytes):
            self.content, self.name = model, name or "the given bytes"
        else:
            path = as_path(model)
            self.name = name or f"'{path}'"
            try:
                self.content = path.read_bytes()
            except OSError as error:
                reason = error.strerror or error
                raise errors.InvalidArgumentError(f"Cannot read {self.name}: {reason}.") from error
        if self.content[4:8] != b"TFL3":
            raise errors.CorruptFileError(
                f"{self.name} is not a TFLite model: the identifier 'TFL3' is missing at byte 4. "
                f"Received {len(self.content)} bytes that begin with {self.content[:8]!r}."
            )
        options: dict[str, Any] = {}
        if keep_tensors:
            options = {
                "experimental_preserve_all_tensors": True,
                "experimental_op_resolver_type": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            }
        if kernels == "reference":
            options["experimental_op_resolver_type"] = OpResolverType.BUILTIN_REF
        try:
            with hidden_stderr():  # it says which delegate it makes
                self.interpreter = Interpreter(model_content=self.content, num_threads=1, **options)
                inputs = self.interpreter.get_input_details()
                self._check_ranges()
                if all((one["shape_signature"][1:] >= 0).all() for one in inputs):
                    self.interpreter.allocate_tensors()
        except errors.InvalidArgumentError:
            raise
        except (ValueError, RuntimeError) as error:
            reason = str(error).strip().rstrip(".")
            raise errors.CorruptFileError(
                f"The TFLite model in {self.name} ({len(self.content)} bytes) is damaged: "
                f"{reason}. Convert or copy it again."
            ) from error

    def _check_ranges(self) -> None:
        """Raise InvalidArgumentError for a tensor of 8 bits without a range: running it aborts."""
        for tensor in self.interpreter.get_tensor_details():
            scales = tensor["quantization_parameters"]["scales"]
            if np.dtype(tensor["dtype"]).itemsize == 1 and len(scales) == 1 and scales[0] < 1e-8:
                raise errors.InvalidArgumentError(
                    f"Tensor '{tensor['name']}' of the TFLite model in {self.name} was 0 for all "
                    "samples of its calibration. It has no range, and LiteRT cannot run the model. "
                    "Calibrate it with samples like those it was trained on."
                )

    def ends(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the details of the only input and output, with their current shapes."""
        inputs = self.interpreter.get_input_details()
        outputs = self.interpreter.get_output_details()
        if len(inputs) != 1 or len(outputs) != 1:
            raise errors.InvalidArgumentError(
                f"The TFLite model in {self.name} must have one input and one output. "
                f"Received: {len(inputs)} inputs and {len(outputs)} outputs."
            )
        return inputs[0], outputs[0]

    @cached_property
    def tensors(self) -> dict[int, dict[str, Any]]:
        """The interpreter's details of all tensors, by index."""
        return {tensor["index"]: tensor for tensor in self.interpreter.get_tensor_details()}

    def fit(self, shape: tuple[int, ...]) -> None:
        """Make the interpreter ready for one sample of a shape, by resizing free axes."""
        tensor, _ = self.ends()
        signature = tensor["shape_signature"]
        expected = tuple(None if axis < 0 else axis for axis in signature[1:].tolist())
        if not shape_fits(shape, expected):
            raise errors.InputShapeError(
                f"The TFLite model in {self.name} takes inputs of shape {expected}. "
                f"Received: {shape}"
            )
        if tuple(tensor["shape"]) == (1, *shape) and None not in expected:
            return
        self.__dict__.pop("tensors", None)
        try:
            self.interpreter.resize_tensor_input(tensor["index"], (1, *shape))
            self.interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            reason = str(error).strip().rstrip(".")
            if signature[0] > 1:
                raise errors.InvalidArgumentError(
                    f"The TFLite model in {self.name} accepts only batches of {signature[0]} "
                    f"inputs ({reason}). Convert it with a batch size of 1."
                ) from error
            raise errors.InputShapeError(
                f"The TFLite model in {self.name} cannot compute with inputs of shape {shape}: "
                f"{reason}"
            ) from error

    def output_step(self) -> float:
        """Return the step between two output values; 0 if they are computed in floating point."""
        makers = {
            int(index): int(step["inputs"][0])
            for step in self.interpreter._get_ops_details()
            if step["op_name"] in _UNCHANGING and len(step["inputs"])
            for index in step["outputs"]
        }
        tensor = self.ends()[1]
        while tensor["index"] in makers and not np.issubdtype(tensor["dtype"], np.integer):
            tensor = self.tensors[makers[tensor["index"]]]
        is_integer = np.issubdtype(tensor["dtype"], np.integer)
        return float(tensor["quantization"][0]) if is_integer else 0.0


def quantised(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Return real numbers in the representation of a tensor, by the interpreter's details of it."""
    if not np.issubdtype(tensor["dtype"], np.integer):
        return np.ascontiguousarray(values, tensor["dtype"])
    scale, zero = tensor["quantization"]
    limits = np.iinfo(tensor["dtype"])
    steps = np.round(values / scale) + zero if scale else np.round(values)
    return np.clip(steps, limits.min, limits.max).astype(tensor["dtype"])


def dequantised(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Return the real numbers that integers represent, float32; floats are unchanged."""
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
    """Whether a tensor holds floats, or integers that represent real numbers."""
    if np.issubdtype(tensor["dtype"], np.integer):
        return bool(len(tensor["quantization_parameters"]["scales"]))
    return bool(np.issubdtype(tensor["dtype"], np.floating))


def to_litert(
    model: Any, convert: Callable[[Any], bytes] = lambda converter: converter.convert()
) -> bytes:
    """Return a Keras model as a LiteRT file, in float32 or as `convert` sets up the converter.

    The converter's output and warnings are suppressed. Raises UnsupportedLayerError if it fails.
    """
    if keras.backend.backend() != "tensorflow":
        raise errors.UnsupportedLayerError(
            "LiteRT files are written by TensorFlow's converter. Set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )
    import tensorflow as tf
    from tensorflow.lite.python.convert_phase import ConverterError

    with hidden_stderr(), redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return convert(tf.lite.TFLiteConverter.from_keras_model(model))
        except errors.NNSlicerError:
            raise
        except (ConverterError, RuntimeError, TypeError, ValueError) as error:
            raise errors.UnsupportedLayerError(
                f"TensorFlow cannot convert model '{model.name}' to LiteRT, for instance because "
                "it has recurrent layers, or an input with a name like 'class'. Convert it and "
                f"pass the file, or prune it instead. TensorFlow says: {str(error).strip()[-200:]}"
            ) from error
