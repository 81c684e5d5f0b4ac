"""Analyses that slices are compared with: effective paths (Qiu et al., CVPR 2019).

The baseline detectors are in `nnslicer_tf.detection`, and can also be imported from here.
"""

import importlib

from nnslicer_tf.baselines.effective_path import effective_paths

__all__ = ["EffectivePath", "FeatureMap", "FlagEverything", "LogitMargin", "effective_paths"]


def __getattr__(name: str) -> object:
    """Return a detector; up to version 0.1, detectors were defined here."""
    if name in __all__:
        return getattr(importlib.import_module("nnslicer_tf.detection"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
