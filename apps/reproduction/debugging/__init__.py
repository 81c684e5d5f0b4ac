"""Experiments on finding and mending causes of wrong outputs (NNSlicer, section 7)."""
