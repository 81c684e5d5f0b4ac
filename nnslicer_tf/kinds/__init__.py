"""What each kind of operation is, in one place for each kind.

A kind's module holds all that the analyses know of it: the slicing rule at both
granularities and at θ = 0, DeepLIFT's rule, the effective path, and how exact lines pass.

Adding a kind: a `Kind` with the entries that are known, given to `register_kind`; an analysis
whose entry is missing refuses the operation by name. `register_rule` and
`register_transformer` set single entries. Importing this package imports no Keras.
"""

from nnslicer_tf.kinds import merges, pointwise, pooling, routing, weighted_sum
from nnslicer_tf.kinds.curve import Curve
from nnslicer_tf.kinds.kind import (
    Kind,
    Layout,
    Neurons,
    Node,
    Rule,
    RuleFunction,
    Transformer,
    kind_of,
    register_kind,
    register_rule,
    register_transformer,
)

__all__ = [
    "Curve",
    "Kind",
    "Layout",
    "Neurons",
    "Node",
    "Rule",
    "RuleFunction",
    "Transformer",
    "kind_of",
    "merges",
    "pointwise",
    "pooling",
    "register_kind",
    "register_rule",
    "register_transformer",
    "routing",
    "weighted_sum",
]
