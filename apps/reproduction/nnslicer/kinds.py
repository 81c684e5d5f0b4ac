"""Further kinds of evidence, which were tried for detectors and are in no preset.

`EVIDENCE` has them beside those of the presets, in the order in which the tables name them.
"""

from typing import Any, Self

import keras
import numpy as np

from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.detection import ClassDistance, Evidence, RidgeMargin, Vote
from nnslicer_tf.detection.evidence import margin
from nnslicer_tf.detection.presets import (
    EVIDENCE as IN_PRESETS,
)
from nnslicer_tf.detection.presets import (
    MAX_DISTANCE_SYNAPSES,
    MAX_JOINT_SYNAPSES,
    Options,
    Preset,
)
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.detection.votes import SliceFeatures
from nnslicer_tf.slicing import Criterion

# Samples whose distances are computed at once.
_ROWS = 1024
# Limits the scaling of features that hardly vary among the normal inputs.
MIN_SCALE = 1e-2
# Of the layers at several depths, those whose slices are scaled: the deepest.
_SCALED_LAYERS = slice(-2, None)


class ScaledRidgeMargin(RidgeMargin):
    """`RidgeMargin` on features standardised by their standard deviations among normal inputs.

    For features of several layers: a synapse's contribution is at most the number of positions at
    which its layer applies it, so layers with many positions would otherwise dominate.

    Args:
        alpha: The penalty of the regression, on the scaled features.
    """

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        scale = np.maximum(vectors.std(axis=0, dtype=np.float64), MIN_SCALE)
        super().fit(vectors / scale, predicted, classes)
        self.weights /= scale[:, None]
        return self


