"""The NNSlicer paper's experiments (Zhang et al., ESEC/FSE 2020)."""
