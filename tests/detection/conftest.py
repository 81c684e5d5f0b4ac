"""Detectors on a real model, and what FGSM makes of test images."""

from support.digits import fgsm, fitted, normal, slicer  # noqa: F401
