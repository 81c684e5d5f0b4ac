"""The NeuSemSlice paper's experiments (Zhou et al., TOSEM 2025)."""
