"""Transformers: the effect of each kind of operation on exact lines.

Affine operations keep the points. Every other operation inserts points where it changes its
affine piece (section 2 and appendices F, G and H of Sotoudeh and Thakur, "Computing linear
restrictions of neural networks", NeurIPS 2019). One module for each
family of operations registers its transformers.

To add an operation on single values, call `nnslicer_tf.register_layer` with a step of the kind
"elementwise" whose `Elementwise(name, knots=(…))` lists the inputs at which its slope changes.
For any other operation write a transformer, a callable from the `Curve`s of its inputs to that
of its output, and call `register_transformer`. A transformer that also has a method `pull` (see
`exactline.bends.PullsGradients`) takes part in the fast computation of gradients along lines.
"""

from nnslicer_tf.exactline.rules import merges, pointwise, pooling, routing, weighted_sum
from nnslicer_tf.exactline.rules.table import (
    Transformer,
    build_transformer,
    not_piecewise_linear,
    register_transformer,
)

__all__ = [
    "Transformer",
    "build_transformer",
    "merges",
    "not_piecewise_linear",
    "pointwise",
    "pooling",
    "register_transformer",
    "routing",
    "weighted_sum",
]
