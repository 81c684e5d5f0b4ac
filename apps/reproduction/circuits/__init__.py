"""Experiments with planted circuits: networks whose weights are known to compute a function."""