class RidgeFall(RidgeMargin):
    """The drop, from input to view, of a ridge regression's margin for the model's prediction.

    Each vector concatenates those of the input and of its view; the regression learns from the
    first. The score is its `RidgeMargin` on the view minus that on the input.

    Args:
        alpha: The penalty of the regression.
    """

    def fit(self, vectors: np.ndarray, predicted: np.ndarray, classes: int) -> Self:
        """Learn the regression; see `Scorer.fit`."""
        return super().fit(vectors[:, : vectors.shape[1] // 2], predicted, classes)

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the differences; see `Scorer.score`."""
        plain, view = np.split(vectors, 2, axis=1)
        return super().score(view, predicted) - super().score(plain, predicted)

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the differences; see `Scorer.smooth_score`."""
        half = vectors.shape[1] // 2
        of_view = super().smooth_score(vectors[:, half:], predicted)
        return of_view - super().smooth_score(vectors[:, :half], predicted)


class MembershipRatio(ClassDistance):
    """Log-likelihood ratio of the nearest other class and the predicted one.

    It is the `ClassDistance` of the predicted class minus the smallest of the other classes: twice
    the logarithm of a ratio of normal densities.
    """

    def score(self, vectors: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the differences; see `Scorer.score`."""
        centre, means = self._white_means()
        parts = []
        for first in range(0, len(vectors), _ROWS):
            white = (vectors[first : first + _ROWS] - centre) @ self.whitening
            parts.append([((white - mean) ** 2).sum(axis=1) for mean in means])
        return runner_up_margin(-np.concatenate(parts, axis=1).T, predicted)

    def smooth_score(self, vectors: Any, predicted: Any) -> Any:
        """Return the differences; see `Scorer.smooth_score`."""
        centre, means = (np.float32(one) for one in self._white_means())
        white = keras.ops.matmul(vectors - centre, np.float32(self.whitening))
        distances = keras.ops.sum(keras.ops.square(white[:, None] - means), axis=2)
        return margin(-distances, predicted)

    def _white_means(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of the class means, and their whitened differences from it."""
        centre = self.means.mean(axis=0)
        return centre, (self.means - centre) @ self.whitening


class _Pairs(SliceFeatures):
    """The local slices of the inputs, then those of a kind of view."""

    def read(self, evidence: Evidence, columns: np.ndarray) -> Any:
        """Return both beside each other."""
        pair = [
            evidence.slices(self.kernels, columns, local=True),
            super().read(evidence, columns),
        ]
        concatenate = np.concatenate if isinstance(pair[0], np.ndarray) else keras.ops.concatenate
        return concatenate(pair, axis=1)


class _Ratios(SliceFeatures):
    """The similarity of each kernel's slices for the two largest outputs.

    It is their cosine, and the logarithm of the ratio of their sizes (sums of absolute values).
    """

    differentiable = False

    def read(self, evidence: Evidence, columns: np.ndarray) -> np.ndarray:
        """Return two numbers for each kernel, (N, 2 · kernels)."""
        best = evidence.slices(self.kernels, columns)
        others = evidence.logits.copy()
        others[np.arange(len(evidence)), evidence.predicted] = -np.inf
        labels = others.argmax(axis=1)
        second = np.empty((len(evidence), len(columns)), np.float32)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            criterion = Criterion([int(label)])
            second[rows] = evidence.rows(rows).contributions(criterion, self.kernels, columns)
        ends = np.cumsum([evidence.im.kernels[name].size for name in self.kernels])
        blocks = np.searchsorted(ends, columns, side="right")
        features = []
        for block in np.unique(blocks):
            a, b = best[:, blocks == block], second[:, blocks == block]
            lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            totals = [np.abs(one).sum(axis=1) for one in (a, b)]
            features += [
                (a * b).sum(axis=1) / (lengths + 1e-9),
                np.log((totals[0] + 1) / (totals[1] + 1)),
            ]
        return np.stack(features, axis=1)


def _last_views(options: Options) -> list[Vote]:
    last = options.convolutions[-1]
    plain = options.slices([last], MAX_DISTANCE_SYNAPSES, local=True)
    votes = [Vote(f"plain {last}", plain, RidgeMargin(options.alpha), two_sided=True)]
    return votes + [
        Vote(
            f"plain {last}, {view}",
            options.slices([last], MAX_DISTANCE_SYNAPSES, view=view),
            RidgeMargin(options.alpha),
        )
        for view in VIEWS
    ]


def _falls(options: Options) -> list[Vote]:
    most = min(options.max_synapses, MAX_JOINT_SYNAPSES)
    return [
        Vote(
            f"fall, {view}",
            _Pairs(options.im, options.depths(), most, view=view),
            RidgeFall(options.alpha),
        )
        for view in VIEWS
    ]


def _membership(options: Options) -> list[Vote]:
    names = options.depths()
    slices = options.slices(names, MAX_DISTANCE_SYNAPSES // len(names), local=True)
    return [Vote("membership", slices, MembershipRatio())]


def _two_best(options: Options) -> list[Vote]:
    most = min(options.max_synapses, MAX_JOINT_SYNAPSES)
    return [Vote("two best outputs", _Ratios(options.im, options.depths(), most), ClassDistance())]


def _scaled(options: Options) -> list[Vote]:
    names = options.depths()[_SCALED_LAYERS]
    of_image = options.slices(names, MAX_JOINT_SYNAPSES, local=True)
    features = {"image": of_image}
    features |= {view: options.slices(names, MAX_JOINT_SYNAPSES, view=view) for view in VIEWS}
    return [
        Vote(
            f"scaled, {name}",
            slices,
            ScaledRidgeMargin(options.alpha),
            group="scaled",
            two_sided=slices is of_image,
        )
        for name, slices in features.items()
    ]


_ALL: dict[str, Preset] = {
    **IN_PRESETS,
    "local slices of views": _last_views,
    "falls of joint slices": _falls,
    "membership by local slices": _membership,
    "slices for the two best outputs": _two_best,
    "scaled slices of views": _scaled,
}

EVIDENCE: dict[str, Preset] = {
    name: _ALL[name]
    for name in (
        *("slice of the prediction", "local slices", "logit margin", "views", "texture"),
        *("spectrum", "local slices of views", "local slices, early", "joint slices of views"),
        *("falls of joint slices", "membership by local slices"),
        *("slices for the two best outputs", "residuals", "scaled slices of views"),
    )
}
"""Kind of evidence → its votes."""
