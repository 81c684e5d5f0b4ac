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

__version__ = "0.1.0"

__all__ = [
    "CorruptFileError",
    "CriterionError",
    "DatasetUnavailableError",
    "InputShapeError",
    "InvalidArgumentError",
    "NNSlicerError",
    "NonFiniteActivationError",
    "ProfileMismatchError",
    "UnsupportedLayerError",
    "WorkerError",
]
