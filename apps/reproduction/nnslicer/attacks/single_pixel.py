"""The single-pixel attack (Narodytska and Kasiviswanathan, CVPR Workshops 2017, section 4).

It sets all channels of one pixel to the smallest or largest value. Cost: at most two images for
each pixel tried, for all images not yet misclassified.
"""

import numpy as np
from foolbox.distances import l0

from nnslicer_tf._checks import as_generator
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer.attacks.array_attack import ArrayAttack, Query


class SinglePixelAttack(ArrayAttack):
    """Try up to `max_pixels` pixels in random order, until one changes the prediction."""

    distance = l0

    def __init__(self, max_pixels: int = 256, rng: int | np.random.Generator = 0):
        if max_pixels < 1:
            raise InvalidArgumentError(f"max_pixels must be ≥ 1. Received: {max_pixels}")
        self.max_pixels = max_pixels
        self.rng = rng

    def perturb(self, query: Query, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the attacked images."""
        count, height, width, _ = x.shape
        order = np.tile(np.arange(height * width), (count, 1))
        order = as_generator(self.rng).permuted(order, axis=1)
        active = np.flatnonzero(query.predict(x) == labels)
        for pixel in order.T[: self.max_pixels]:
            rows, columns = np.divmod(pixel, width)
            for value in (query.low, query.high):
                if not len(active):
                    return x
                tried = x[active]
                tried[np.arange(len(active)), rows[active], columns[active]] = value
                misled = query.predict(tried) != labels[active]
                x[active[misled]] = tried[misled]
                active = active[~misled]
        return x
