"""The library's exceptions, all derived from `NNSlicerError`.

Messages say what was wrong, where, what was received and how to fix it.
"""


class NNSlicerError(Exception):
    """Base class of all errors raised by this library."""


class InvalidArgumentError(NNSlicerError, ValueError):
    """An argument has a value outside its documented range."""


class UnsupportedLayerError(NNSlicerError):
    """A layer of the model has no rule."""


class ProfileMismatchError(NNSlicerError):
    """A profile, checkpoint or slice was made from another model."""


class InputShapeError(NNSlicerError, ValueError):
    """Input data has a shape or dtype that the model does not accept."""


class SeveralInputsError(InputShapeError):
    """A model with several inputs is given to an analysis that supports only one."""


class InputRangeError(InputShapeError):
    """Input data has values outside the bounds given for the model."""


class PlausibilityWarning(UserWarning):
    """Data or a model look like a common mistake; the call goes on."""


class InputRangeWarning(PlausibilityWarning):
    """Input data differs in range from the profiled data: preprocessing may be missing."""


class NonFiniteActivationError(NNSlicerError):
    """Data or an activation is NaN or infinite."""


class CriterionError(NNSlicerError, ValueError):
    """A slicing criterion names neurons that the model does not have."""


class CorruptFileError(NNSlicerError):
    """A file is truncated, damaged or of the wrong kind."""


class MissingFileError(NNSlicerError, FileNotFoundError):
    """There is no such file."""


class DatasetUnavailableError(NNSlicerError):
    """A data set is neither prepared on this machine nor available for download."""


class MissingPackageError(NNSlicerError, ImportError):
    """An optional package that is not installed is needed."""


class WorkerError(NNSlicerError):
    """A worker failed repeatedly on the same piece of work."""


class TooManyRegionsError(NNSlicerError):
    """A plane has more regions than the requested maximum."""
