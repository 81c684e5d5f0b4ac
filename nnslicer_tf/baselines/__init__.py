"""Other analyses beside slices: effective paths, and detectors with `SliceDetector`'s interface.

The detectors are part of `nnslicer_tf.detection`, and can be imported from here as well.
"""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.baselines.effective_path": ("effective_paths",),
    "nnslicer_tf.detection.effective_path": ("EffectivePath",),
    "nnslicer_tf.detection.feature_map": ("FeatureMap",),
    "nnslicer_tf.detection.trivial": ("FlagEverything", "LogitMargin"),
}

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: the paths need neither scikit-learn nor `nnslicer_tf.detection`.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
