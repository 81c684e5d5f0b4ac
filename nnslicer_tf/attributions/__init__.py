"""Attributions of an output to the inputs, and deletion curves to evaluate them.

    values = ATTRIBUTIONS["occlusion"](im, x, baseline, target)
    curve = deletion_curve(im, x, baseline, target, values)

These are the methods that slices are compared with: gradient × input, integrated gradients (exact
and sampled), Grad-CAM and occlusion. To add one, write a function with the arguments of
`Attribution`, and add a line to `ATTRIBUTIONS`.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from nnslicer_tf.attributions.deletion import DeletionCurve, deletion_curve
from nnslicer_tf.attributions.grad_cam import grad_cam
from nnslicer_tf.attributions.gradients import (
    exact_gradients,
    gradient_times_input,
    sampled_gradients,
)
from nnslicer_tf.attributions.occlusion import occlusion
from nnslicer_tf.instrument import InstrumentedModel

Attribution: TypeAlias = Callable[[InstrumentedModel, np.ndarray, np.ndarray, int], np.ndarray]
"""Function that takes the model, a sample, a baseline of the sample's shape and the index of a
logit, and returns a float64 array of the sample's shape."""

ATTRIBUTIONS: dict[str, Attribution] = {
    "gradient × input": gradient_times_input,
    "integrated gradients": exact_gradients,
    "integrated gradients, 50 samples": sampled_gradients,
    "Grad-CAM": grad_cam,
    "occlusion": occlusion,
}
"""The methods by name."""

__all__ = [
    "ATTRIBUTIONS",
    "Attribution",
    "DeletionCurve",
    "deletion_curve",
    "exact_gradients",
    "grad_cam",
    "gradient_times_input",
    "occlusion",
    "sampled_gradients",
]
