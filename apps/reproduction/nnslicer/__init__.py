"""The NNSlicer paper's experiments (Zhang et al., ESEC/FSE 2020)."""

__all__: list[str] = []
