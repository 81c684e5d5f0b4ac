"""Delete heads and synapses of a transformer, in the order of slices, gradients and others."""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "sentences", ("parts", "PartSettings", "parts:parts"))
