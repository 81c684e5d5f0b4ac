"""Effective paths (Qiu et al., CVPR 2019), to compare slices with.

The detectors to compare with are in `nnslicer_tf.detection`.
"""

from nnslicer_tf.baselines.effective_path import effective_paths

__all__ = ["effective_paths"]
