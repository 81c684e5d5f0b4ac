"""Slice sentences to find decisive words, compared with gradients and attention."""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "sentences", ("words", "WordSettings", "words:words"))
