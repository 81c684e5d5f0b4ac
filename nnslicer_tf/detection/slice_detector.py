"""`SliceDetector`: adversarial inputs by their slices (NNSlicer, section 6.1).

Each input is sliced for C = (ξ, M(ξ)); F learns from normal inputs which slice belongs to
which class; an input whose slice does not fit the model's prediction is flagged.

Presets, the ways to judge:

- `"paper"`: a decision tree F on the synapses of all kernels; flag if F(slice) ≠ M(ξ).
- `"margin"`: ridge regression F on the synapses of the convolutions; flag if F's margin
  for M(ξ) is lower than that of most normal inputs: the paper's rule with a reject option.
- `"fused"`: three suspicions whose p-values among normal inputs are multiplied: the
  Mahalanobis distance of the last convolution's slice to those of its class; the ridge
  margins of the local slices of up to five convolutions, which do not depend on the
  prediction; and the model's own logit margin, unusually small or unusually large.
- `"stable"`: the same; the margin of the prediction when the image is mirrored, shifted by
  a pixel or zoomed, and how far it falls there; the texture: how unusual the strengths
  of the channels of the second and third convolution are for the predicted class; and the
  spectrum: how unusual the image's power at each frequency is for it. For images of things
  that look alike from left and right; on digits a mirror tells little.

Limits: the synapses near the output reveal the prediction, F copies it from there and then
flags nothing; an attacker who knows the detector has not been considered. Cost: slicing,
about three passes of the model at θ = 0, far more at θ > 0; memory: a float32 for each
synapse that is taken and each input.
"""

import hashlib
from typing import Any

import numpy as np

from nnslicer_tf._names import check_name
from nnslicer_tf.detection import _presets
from nnslicer_tf.detection._detector import Detector
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Slicer

__all__ = ["PRESETS", "SliceDetector"]

PRESETS = tuple(_presets.JUDGES)


class SliceDetector(Detector):
    """Flags inputs whose slice does not fit the model's prediction.

    Args:
        slicer: slices of the watched model; where its own θ is another, one like it is made.
        preset: `"paper"`, `"margin"`, `"fused"` or `"stable"`, see this module.
        theta: threshold θ of the slices.
        kernels: names of the kernels whose synapses are taken, for `"fused"` and
            `"stable"` of its convolutions; None: those of the preset.
        max_synapses: of a kernel with more synapses, so many are drawn at random.
        alpha: penalty of the ridge regressions.
        false_positive_rate: share of normal inputs that may be flagged; `"paper"` has a
            rule of its own and takes no notice.
        held_out: share of the normal inputs that sets the threshold.
        rng: draws the held-out inputs and the synapses.
    """

    source = "slicer"

    def __init__(
        self,
        slicer: Slicer,
        preset: str = "margin",
        *,
        theta: float = 0.0,
        kernels: tuple[str, ...] | None = None,
        max_synapses: int = 4096,
        alpha: float = 1e3,
        false_positive_rate: float = 0.05,
        held_out: float = 0.25,
        rng: int | np.random.Generator = 0,
    ) -> None:
        self.slicer = slicer
        self.preset = preset
        self.theta = theta
        self.kernels = kernels
        self.max_synapses = max_synapses
        self.alpha = alpha
        self.false_positive_rate = false_positive_rate
        self.held_out = held_out
        self.rng = rng

    @property
    def im(self) -> InstrumentedModel:
        """The watched model."""
        return self.slicer.im

    @property
    def fixed_threshold(self) -> float | None:
        """Disagreement is 0 or 1; the other presets have no threshold of their own."""
        return 0.5 if self.preset == "paper" else None

    def _learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        self._judge = self._new_judge()
        self._judge.learn(x, rng)

    def _suspicion(self, x: np.ndarray) -> np.ndarray:
        return self._judge(x)

    def _state(self) -> dict[str, np.ndarray]:
        return self._judge.arrays()

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        self._check_parameters()
        self._judge = self._new_judge()
        self._judge.restore(state)

    def _new_judge(self) -> Any:
        slicer = self.slicer
        if slicer.theta != self.theta:
            slicer = Slicer(
                *(slicer.im, slicer.profile, self.theta, slicer.granularity),
                *(slicer.workers, slicer.ray_address, slicer.progress),
            )
        return _presets.JUDGES[self.preset](slicer, self.kernels, self.max_synapses, self.alpha)

    def _identity(self) -> str:
        total = hashlib.sha256(self.im.fingerprint.encode())
        for mean in self.slicer.profile.means.values():
            total.update(np.ascontiguousarray(mean))
        return total.hexdigest()

    def _check_parameters(self) -> None:
        check_name("preset", self.preset, PRESETS)
        if not isinstance(self.max_synapses, (int, np.integer)) or self.max_synapses < 1:
            raise InvalidArgumentError(
                f"max_synapses must be a positive int. Received: {self.max_synapses!r}"
            )
        if not self.alpha > 0:
            raise InvalidArgumentError(f"alpha must be above 0. Received: {self.alpha!r}")
        for name in self.kernels or ():
            check_name("kernel", name, self.im.kernels)
