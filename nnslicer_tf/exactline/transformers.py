"""How each kind of operation acts on lines: a registry of transformers.

Affine operations keep the points. Every other one inserts points where it changes its
affine piece between two neighbouring ones (section 2 and appendices F, G and H of
Sotoudeh and Thakur, "Computing linear restrictions of neural networks", NeurIPS 2019).

Adding an operation: one that acts on single values needs no more than
`nnslicer_tf.register_layer` with a step of the kind "elementwise" whose
`Elementwise(name, knots=(…))` tells where it changes its slope. For anything else write
a transformer, a callable from the `Curve`s of its inputs to that of its output, and call
`register_transformer`.
"""

from collections.abc import Callable

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.exactline._affine import Addition, AverageWindow, Scale, WeightedSum
from nnslicer_tf.exactline._bending import General, MaximumMerge, MaximumPool, Rectify
from nnslicer_tf.exactline._routing import IndexMap
from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.instrument import Affine, Elementwise, Operation

__all__ = ["Transformer", "build_transformer", "register_transformer"]

Transformer = Callable[..., Curve]
"""From the curves of an operation's inputs to the curve of its output."""


def register_transformer(kind: str, build: Callable[[Operation], Transformer]) -> None:
    """Say how operations of a kind act on lines.

    The last registration for a kind holds.

    Args:
        kind: The kind of an operation, one of your own or of `nnslicer_tf.instrument.KINDS`.
        build: From an `Operation` to its transformer; called once for every walker.
    """
    _BUILDERS[kind] = build


def build_transformer(operation: Operation) -> Transformer:
    """Return the transformer of an operation, with a float64 copy of its weights.

    Raises:
        UnsupportedLayerError: if it is not piecewise linear.
    """
    if operation.kind not in _BUILDERS:
        raise _not_piecewise_linear(operation)
    return _BUILDERS[operation.kind](operation)


def _elementwise(operation: Operation) -> Transformer:
    if not isinstance(operation.params, Elementwise) or operation.params.knots is None:
        raise _not_piecewise_linear(operation)
    return General(operation)


def _scale(operation: Operation) -> Transformer:
    if not isinstance(operation.params, Affine):
        raise _not_piecewise_linear(operation)
    return Scale(operation)


def _not_piecewise_linear(operation: Operation) -> UnsupportedLayerError:
    what = getattr(operation.params, "function", type(operation.keras_layer).__name__)
    return UnsupportedLayerError(
        f"Operation '{operation.name}' ({what}) is not piecewise linear, or nothing says so: "
        "exact lines exist only for piecewise-linear networks. If it is a function of your own "
        "that is, register its layer with a step Step('elementwise', function, "
        "Elementwise(name, knots=(…)))."
    )


_BUILDERS: dict[str, Callable[[Operation], Transformer]] = {
    "weighted_sum": WeightedSum,
    "average": AverageWindow,
    "maximum": MaximumPool,
    "rectify": Rectify,
    "elementwise": _elementwise,
    "scale": _scale,
    "add": Addition,
    "subtract": Addition,
    "maximum_merge": MaximumMerge,
    "minimum_merge": MaximumMerge,
    "routing": IndexMap,
}
