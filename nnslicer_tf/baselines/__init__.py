"""Other ways to tell adversarial inputs, with the interface of `SliceDetector`."""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.baselines.effective_path": ("EffectivePath", "effective_paths"),
    "nnslicer_tf.baselines.feature_map": ("FeatureMap",),
    "nnslicer_tf.baselines.trivial": ("FlagEverything", "LogitMargin"),
}

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: pruning needs the paths without scikit-learn.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
