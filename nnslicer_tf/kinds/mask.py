"""Masks: which elements of other operations are neurons. They carry no contributions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.kinds.kind import Kind, Node, register_kind


def _stop(node: Node, contribution: np.ndarray) -> list[None]:
    """Propagate nothing: a mask is treated as constant, whatever it is computed from."""
    return [None] * len(node.inputs)


def _stop_at_zero(
    operation: Operation, contribution: Any, signs: Sequence[Any], values: Mapping
) -> list[None]:
    return [None] * len(operation.inputs)


def _stop_rescale(
    operation: Operation, inputs: list, reference: list, multipliers: Any
) -> list[None]:
    return [None] * len(inputs)


register_kind(Kind("mask", move=_stop, at_zero=_stop_at_zero, rescale=_stop_rescale))
