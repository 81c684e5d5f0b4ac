"""The surrogate of a detector: its scores as a function of tensors, with gradients.

Evidence of a tensor has the features of `detection.Evidence` as tensors. Its slices are those at
θ = 0, with a surrogate gradient for their signs (`SmoothSlices`), and the logarithms of p-values
are interpolated.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.detection import Evidence, LogitMargin, SliceDetector, VotingDetector
from nnslicer_tf.detection.calibration import p_values
from nnslicer_tf.detection.evidence import MIN_SPREAD, operation_of
from nnslicer_tf.detection.images import residual_shares, views
from nnslicer_tf.detection.scorers import ClassDistance, Identity, RidgeMargin
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.slicing import Criterion, Slicer
from nnslicer_tf.slicing.criterion import PREDICTED
from reproduction.adaptive.smooth import SmoothSlices

_SCORERS = (Identity, RidgeMargin, ClassDistance)  # take tensors
_MIN_VARIANCE = 1e-12  # added under the square root, whose slope at 0 is infinite
# Number of points between which -log p is interpolated linearly.
_KNOTS = 64
# Slope of -log p beyond the most anomalous normal input, as a share of the slope before it. There
# the p-value itself is constant and would give an attacker no gradient.
_SLOPE_BEYOND = 0.1


def is_differentiable(detector: Any) -> bool:
    """Return whether a fitted detector has a surrogate.

    A custom detector or scorer declares one by an attribute `differentiable`; its
    `anomaly_scores` or `score` must then take tensors and compute with `keras.ops`.
    """
    declared = getattr(detector, "differentiable", None)
    if declared is not None:
        return declared
    if isinstance(detector, SliceDetector) and detector.slicer.contribution != "count":
        return False
    if isinstance(detector, VotingDetector):
        scorers = [vote.scorer for vote in detector.votes_]
        return all(getattr(s, "differentiable", isinstance(s, _SCORERS)) for s in scorers)
    return isinstance(detector, LogitMargin)


def smooth_scores(detector: Any, x: Any, steepness: Any = 1.0) -> Any:
    """Return the surrogate's anomaly scores of a tensor, (N,) float32."""
    evidence = TensorEvidence(detector.im, x, getattr(detector, "slicer", None), steepness)
    overridden = type(detector).anomaly_scores is not VotingDetector.anomaly_scores
    if overridden or len(detector.votes_) == 1:
        return detector.anomaly_scores(evidence)
    return detector.fuse(evidence, detector.votes_, smooth_surprise)


class TensorEvidence(Evidence):
    """Evidence of a tensor of inputs, as float32 tensors with gradients.

    `steepness` is that of the slices' smoothed sign function, a number or a scalar tensor.
    """

    def __init__(
        self,
        im: ModelLike,
        x: Any,
        slicer: Slicer | None = None,
        steepness: Any = 1.0,
        logits: Any = None,
    ) -> None:
        super().__init__(im, x, slicer, logits=logits)
        self._steepness = steepness
        self._slices: dict[tuple, Any] = {}

    def views(self, view: str) -> Iterator[Evidence]:
        """Yield the evidence of the inputs' views."""
        for images in views(self.x, view):
            yield TensorEvidence(self.im, images, self.slicer, self._steepness, self.logits)

    def scores(self, x: Any) -> Any:
        """Return the scores of the classes."""
        name = self.im.logit_operation
        logits = self.im.compute(x, [name])[name]
        return ops.concatenate([-logits, logits], axis=1) if self.im.classes.is_binary else logits

    @cached_property
    def residuals(self) -> Any:
        """The images' noise by magnitude."""
        return residual_shares(self.x)

    def channel_statistics(self, kernel: str) -> Any:
        """Return statistics of the channels of a kernel's weighted sum."""
        name = operation_of(self.im, kernel)
        values = self.im.compute(self.x, [name])[name]
        values = ops.reshape(values, (-1, int(np.prod(values.shape[1:-1])), values.shape[-1]))
        spread = ops.log(ops.sqrt(ops.var(values, axis=1) + _MIN_VARIANCE) + MIN_SPREAD)
        bounds = [ops.max(values, axis=1), ops.min(values, axis=1)]
        return ops.concatenate([ops.mean(values, axis=1), spread, *bounds], axis=1)

    def slices(
        self,
        kernels: Sequence[str],
        columns: np.ndarray,
        local: bool = False,
        view: str | None = None,
    ) -> Any:
        """Return each input's CONTRIB of some synapses."""
        if view is not None:
            slices = [one.slices(kernels, columns, local=True) for one in self.views(view)]
            return sum(slices) / len(slices)
        # Computed whole, so that other columns need no second walk.
        key = (*kernels, local)
        if key not in self._slices:
            parts: list[tuple[Any, Sequence[str]]] = [(PREDICTED, kernels)]
            if local:
                of = {name: operation_of(self.im, name) for name in kernels}
                parts = [(Criterion({o: "all"}, until=o), [name]) for name, o in of.items()]
            rows = []
            for outputs, names in parts:
                of = SmoothSlices(self.slicer, outputs, names, self._steepness)(self.x)
                rows += [ops.reshape(of[name], (-1, self.im.kernels[name].size)) for name in names]
            self._slices[key] = ops.concatenate(rows, axis=1)
        return ops.take(self._slices[key], columns, axis=1)


def smooth_surprise(scores: Any, normal_scores: np.ndarray, two_sided: bool = False) -> Any:
    """Return -log p of a tensor of scores, (N,).

    It is interpolated linearly between some of the normal scores and keeps rising beyond the
    largest one, where p is constant, so that attacks have a gradient.
    """
    normal = np.sort(np.asarray(normal_scores, np.float64))
    if two_sided:
        high, low = smooth_surprise(scores, normal), smooth_surprise(-scores, -normal)
        return ops.maximum(0.0, ops.maximum(high, low) - np.float32(np.log(2)))
    # Evenly spaced ranks, plus each of the last ones, where the p-values are small.
    ranks = np.concatenate([np.linspace(0, len(normal) - 1, _KNOTS), len(normal) - np.arange(1, 9)])
    knots = np.unique(normal[np.clip(ranks, 0, len(normal) - 1).astype(int)])
    if len(knots) < 2:
        return ops.zeros_like(scores)
    values = -np.log(p_values(knots, normal))
    widths, slopes = np.diff(knots), np.diff(values) / np.diff(knots)
    beyond = _SLOPE_BEYOND * (values[-1] - values[0]) / (knots[-1] - knots[0])
    inside = ops.clip(scores[:, None] - np.float32(knots[:-1]), 0.0, np.float32(widths))
    rising = ops.relu(scores - np.float32(knots[-1])) * np.float32(beyond)
    return np.float32(values[0]) + ops.sum(inside * np.float32(slopes), axis=1) + rising
