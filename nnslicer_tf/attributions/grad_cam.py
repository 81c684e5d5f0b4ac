"""Grad-CAM (Selvaraju et al., ICCV 2017): where the last convolution supports an output.

The map has the last convolution's resolution, enlarged to the input's. Cost: one gradient.
"""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from keras import ops

from nnslicer_tf.attributions.target import TargetLike, resolve_target
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel


def grad_cam(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return a sample's Grad-CAM, which is non-negative and equal for all channels of a pixel.

    The maps are the convolution's activation if it follows directly, else (after a batch
    normalisation) the convolution itself. The baseline is not used.

    Raises:
        UnsupportedLayerError: if the model has no convolution over images.
    """
    target = resolve_target(im, target)
    if len(im.input_operations) > 1 or len(im.input_shape) != 3:
        shapes = ", ".join(map(str, im.input_shapes.values()))
        raise UnsupportedLayerError(
            f"Grad-CAM needs a model of images with a convolution. '{im.model.name}' takes samples "
            f"of shape {shapes}."
        )
    before = im.graph.ancestors([target.operation])[:-1]
    sums = [o.name for o in before if o.kind == "weighted_sum" and len(o.shape) == 3]
    if not sums:
        raise UnsupportedLayerError(
            "Grad-CAM needs a model of images with a convolution before the target. "
            f"'{im.model.name}' has none."
        )
    following = [o for o in before if o.inputs == (sums[-1],)]
    is_activated = len(following) == 1 and following[0].kind in ("rectify", "elementwise")
    name = following[0].name if is_activated else sums[-1]

    weights = target.weights(im[target.operation].size)

    def score(values: Mapping[str, Any]) -> Any:
        flat = ops.reshape(values[target.operation], (-1, len(weights)))
        return ops.sum(flat * weights, axis=1)

    batch = np.asarray(x)[None]
    maps = im.capture(batch, of=[name])[name][0].astype(np.float64)
    compiled = im.prepared(("grad-cam", target), lambda: score)  # the same object each time
    gradient = im.gradients(batch, of=compiled, wrt=[name], needs=[target.operation])[name][0]
    coarse = np.maximum((maps * gradient.mean(axis=(0, 1))).sum(axis=-1), 0)
    height, width, channels = im.input_shape
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.repeat(fine[..., None], channels, axis=-1)
