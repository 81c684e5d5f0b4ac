"""Attacks that aim at a model and the detector that watches it, and their sanity checks.

The user's door is `detection.challenge`; adding an attack: see `table`.
"""
