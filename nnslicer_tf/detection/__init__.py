"""Detect adversarial inputs from slices, and the attacks that make such inputs.

Adding a detector: subclass `Detector` (see its docstring); everything that fits, evaluates
and saves detectors then takes it.
"""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.detection._detector": ("Detector",),
    "nnslicer_tf.detection.effective_path": ("EffectivePath",),
    "nnslicer_tf.detection.evaluation": ("evaluate",),
    "nnslicer_tf.detection.feature_map": ("FeatureMap",),
    "nnslicer_tf.detection.slice_detector": ("PRESETS", "SliceDetector"),
    "nnslicer_tf.detection.trivial": ("FlagEverything", "LogitMargin"),
}
_SUBPACKAGES = ("attacks", "evaluation")

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: the attacks need neither scikit-learn nor the slicer.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES, _SUBPACKAGES)
