"""Program analysis of neural networks on one instrumented view of a Keras model."""

from nnslicer_tf._lazy import lazy_exports

__version__ = "0.1.0"

_MODULES = {
    "nnslicer_tf.errors": (
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
    ),
    "nnslicer_tf.instrument": (
        "Activations",
        "InstrumentedModel",
        "Operation",
        "Step",
        "register_layer",
    ),
    "nnslicer_tf.slicing": (
        "Criterion",
        "Profile",
        "Rule",
        "Slice",
        "SliceSet",
        "Slicer",
        "register_rule",
    ),
}
_SUBPACKAGES = (
    *("baselines", "datasets", "deepbase", "deepxplore", "detection", "dflare", "engine"),
    *("exactline", "experiments", "instrument", "kinds", "protection", "pruning", "report"),
    *("semantic", "slicing", "zoo"),
)

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy, so that importing costs nothing and workers need not import Keras.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES, _SUBPACKAGES)
