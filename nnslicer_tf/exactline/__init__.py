"""Exact restrictions of piecewise-linear networks to lines and planes (ExactLine, NeurIPS 2019)."""

from nnslicer_tf.exactline import acas
from nnslicer_tf.exactline.bends import BendingTransformer
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.disagreement import disagreement
from nnslicer_tf.exactline.gradients import Attributor, PathGradients, integrated_gradients
from nnslicer_tf.exactline.mean_attributions import mean_integrated_gradients
from nnslicer_tf.exactline.partition import LinearPartition
from nnslicer_tf.exactline.planar_boundary import PlanarBoundary
from nnslicer_tf.exactline.planar_partition import PlanarPartition
from nnslicer_tf.exactline.plane import PlaneWalker, exact_plane, rectangle
from nnslicer_tf.exactline.rules import register_transformer
from nnslicer_tf.exactline.walk import LineWalker, exact_line, exact_lines

__all__ = [
    "Attributor",
    "BendingTransformer",
    "Curve",
    "LineWalker",
    "LinearPartition",
    "PathGradients",
    "PlanarBoundary",
    "PlanarPartition",
    "PlaneWalker",
    "acas",
    "disagreement",
    "exact_line",
    "exact_lines",
    "exact_plane",
    "integrated_gradients",
    "mean_integrated_gradients",
    "rectangle",
    "register_transformer",
]
