"""How an operation propagates the CONTRIB of its outputs to its inputs (NNSlicer, Table 2).

The rules themselves stand in `nnslicer_tf.kinds`, with all else that is known of a kind; here
is what one needs to write a rule.
"""

from nnslicer_tf.kinds.kind import Neurons, Node, Rule, RuleFunction, register_rule

__all__ = ["Neurons", "Node", "Rule", "RuleFunction", "register_rule"]
