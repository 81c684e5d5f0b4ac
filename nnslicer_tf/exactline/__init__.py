"""Exact restrictions of piecewise-linear networks to lines and planes (ExactLine, NeurIPS 2019)."""

from nnslicer_tf.exactline import acas
from nnslicer_tf.exactline.attributions import integrated_gradients
from nnslicer_tf.exactline.bends import register_transformer
from nnslicer_tf.exactline.disagreement import disagreement
from nnslicer_tf.exactline.gradients import Attributor
from nnslicer_tf.exactline.partition import LinearPartition
from nnslicer_tf.exactline.planar_partition import PlanarPartition
from nnslicer_tf.exactline.plane import PlaneWalker, exact_plane
from nnslicer_tf.exactline.walk import LineWalker, exact_line

__all__ = [
    "Attributor",
    "LineWalker",
    "LinearPartition",
    "PlanarPartition",
    "PlaneWalker",
    "acas",
    "disagreement",
    "exact_line",
    "exact_plane",
    "integrated_gradients",
    "register_transformer",
]
