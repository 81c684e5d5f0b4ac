"""A small classifier that gets some samples wrong."""

from support.failing import data, im, pairs, runs  # noqa: F401
