"""Exact restrictions of piecewise-linear networks to lines and planes (ExactLine, NeurIPS 2019)."""

from nnslicer_tf.exactline import acas
from nnslicer_tf.exactline.bends import BendingTransformer, Bends
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.disagreement import Disagreement, disagreement
from nnslicer_tf.exactline.gradients import (
    Attributor,
    PathGradients,
    approximate,
    integrated_gradients,
    relative_error,
)
from nnslicer_tf.exactline.linearity import (
    density,
    fgsm,
    gradient_error,
    linearity,
    random_neighbours,
)
from nnslicer_tf.exactline.margin import Margin
from nnslicer_tf.exactline.mean_attributions import mean_integrated_gradients
from nnslicer_tf.exactline.partition import LinearPartition, Regions
from nnslicer_tf.exactline.planar_boundary import PlanarBoundary
from nnslicer_tf.exactline.planar_partition import Edges, PlanarClasses, PlanarPartition
from nnslicer_tf.exactline.plane import (
    PlaneWalker,
    exact_boundary,
    exact_plane,
    exact_planes,
    rectangle,
)
from nnslicer_tf.exactline.rules import Transformer, register_transformer
from nnslicer_tf.exactline.walk import LineWalker, exact_line, exact_lines, exact_polyline

__all__ = [
    "Attributor",
    "BendingTransformer",
    "Bends",
    "Curve",
    "Disagreement",
    "Edges",
    "LineWalker",
    "LinearPartition",
    "Margin",
    "PathGradients",
    "PlanarBoundary",
    "PlanarClasses",
    "PlanarPartition",
    "PlaneWalker",
    "Regions",
    "Transformer",
    "acas",
    "approximate",
    "density",
    "disagreement",
    "exact_boundary",
    "exact_line",
    "exact_lines",
    "exact_plane",
    "exact_planes",
    "exact_polyline",
    "fgsm",
    "gradient_error",
    "integrated_gradients",
    "linearity",
    "mean_integrated_gradients",
    "random_neighbours",
    "rectangle",
    "register_transformer",
    "relative_error",
]
