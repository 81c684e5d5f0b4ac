"""The table of transformers, keyed by the kind of operation."""

from collections.abc import Callable
from typing import Any

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import Operation

Transformer = Callable[..., Any]
"""Maps the `Curve`s of an operation's inputs to the `Curve` of its output."""

_TRANSFORMERS: dict[str, Callable[[Operation], Transformer]] = {}


def register_transformer(kind: str, build: Callable[[Operation], Transformer]) -> None:
    """Register the transformer of a kind of operation for exact lines.

    Args:
        kind: The `kind` of `Step`s, your own or one of `nnslicer_tf.instrument.KINDS`.
        build: Maps an operation to its transformer, or raises UnsupportedLayerError if the
            operation is not piecewise linear; called once per walker.
    """
    _TRANSFORMERS[kind] = build


def build_transformer(operation: Operation) -> Transformer:
    """Return an operation's transformer, with a float64 copy of its weights, or raise an error."""
    if operation.kind not in _TRANSFORMERS:
        raise not_piecewise_linear(operation)
    return _TRANSFORMERS[operation.kind](operation)


def not_piecewise_linear(operation: Operation) -> UnsupportedLayerError:
    """Return the error that exact lines raise for an operation."""
    what = getattr(operation.params, "function", type(operation.keras_layer).__name__)
    return UnsupportedLayerError(
        f"Operation '{operation.name}' ({what}) is not piecewise linear: exact lines exist only "
        "for piecewise-linear networks. Replace a smooth function, such as tanh by hard_tanh. If "
        "it is your own function, its kinks could not be located exactly: it is curved, jumps, has "
        "kinks closer than 0.05, differs between units, or does not take float64. If it has kinks, "
        "register its layer with a step Step('elementwise', function, Elementwise(name, "
        "knots=(…)))."
    )
