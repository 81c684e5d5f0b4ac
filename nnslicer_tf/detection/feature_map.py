"""`FeatureMap`: detect adversarial inputs by the feature maps of the convolutional layers.

The naive baseline of NNSlicer, section 6.1: the same classifier as for slices, on the outputs
of the convolutions. Cost: a forward pass; memory: one float32 per feature and input.
"""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf.detection.evidence import convolutions
from nnslicer_tf.detection.vector_detector import VectorDetector


@dataclass(eq=False, repr=False)
class FeatureMap(VectorDetector):
    """Flags inputs whose feature maps do not fit the model's prediction.

    The arguments are those of `VectorDetector`.
    """

    def width(self) -> int:
        """Return the number of values in all feature maps."""
        return sum(self.im[name].size for name in self._layers())

    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the values; see `VectorDetector.vectors`."""
        parts = [
            np.concatenate([maps[name].reshape(len(maps[name]), -1) for name in maps], axis=1)[
                :, columns
            ]
            for maps in self.im.capture_batches(x, of=self._layers())
        ]
        return np.concatenate(parts)

    def _layers(self) -> list[str]:
        """Return the operations whose values are the feature maps: the weighted sums."""
        kernels = convolutions(self.im)
        return [o.name for o in self.im.operations if getattr(o.params, "name", None) in kernels]
