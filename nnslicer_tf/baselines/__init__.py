"""Analyses that slices are compared with: effective paths (Qiu et al., CVPR 2019).

The detectors that slices are compared with are in `nnslicer_tf.detection`.
"""

from nnslicer_tf.baselines.effective_path import effective_paths

__all__ = ["effective_paths"]
