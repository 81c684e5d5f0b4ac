"""Experiments with DeepBase (Sellam et al., SIGMOD 2019)."""

__all__: list[str] = []
