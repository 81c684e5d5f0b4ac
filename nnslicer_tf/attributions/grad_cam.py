"""Grad-CAM (Selvaraju et al., ICCV 2017): where the last convolution supports an output.

The result is coarse: a map of the last convolution's size, enlarged to the input's. Cost: one
gradient.
"""

import cv2
import numpy as np

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel


def grad_cam(im: InstrumentedModel, x: np.ndarray, baseline: np.ndarray, target: int) -> np.ndarray:
    """Return a sample's Grad-CAM, which is non-negative and equal for all channels of a pixel.

    The maps are taken after the convolution's activation if it follows directly; if a batch
    normalisation is in between, those of the convolution itself are used.

    Args:
        im: A model of images with a convolution.
        x: A sample `(height, width, channels)`.
        baseline: Not used.
        target: Index of the logit.

    Raises:
        UnsupportedLayerError: if the model has no convolution over images.
        InvalidArgumentError, InputShapeError, NonFiniteActivationError: for bad arguments.
    """
    name = _last_maps(im)
    batch = np.asarray(x)[None]
    maps = im.capture(batch, of=[name])[name][0].astype(np.float64)
    gradient = im.gradients(batch, of=target, wrt=[name])[name][0]
    coarse = np.maximum((maps * gradient.mean(axis=(0, 1))).sum(axis=-1), 0)
    height, width, channels = im.input_shape
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.repeat(fine[..., None], channels, axis=-1)


def _last_maps(im: InstrumentedModel) -> str:
    """Return the last operation with a kernel over images, or the activation directly after it."""
    sums = [o.name for o in im.operations if o.kind == "weighted_sum" and len(o.shape) == 3]
    if not sums or len(im.input_shape) != 3:
        raise UnsupportedLayerError(
            f"Grad-CAM needs a model of images with a convolution. '{im.model.name}' takes samples "
            f"of shape {im.input_shape}."
        )
    name = sums[-1]
    following = [o for o in im.operations if o.inputs == (name,)]
    if len(following) == 1 and following[0].kind in ("rectify", "elementwise"):
        return following[0].name
    return name
