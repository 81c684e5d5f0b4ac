"""The kinds of operations, with all rules for a kind in one place.

A kind's module registers its `Kind`, which has what all analyses need to know, and a rule in each
of the tables `EXCLUSION` (slicing at any θ), `AT_ZERO` (slicing at θ = 0, on the backend) and
`MULTIPLIERS` (DeepLIFT and amounts). To add a kind, do the same in a module of your own; only
`register_rule`, which sets the slicing rules, is required. Other analyses have tables of their own:
`exactline.rules`. Importing this package does not import Keras.
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
    AT_ZERO,
    EXCLUSION,
    MULTIPLIERS,
    AtZero,
    Kind,
    Neurons,
    Node,
    Rule,
    kind_of,
    register_kind,
    register_rule,
)

__all__ = ["AT_ZERO", "EXCLUSION", "MULTIPLIERS", "AtZero", "Kind", "Neurons", "Node", "Rule"]
__all__ += ["kind_of", "register_kind", "register_rule"]
