"""Names for writing a rule that propagates CONTRIB to an operation's inputs (NNSlicer, Table 2).

The rules themselves are in `nnslicer_tf.kinds`, together with everything else about a kind.
"""

from nnslicer_tf.kinds.kind import Neurons, Node, Rule, RuleFunction, register_rule

__all__ = ["Neurons", "Node", "Rule", "RuleFunction", "register_rule"]
