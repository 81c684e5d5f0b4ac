"""Selective protection: hide the synapses that target classes need most (NNSlicer, 6.3).

scores = pruning.scores(im, "nnslicer", x, y, classes=[3, 5])
hidden = select(scores, 0.5)  # half of the synapses of every layer
stolen = hide(model, hidden)  # what an attacker gets
report = simulate_attacks(model, hidden, train, test, targets=[3, 5])
"""

from nnslicer_tf._faces import explain_all
from nnslicer_tf.protection.hiding import Attacker, hide, select, simulate_attacks, steal

__all__ = ["Attacker", "hide", "select", "simulate_attacks", "steal"]
explain_all(globals())
