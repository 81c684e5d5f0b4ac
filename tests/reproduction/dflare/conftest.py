"""Pairs of models whose deviations are known in closed form."""

from support.deviating import pair, seeds  # noqa: F401
from support.small_images import inputs, model  # noqa: F401
