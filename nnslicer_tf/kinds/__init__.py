"""The kinds of operations, with all rules for a kind in one place.

A kind's module holds everything that the analyses know about it: the slicing rule at both
granularities and at θ = 0, DeepLIFT's rule, the effective path, and the transformer for exact
lines.

To add a kind, call `register_kind` with a `Kind` that has the entries that you need; an analysis
whose entry is missing raises an error that names the operation. `register_rule` and
`register_transformer` set single entries. Importing this package does not import Keras.
"""

from nnslicer_tf.kinds import (
    lookup,
    mask,
    merges,
    pointwise,
    pooling,
    product_sum,
    recurrence,
    routing,
    softmax,
    weighted_sum,
)
from nnslicer_tf.kinds.bends import BendingTransformer, Bends, GradientTransformer, PullsGradients
from nnslicer_tf.kinds.curve import Curve
from nnslicer_tf.kinds.kind import (
    Kind,
    Layout,
    Neurons,
    Node,
    Rule,
    RuleFunction,
    Transformer,
    aligned_mask,
    compile_rules,
    kind_of,
    register_kind,
    register_rule,
    register_transformer,
)
from nnslicer_tf.kinds.points import Points
from nnslicer_tf.kinds.steps import Steps

__all__ = [
    "BendingTransformer",
    "Bends",
    "Curve",
    "GradientTransformer",
    "Kind",
    "Layout",
    "Neurons",
    "Node",
    "Points",
    "PullsGradients",
    "Rule",
    "RuleFunction",
    "Steps",
    "Transformer",
    "aligned_mask",
    "compile_rules",
    "kind_of",
    "lookup",
    "mask",
    "merges",
    "pointwise",
    "pooling",
    "product_sum",
    "recurrence",
    "register_kind",
    "register_rule",
    "register_transformer",
    "routing",
    "softmax",
    "weighted_sum",
]
