"""Other analyses beside slices: effective paths (Qiu et al., CVPR 2019).

The detectors that use them are in `nnslicer_tf.detection`, and can be had from here as well.
"""

import importlib

from nnslicer_tf.baselines.effective_path import effective_paths

__all__ = ["EffectivePath", "FeatureMap", "FlagEverything", "LogitMargin", "effective_paths"]


def __getattr__(name: str) -> object:
    """Return a detector, which stood here up to version 0.1."""
    if name in __all__:
        return getattr(importlib.import_module("nnslicer_tf.detection"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
