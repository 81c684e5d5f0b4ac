"""Slices of scikit-learn's digits."""

from support.digits import normal, slicer  # noqa: F401
