"""Experiments with DeepBase (Sellam et al., SIGMOD 2019)."""
