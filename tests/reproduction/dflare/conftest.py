"""Pairs of models whose deviations are known in closed form."""

from support.deviating import pair, seeds  # noqa: F401
