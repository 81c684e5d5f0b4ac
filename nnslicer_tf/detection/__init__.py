"""Detect adversarial inputs from slices, and the attacks that make such inputs.

Adding a detector: subclass `Detector`, or `VotingDetector` or `VectorDetector`, which have
more of it (see their docstrings); everything that fits, evaluates and saves detectors then takes
it. Adding a way to score inputs: subclass `Scorer`, and give a preset of `SliceDetector` a
`Vote` with it (see `presets`).
"""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.detection.detector": ("Detector",),
    "nnslicer_tf.detection.effective_path": ("EffectivePath",),
    "nnslicer_tf.detection.evaluation": ("evaluate",),
    "nnslicer_tf.detection.evidence": ("Evidence",),
    "nnslicer_tf.detection.feature_map": ("FeatureMap",),
    "nnslicer_tf.detection.presets": ("PRESETS",),
    "nnslicer_tf.detection.scorers": (
        "ClassDistance",
        "Identity",
        "RidgeMargin",
        "Scorer",
        "TreeDisagreement",
    ),
    "nnslicer_tf.detection.slice_detector": ("SliceDetector",),
    "nnslicer_tf.detection.trivial": ("FlagEverything", "LogitMargin"),
    "nnslicer_tf.detection.vector_detector": ("VectorDetector",),
    "nnslicer_tf.detection.votes": ("DrawnColumns", "Features", "Vote", "VotingDetector"),
}
_SUBPACKAGES = ("attacks", "evaluation")

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: the attacks need neither scikit-learn nor the slicer.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES, _SUBPACKAGES)
