"""DeepXplore's experiments (Pei et al., SOSP 2017)."""
