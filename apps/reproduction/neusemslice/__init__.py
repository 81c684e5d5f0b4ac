"""The NeuSemSlice paper's experiments (Zhou et al., TOSEM 2025)."""

__all__: list[str] = []
