"""A small classifier that gets some samples wrong."""

from support.binary import binary  # noqa: F401
from support.failing import data, im, pairs, runs  # noqa: F401
