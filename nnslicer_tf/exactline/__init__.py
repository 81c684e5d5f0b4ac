"""Exact linear restrictions of piecewise-linear networks (ExactLine, NeurIPS 2019)."""

from nnslicer_tf.exactline.partition import LinearPartition, Regions
from nnslicer_tf.exactline.transformers import Transformer, register_transformer
from nnslicer_tf.exactline.walk import LineWalker, exact_line, exact_lines, exact_polyline

__all__ = [
    "LineWalker",
    "LinearPartition",
    "Regions",
    "Transformer",
    "exact_line",
    "exact_lines",
    "exact_polyline",
    "register_transformer",
]
