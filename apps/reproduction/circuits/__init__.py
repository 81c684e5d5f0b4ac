"""Experiments with planted circuits: networks whose weights are known to compute a function."""

__all__: list[str] = []
