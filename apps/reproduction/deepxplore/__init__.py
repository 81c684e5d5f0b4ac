"""DeepXplore's experiments (Pei et al., SOSP 2017)."""

__all__: list[str] = []
