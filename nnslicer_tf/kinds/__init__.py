"""The kinds of operations, with all rules for a kind in one place.

A kind's module holds its slicing rules, at both granularities and at θ = 0, and DeepLIFT's rule.
Other analyses have their own, keyed by kind: `exactline.rules`, `baselines.effective_path`.

To add a kind, call `register_kind` with a `Kind` that has the entries that you need; an analysis
whose entry is missing raises an error that names the operation. `register_rule` sets the slicing
rule alone. Importing this package does not import Keras.
"""

from nnslicer_tf.kinds import (  # noqa: F401  # each module registers its kinds
    lookup,
    pointwise,
    pooling,
    products,
    recurrence,
    routing,
    weighted_sum,
)
from nnslicer_tf.kinds.kind import (
    Kind,
    Neurons,
    Node,
    Rule,
    kind_of,
    register_kind,
    register_rule,
)

__all__ = [
    "Kind",
    "Neurons",
    "Node",
    "Rule",
    "kind_of",
    "register_kind",
    "register_rule",
]
