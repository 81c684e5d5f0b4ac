"""Exact linear restrictions of piecewise-linear networks (ExactLine, NeurIPS 2019)."""

from nnslicer_tf.exactline import acas
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
from nnslicer_tf.exactline.partition import LinearPartition, Regions
from nnslicer_tf.exactline.transformers import Transformer, register_transformer
from nnslicer_tf.exactline.walk import LineWalker, exact_line, exact_lines, exact_polyline
from nnslicer_tf.kinds.curve import Curve

__all__ = [
    "Attributor",
    "Curve",
    "LineWalker",
    "LinearPartition",
    "PathGradients",
    "Regions",
    "Transformer",
    "acas",
    "approximate",
    "density",
    "exact_line",
    "exact_lines",
    "exact_polyline",
    "fgsm",
    "gradient_error",
    "integrated_gradients",
    "linearity",
    "random_neighbours",
    "register_transformer",
    "relative_error",
]
