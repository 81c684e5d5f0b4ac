"""`EffectivePath`: adversarial inputs by their effective paths (Qiu et al., CVPR 2019).

Cost: that of `baselines.effective_paths`, for each input; memory: a float32 a synapse that
is taken and input.
"""

import numpy as np

from nnslicer_tf._progress import track
from nnslicer_tf.baselines.effective_path import check_share, effective_paths
from nnslicer_tf.detection.vector_detector import VectorDetector
from nnslicer_tf.instrument import InstrumentedModel

__all__ = ["EffectivePath"]


class EffectivePath(VectorDetector):
    """Flags inputs whose effective path does not fit the model's prediction.

    Args:
        im: the watched model.
        preset: `"paper"` (decision tree, F ≠ M) or `"margin"` (ridge regression with a
            threshold), as of `SliceDetector`.
        theta: the share θ of a neuron's value that its contributors must reach.
        max_features: of models with more synapses, so many are drawn at random.
        alpha: penalty of the ridge regression.
        false_positive_rate: share of normal inputs that `"margin"` may flag.
        held_out: share of the normal inputs that sets the threshold.
        rng: draws the held-out inputs and the synapses.
        progress: show a progress bar.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        preset: str = "paper",
        *,
        theta: float = 0.5,
        max_features: int = 16_384,
        alpha: float = 1e3,
        false_positive_rate: float = 0.05,
        held_out: float = 0.25,
        rng: int | np.random.Generator = 0,
        progress: bool = True,
    ) -> None:
        self.im = im
        self.preset = preset
        self.theta = theta
        self.max_features = max_features
        self.alpha = alpha
        self.false_positive_rate = false_positive_rate
        self.held_out = held_out
        self.rng = rng
        self.progress = progress

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_share(self.theta)

    def _width(self) -> int:
        return sum(kernel.size for kernel in self.im.kernels.values())

    def _vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        parts = [
            effective_paths(self.im, x[i : i + 512], self.theta, progress=False)[
                :, columns
            ].toarray()
            for i in track(range(0, len(x), 512), "Effective paths", progress=self.progress)
        ]
        return np.concatenate(parts).astype(np.float32)
