"""Experiments on classifiers of sentences (NNSlicer, section 7: other architectures)."""
