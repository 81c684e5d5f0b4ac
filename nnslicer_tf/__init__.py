"""Program analysis of neural networks on one instrumented view of a Keras model."""

from nnslicer_tf.errors import (
    CorruptFileError,
    CriterionError,
    DatasetUnavailableError,
    InputShapeError,
    InvalidArgumentError,
    NNSlicerError,
    NonFiniteActivationError,
    ProfileMismatchError,
    UnsupportedLayerError,
    WorkerError,
)
from nnslicer_tf.instrument import Activations, InstrumentedModel, Operation, Step, register_layer

__version__ = "0.1.0"

__all__ = [
    "Activations",
    "CorruptFileError",
    "CriterionError",
    "DatasetUnavailableError",
    "InputShapeError",
    "InstrumentedModel",
    "InvalidArgumentError",
    "NNSlicerError",
    "NonFiniteActivationError",
    "Operation",
    "ProfileMismatchError",
    "Step",
    "UnsupportedLayerError",
    "WorkerError",
    "register_layer",
]
