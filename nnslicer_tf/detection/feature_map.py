"""`FeatureMap`: adversarial inputs by the feature maps of the convolutional layers.

The naive baseline of NNSlicer, section 6.1: the same classifier as for slices, on what the
convolutions put out. Cost: a forward pass; memory: a float32 a feature and input.
"""

import numpy as np

from nnslicer_tf.detection._slices import convolutions
from nnslicer_tf.detection.vector_detector import VectorDetector
from nnslicer_tf.instrument import InstrumentedModel

__all__ = ["FeatureMap"]


class FeatureMap(VectorDetector):
    """Flags inputs whose feature maps do not fit the model's prediction.

    Args:
        im: the watched model.
        preset: `"paper"` (decision tree, F ≠ M) or `"margin"` (ridge regression with a
            threshold), as of `SliceDetector`.
        max_features: of longer vectors, so many elements are drawn at random.
        alpha: penalty of the ridge regression.
        false_positive_rate: share of normal inputs that `"margin"` may flag.
        held_out: share of the normal inputs that sets the threshold.
        rng: draws the held-out inputs and the elements.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        preset: str = "paper",
        *,
        max_features: int = 16_384,
        alpha: float = 1e3,
        false_positive_rate: float = 0.05,
        held_out: float = 0.25,
        rng: int | np.random.Generator = 0,
    ) -> None:
        self.im = im
        self.preset = preset
        self.max_features = max_features
        self.alpha = alpha
        self.false_positive_rate = false_positive_rate
        self.held_out = held_out
        self.rng = rng

    def _width(self) -> int:
        return sum(self.im[name].size for name in self._layers())

    def _layers(self) -> list[str]:
        """Return the operations whose values are the feature maps: the weighted sums."""
        kernels = convolutions(self.im)
        return [o.name for o in self.im.operations if getattr(o.params, "name", None) in kernels]

    def _vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        parts = [
            np.concatenate([maps[name].reshape(len(maps[name]), -1) for name in maps], axis=1)[
                :, columns
            ]
            for maps in self.im.capture_batches(x, of=self._layers())
        ]
        return np.concatenate(parts)
