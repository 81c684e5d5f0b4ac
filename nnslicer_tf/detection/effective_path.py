"""`EffectivePath`: detect adversarial inputs by their effective paths (Qiu et al., CVPR 2019).

Cost: that of `baselines.effective_paths`, for each input; memory: one float32 per sampled
synapse and input.
"""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf._environment import track
from nnslicer_tf.baselines.effective_path import check_share, effective_paths
from nnslicer_tf.detection.vector_detector import VectorDetector

# Samples whose paths are held in memory at once.
_SAMPLES = 512


@dataclass(eq=False, repr=False, kw_only=True)
class EffectivePath(VectorDetector):
    """Flags inputs whose effective path does not fit the model's prediction.

    Args:
        theta: The share θ of a neuron's value that its contributors must reach.
        progress: Show a progress bar.

    The other arguments are those of `VectorDetector`.
    """

    theta: float = 0.5
    progress: bool = True

    def width(self) -> int:
        """Return the number of synapses."""
        return sum(kernel.size for kernel in self.im.kernels.values())

    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return which synapses are on the paths; see `VectorDetector.vectors`."""
        starts = range(0, len(x), _SAMPLES)
        parts = [
            effective_paths(self.im, x[i : i + _SAMPLES], self.theta, progress=False)[
                :, columns
            ].toarray()
            for i in track(starts, "Effective paths", progress=self.progress)
        ]
        return np.concatenate(parts).astype(np.float32)

    def check_parameters(self) -> None:
        """Reject a θ out of range, and what `VectorDetector` rejects."""
        super().check_parameters()
        check_share(self.theta)
