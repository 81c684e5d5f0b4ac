"""Adaptive attacks on a model and its detector, with sanity checks, for `detection.challenge`."""
