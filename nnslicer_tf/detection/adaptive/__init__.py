"""Adaptive attacks on a model and the detector that guards it, and their sanity checks.

The public entry point is `detection.challenge`; to add an attack, see `table`.
"""
