"""Transformers: the effect of each kind of operation on exact lines.

Affine operations keep the points. Every other operation inserts points where it changes its
affine piece (section 2 and appendices F, G and H of Sotoudeh and Thakur, "Computing linear
restrictions of neural networks", NeurIPS 2019). The transformers are in `nnslicer_tf.kinds`,
with everything else about a kind.

To add an operation on single values, call `nnslicer_tf.register_layer` with a step of the kind
"elementwise" whose `Elementwise(name, knots=(…))` lists the inputs at which its slope changes.
For any other operation write a transformer, a callable from the `Curve`s of its inputs to that
of its output, and call `register_transformer`. A transformer that also has a method `pull` (see
`nnslicer_tf.kinds.PullsGradients`) takes part in the fast computation of gradients along lines.
"""

from nnslicer_tf.instrument import Operation
from nnslicer_tf.kinds import Transformer, kind_of, register_transformer
from nnslicer_tf.kinds.pointwise import not_piecewise_linear

__all__ = ["Transformer", "build_transformer", "register_transformer"]


def build_transformer(operation: Operation) -> Transformer:
    """Return the transformer of an operation, with a float64 copy of its weights.

    Raises:
        UnsupportedLayerError: if the operation is not piecewise linear.
    """
    build = kind_of(operation).line
    if build is None:
        raise not_piecewise_linear(operation)
    return build(operation)
