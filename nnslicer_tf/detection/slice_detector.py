"""`SliceDetector`: detect adversarial inputs by their slices (NNSlicer, section 6.1).

Each input is sliced for C = (ξ, M(ξ)); F learns from normal inputs which slice belongs to
which class; an input whose slice does not fit the model's prediction is flagged.

The presets define how an input is scored:

- `"paper"`: a decision tree F on the synapses of all kernels; flag if F(slice) ≠ M(ξ).
- `"margin"`: ridge regression F on the synapses of the convolutions; flag if F's margin
  for M(ξ) is lower than that of most normal inputs: the paper's rule with a reject option.
- `"fused"`: three anomaly scores whose p-values among normal inputs are multiplied: the
  Mahalanobis distance of the last convolution's slice to those of its class; the ridge
  margins of the local slices of up to five convolutions, which do not depend on the
  prediction; and the model's own logit margin, unusually small or unusually large.
- `"stable"`: the same, plus the margin of the prediction when the image is mirrored, shifted by
  a pixel or zoomed, and how far it drops there; the texture: how unusual the strengths
  of the channels of the second and third convolution are for the predicted class; and the
  spectrum: how unusual the image's power at each frequency is for it. For images of objects
  whose mirror image is plausible; on digits, mirroring says little.
- `"slices"`: only slices that do not depend on the prediction: the ridge margins of the
  combined local slices of up to five convolutions, of the image (unusually small or large)
  and of its mirrored, shifted and zoomed views, and the Mahalanobis distances of up to three early
  convolutions' local slices to those of the predicted class.
- `"lean"`: the same ridge margins, and the views and the texture of `"stable"`: a minimal set of
  evidence that detected as much as all of it, chosen on digits. For images.
- `"photos"`: the local slices and the logit margin of `"fused"`, the views and the spectrum of
  `"stable"`, and the image's residuals: how unusual its noise is. Chosen on CIFAR-10. For images
  with values from 0 to 1.

Limits: the synapses near the output reveal the prediction; given them, F copies the prediction
and flags nothing. For attackers who know the detector, see `challenge`. Cost: slicing,
about three passes of the model at θ = 0, far more at θ > 0; memory: one float32 per
synapse used by a vote and per input.
"""

import hashlib
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.detection.presets import PRESETS, Options
from nnslicer_tf.detection.votes import Vote, VotingDetector
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Slicer


@dataclass(eq=False, repr=False)
class SliceDetector(VotingDetector):
    """Flags inputs whose slice does not fit the model's prediction.

    It takes the arguments of `VotingDetector` and `Detector`, and:

    Args:
        slicer: Makes the slices of the watched model. It is fastest at θ = 0, for which the
            presets were developed.
        preset: A name from `PRESETS`: `"paper"`, `"margin"`, `"fused"`, `"stable"`,
            `"slices"`, `"lean"` or `"photos"`, see this module.
        kernels: Names of the kernels whose synapses are used, for `"fused"` and
            `"stable"` those of convolutions; None: those of the preset.
        max_synapses: Number of synapses drawn at random from larger kernels.
    """

    source: ClassVar[str] = "slicer"

    slicer: Slicer
    preset: str = "margin"
    _: KW_ONLY
    kernels: tuple[str, ...] | None = None
    max_synapses: int = 4096

    @property  # type: ignore[misc]  # derived from the slicer, which `set_params` may replace
    def im(self) -> InstrumentedModel:  # type: ignore[override]  # is never set, see above
        """The watched model."""
        return self.slicer.im

    @property
    def options(self) -> Options:
        """What presets make their votes from."""
        return Options(self.im, self.kernels, self.max_synapses, self.alpha)

    def votes(self) -> list[Vote]:
        """Return the votes of the preset; see `VotingDetector.votes`."""
        return PRESETS[self.preset](self.options)

    def evidence(self, x: Any, steepness: Any = 1.0) -> Evidence:
        """Return the evidence of inputs, slices included; see `Detector.evidence`."""
        return Evidence(self.im, x, self.slicer, steepness=steepness)

    def identity(self) -> str:
        """Return a hash of model, profile and the slicer's options; see `Detector.identity`."""
        total = hashlib.sha256(self.im.fingerprint.encode())
        for mean in self.slicer.profile.means.values():
            total.update(mean.tobytes())
        reading = self.slicer.relative_to, self.slicer.rectify
        if reading != ("output", "sign"):  # files of version 0.1 have no other
            total.update(repr(reading).encode())
        neurons = self.slicer.granularity, self.slicer.product
        if neurons != ("activation", "value"):  # absent from older files
            total.update(repr(neurons).encode())
        if self.slicer.contribution != "count":
            total.update(self.slicer.contribution.encode())
        return total.hexdigest()

    @property
    def differentiable(self) -> bool:
        """Whether all votes are, and slices are counts; see `Detector.differentiable`."""
        return self.slicer.contribution == "count" and super().differentiable

    def check_parameters(self) -> None:
        """Reject unknown presets and kernels, and numbers out of range."""
        super().check_parameters()
        check_name("preset", self.preset, PRESETS)
        check_count("max_synapses", self.max_synapses)
        for name in self.kernels or ():
            check_name("kernel", name, self.im.kernels)

    def _parameters(self) -> dict[str, Any]:
        return super()._parameters() | {"theta": self.slicer.theta}

    @classmethod
    def _with_parameters(cls, source: Slicer, parameters: dict[str, Any]) -> Self:
        theta = parameters.pop("theta")
        return cls(source.at_theta(theta), **parameters)
