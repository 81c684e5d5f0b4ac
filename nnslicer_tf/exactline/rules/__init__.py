"""Transformers: the effect of each kind of operation on exact lines, one module per family.

Affine operations keep the points; every other operation inserts points where it changes its affine
piece (Sotoudeh and Thakur, NeurIPS 2019, section 2 and appendices F, G and H).

To add an operation on single values, call `nnslicer_tf.register_layer` with a step of the kind
"elementwise" whose `Elementwise(name, knots=(…))` lists the inputs at which its slope changes. For
any other operation, call `register_transformer` with a callable from the inputs' `Curve`s to the
output's. With a method `pull` (see `exactline.bends`), it also propagates gradients.
"""

from nnslicer_tf.exactline.bends import register_transformer

# Each registers its transformers, which those of users replace.
from nnslicer_tf.exactline.rules import merges, pointwise, routing, windows  # noqa: F401

__all__ = ["register_transformer"]
