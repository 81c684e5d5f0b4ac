"""Detectors that NNSlicer is compared with (section 6.1).

- `FeatureMap`: the classifier of slices, on feature maps instead.
- `EffectivePath` (Qiu et al., CVPR 2019), at the cost of `effective_paths`.
- `FlagEverything`: trivial, like the package's `LogitMargin`; any other detector must beat them.

Memory: one float32 per input and feature or sampled synapse.
"""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import numpy as np

from nnslicer_tf._checks import check_count, check_name, check_number
from nnslicer_tf._environment import track
from nnslicer_tf.detection import Detector, Evidence, Scorer, Vote, VotingDetector
from nnslicer_tf.detection.evidence import convolutions
from nnslicer_tf.detection.scorers import RidgeMargin, TreeDisagreement
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.nnslicer.effective_path import effective_paths

_SAMPLES = 512  # whose paths are held in memory at once


@dataclass(eq=False, repr=False)
class VectorDetector(VotingDetector):
    """Base class of detectors on a feature vector; a subclass implements `vectors` and `width`.

    Args:
        im: The instrumented model.
        preset: `"paper"` (decision tree, F ≠ M) or `"margin"` (ridge regression with a threshold),
            as in `SliceDetector`.
        max_features: Number of elements drawn at random from longer vectors.
    """

    differentiable = False  # its features take no tensors

    im: InstrumentedModel
    preset: str = "paper"
    _: KW_ONLY
    max_features: int = 16_384

    @abstractmethod
    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the given columns of the inputs' feature vectors, (N, columns) float32."""

    @abstractmethod
    def width(self) -> int:
        """Return the length of the whole feature vector."""

    def votes(self) -> list[Vote]:
        """Return the single vote."""
        scorer: Scorer = RidgeMargin(self.alpha) if self.preset == "margin" else TreeDisagreement()
        return [Vote(self.preset, self._read, scorer, sizes=[self.width()], most=self.max_features)]

    def _read(self, evidence: Evidence, columns: np.ndarray) -> np.ndarray:
        return self.vectors(evidence.x, columns)

    def check_parameters(self) -> None:
        """Reject an unknown preset and numbers out of range."""
        super().check_parameters()
        check_name("preset", self.preset, ("paper", "margin"))
        check_count("max_features", self.max_features)


@dataclass(eq=False, repr=False)
class FeatureMap(VectorDetector):
    """Flags inputs whose feature maps do not fit the prediction; as `VectorDetector`."""

    def width(self) -> int:
        """Return the number of values in all feature maps."""
        return sum(self.im[name].size for name in self._layers())

    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the feature maps' values."""
        parts = []
        for maps in self.im.capture_batches(x, of=self._layers()):
            flat = [values.reshape(len(values), -1) for values in maps.values()]
            parts.append(np.concatenate(flat, axis=1)[:, columns])
        return np.concatenate(parts)

    def _layers(self) -> list[str]:
        kernels = convolutions(self.im)
        return [o.name for o in self.im.operations if getattr(o.params, "name", None) in kernels]


@dataclass(eq=False, repr=False, kw_only=True)
class EffectivePath(VectorDetector):
    """Flags inputs whose effective path does not fit the model's prediction.

    The arguments are those of `VectorDetector`, `progress`, and `theta`: the share θ of a neuron's
    value that its contributors must reach.
    """

    theta: float = 0.5
    progress: bool = True

    def width(self) -> int:
        """Return the number of synapses."""
        return sum(kernel.size for kernel in self.im.kernels.values())

    def vectors(self, x: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return 1 for synapses on the paths, else 0."""
        parts = []
        for i in track(range(0, len(x), _SAMPLES), "Effective paths", progress=self.progress):
            paths = effective_paths(self.im, x[i : i + _SAMPLES], self.theta, progress=False)
            parts.append(paths[:, columns].toarray())
        return np.concatenate(parts).astype(np.float32)

    def check_parameters(self) -> None:
        """Reject a θ out of range, as well as what `VectorDetector` rejects."""
        super().check_parameters()
        check_number("theta", self.theta, "(0, 1]")


@dataclass(eq=False, repr=False)
class FlagEverything(Detector):
    """Flags every input: precision 0.5, recall 1 and F1 2/3 on balanced data."""

    im: InstrumentedModel
    fixed_threshold = 0.5  # below every score

    def anomaly_scores(self, evidence: Evidence) -> np.ndarray:
        """Return ones."""
        return np.ones(len(evidence))
