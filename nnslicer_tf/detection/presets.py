"""The presets of `SliceDetector`: which votes score an input.

Adding a preset: list kinds of evidence, or write a function that returns votes, and add it to
`PRESETS`. Several votes are fused by their p-values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nnslicer_tf._lazy import LazyModule
from nnslicer_tf._names import check_name
from nnslicer_tf.detection._kernels import convolutions
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.detection.scorers import (
    ClassDistance,
    Identity,
    MembershipRatio,
    RidgeFall,
    RidgeMargin,
    ScaledRidgeMargin,
    TreeDisagreement,
)
from nnslicer_tf.detection.spectra import SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.detection.votes import DrawnColumns, Features, Vote
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

ops: Any = LazyModule("keras.ops")

Preset = Callable[[InstrumentedModel, Sequence[str] | None, int, float], list[Vote]]
"""Maps the model, `kernels`, `max_synapses` and `alpha` of the detector to its votes."""

# Bounds the size of the covariance matrix of `ClassDistance`.
_DISTANCE_SYNAPSES = 2048
_LOCAL_LAYERS = 5
# Synapses per layer, when those of several layers are combined.
_JOINT_SYNAPSES = 1024
# Layers whose texture is scored: the first sees only colours, later ones the object.
_TEXTURE_LAYERS = slice(1, 3)
# Of the layers at several depths, those whose slices are scaled: the deepest.
_SCALED_LAYERS = slice(-2, None)
# Values scaled to 0 … 1 may leave that range by this much.
_ROUNDING = 1e-3
# Layers whose local slices are compared with those of the class.
_EARLY_LAYERS = slice(1, 4)


def _paper(
    im: InstrumentedModel, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> list[Vote]:
    chosen = kernels or list(im.kernels)
    return [Vote("tree", _slices(im, chosen, max_synapses), TreeDisagreement())]


def _margin(
    im: InstrumentedModel, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> list[Vote]:
    chosen = kernels or convolutions(im)
    return [Vote("margin", _slices(im, chosen, max_synapses), RidgeMargin(alpha))]


def _distance(given: "Given") -> list[Vote]:
    few = min(given.max_synapses, _DISTANCE_SYNAPSES)
    return [Vote("distance", _slices(given.im, given.kernels[-1:], few), ClassDistance())]


def _local(given: "Given") -> list[Vote]:
    return [
        Vote(
            f"local {name}",
            _slices(given.im, [name], given.max_synapses, local=True),
            RidgeMargin(given.alpha),
            group="local",
        )
        for name in _spread(given.kernels, _LOCAL_LAYERS)
    ]


def _logits(given: "Given") -> list[Vote]:
    return [Vote("logits", Features(lambda evidence: evidence.margins), Identity(), two_sided=True)]


def _views(given: "Given") -> list[Vote]:
    votes = []
    for name in VIEWS:
        votes += [
            Vote(f"view {name}", Features(partial(_view_margins, view=name)), Identity()),
            Vote(f"view {name} change", Features(partial(_margin_change, view=name)), Identity()),
        ]
    return votes


def _texture(given: "Given") -> list[Vote]:
    return [
        _unusual(f"texture {name}", partial(_channel_statistics, kernel=name))
        for name in convolutions(given.im)[_TEXTURE_LAYERS]
    ]


def _spectra(given: "Given") -> list[Vote]:
    return [_unusual(f"spectrum {name}", partial(_spectrum, name=name)) for name in SPECTRA]


def _residuals(given: "Given") -> list[Vote]:
    return [Vote("residuals", _Residuals(_residual_shares), ClassDistance())]


def _membership(given: "Given") -> list[Vote]:
    names = _depths(given)
    few = min(given.max_synapses, _DISTANCE_SYNAPSES // len(names))
    return [Vote("membership", _slices(given.im, names, few, local=True), MembershipRatio())]


def _two_best(given: "Given") -> list[Vote]:
    names, few = _depths(given), min(given.max_synapses, _JOINT_SYNAPSES)
    return [Vote("two best outputs", _ratios(given.im, names, few), ClassDistance())]


def _last_views(given: "Given") -> list[Vote]:
    last, few = given.kernels[-1], min(given.max_synapses, _DISTANCE_SYNAPSES)
    plain = _slices(given.im, [last], few, local=True)
    votes = [Vote(f"plain {last}", plain, RidgeMargin(given.alpha), two_sided=True)]
    return votes + [
        Vote(
            f"plain {last}, {view}",
            _view_slices(given.im, [last], few, view),
            RidgeMargin(given.alpha),
        )
        for view in VIEWS
    ]


def _early(given: "Given") -> list[Vote]:
    few = min(given.max_synapses, _DISTANCE_SYNAPSES)
    return [
        Vote(f"early {name}", _slices(given.im, [name], few, local=True), ClassDistance())
        for name in given.kernels[_EARLY_LAYERS]
    ]


def _joint(given: "Given") -> list[Vote]:
    names, few = _depths(given), min(given.max_synapses, _JOINT_SYNAPSES)
    plain = _slices(given.im, names, few, local=True)
    votes = [Vote("joint", plain, RidgeMargin(given.alpha), two_sided=True)]
    return votes + [
        Vote(f"joint, {view}", _view_slices(given.im, names, few, view), RidgeMargin(given.alpha))
        for view in VIEWS
    ]


def _falls(given: "Given") -> list[Vote]:
    names, few = _depths(given), min(given.max_synapses, _JOINT_SYNAPSES)
    return [
        Vote(f"fall, {view}", _fallen(given.im, names, few, view), RidgeFall(given.alpha))
        for view in VIEWS
    ]


def _scaled(given: "Given") -> list[Vote]:
    names, few = _depths(given)[_SCALED_LAYERS], min(given.max_synapses, _JOINT_SYNAPSES)
    of_image = _slices(given.im, names, few, local=True)
    features = {"image": of_image} | {v: _view_slices(given.im, names, few, v) for v in VIEWS}
    return [
        Vote(
            f"scaled, {name}",
            columns,
            ScaledRidgeMargin(given.alpha),
            group="scaled",
            two_sided=columns is of_image,
        )
        for name, columns in features.items()
    ]


@dataclass(frozen=True)
class Given:
    """The model and options from which votes are made.

    Attributes:
        im: The watched model.
        kernels: Names of the convolutions' kernels to use, in order.
        max_synapses: Number of synapses drawn from larger kernels.
        alpha: Penalty of the ridge regressions.
    """

    im: InstrumentedModel
    kernels: Sequence[str]
    max_synapses: int
    alpha: float


EVIDENCE: dict[str, Callable[[Given], list[Vote]]] = {
    "slice of the prediction": _distance,
    "local slices": _local,
    "logit margin": _logits,
    "views": _views,
    "texture": _texture,
    "spectrum": _spectra,
    "local slices of views": _last_views,
    "local slices, early": _early,
    "joint slices of views": _joint,
    "falls of joint slices": _falls,
    "membership by local slices": _membership,
    "slices for the two best outputs": _two_best,
    "residuals": _residuals,
    "scaled slices of views": _scaled,
}
"""Kind of evidence → its votes, which the presets below fuse."""

# Kinds that need images as inputs.
_OF_IMAGES = {name for name in EVIDENCE if "view" in name} | {
    *("texture", "spectrum", "residuals", "falls of joint slices"),
}


def votes_of(
    kinds: Sequence[str],
    im: InstrumentedModel,
    kernels: Sequence[str] | None,
    max_synapses: int,
    alpha: float,
) -> list[Vote]:
    """Return the votes of kinds of evidence.

    Args:
        kinds: Names from `EVIDENCE`.
        im: The watched model.
        kernels: Names of the kernels to use; None: those of all convolutions.
        max_synapses: Number of synapses drawn from larger kernels.
        alpha: Penalty of the ridge regressions.

    Raises:
        InvalidArgumentError: for an unknown kind, or one that needs images if the model does
            not take images.
    """
    for kind in kinds:
        check_name("evidence", kind, EVIDENCE)
    if len(im.input_shape) != 3 and not _OF_IMAGES.isdisjoint(kinds):
        raise InvalidArgumentError(
            "This detector mirrors and shifts images of shape (height, width, channels). "
            f"The model's inputs have shape {im.input_shape}: take 'fused'."
        )
    chosen = kernels or convolutions(im)
    given = Given(im, [name for name in im.kernels if name in chosen], max_synapses, alpha)
    return [vote for kind in kinds for vote in EVIDENCE[kind](given)]


def _depths(given: Given) -> list[str]:
    """Return kernels at several depths, those of windowed convolutions if there are any."""
    wide = [name for name in given.kernels if np.prod(given.im.kernels[name].shape[:-2]) > 1]
    return _spread(wide or given.kernels, _LOCAL_LAYERS)


def _view_slices(
    im: InstrumentedModel, kernels: Sequence[str], most: int, view: str
) -> DrawnColumns:
    """Return the features: mean local slices over a kind of view."""
    sizes = [im.kernels[name].size for name in kernels]
    return DrawnColumns(
        sizes, most, lambda evidence, columns: evidence.view_slices(kernels, columns, view)
    )


def _fallen(im: InstrumentedModel, kernels: Sequence[str], most: int, view: str) -> DrawnColumns:
    """Return the features: local slices of the inputs, then those of a kind of view."""

    def read(evidence: Any, columns: np.ndarray) -> Any:
        pair = [
            evidence.slices(kernels, columns, local=True),
            evidence.view_slices(kernels, columns, view),
        ]
        if isinstance(pair[0], np.ndarray):
            return np.concatenate(pair, axis=1)
        return ops.concatenate(pair, axis=1)

    return DrawnColumns([im.kernels[name].size for name in kernels], most, read)


def _ratios(im: InstrumentedModel, kernels: Sequence[str], most: int) -> DrawnColumns:
    """Return the features: similarity of each kernel's slices for the two largest outputs.

    It is their cosine, and the logarithm of the ratio of their sizes (sums of absolute values).
    """
    sizes = [im.kernels[name].size for name in kernels]
    ends = np.cumsum(sizes)

    def read(evidence: Evidence, columns: np.ndarray) -> np.ndarray:
        best = evidence.slices(kernels, columns)
        second = evidence.runner_up_slices(kernels, columns)
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

    return DrawnColumns(sizes, most, read, differentiable=False)


def _slices(
    im: InstrumentedModel, kernels: Sequence[str], most: int, local: bool = False
) -> DrawnColumns:
    """Return the features: slice vectors, of at most `most` synapses per kernel."""
    in_order = [name for name in im.kernels if name in kernels]
    sizes = [im.kernels[name].size for name in in_order]
    return DrawnColumns(
        sizes, most, lambda evidence, columns: evidence.slices(in_order, columns, local)
    )


def _view_margins(evidence: Evidence, view: str) -> np.ndarray:
    """Return the margins in views, from evidence on arrays or tensors."""
    return evidence.view_margins(view)


def _channel_statistics(evidence: Evidence, kernel: str) -> np.ndarray:
    """Return the texture of a layer."""
    return evidence.channel_statistics(kernel)


def _spectrum(evidence: Evidence, name: str) -> np.ndarray:
    """Return the power spectrum of the images."""
    return evidence.spectrum(name)


def _residual_shares(evidence: Evidence) -> np.ndarray:
    """Return the residuals of the images."""
    return evidence.residuals


class _Residuals(Features):
    """Residuals, measured in grey levels of images with values from 0 to 1."""

    def check(self, evidence: Evidence) -> None:
        """Reject normal inputs with other values."""
        low, high = evidence.x.min(), evidence.x.max()
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            raise InputRangeError(
                "The residuals of 'photos' are of images with values from 0 to 1; the normal "
                f"inputs range from {low:.4g} to {high:.4g}. Scale them and let the model scale "
                "them back, InstrumentedModel(model, preprocess=…), or take 'stable'."
            )


def _margin_change(evidence: Evidence, view: str) -> np.ndarray:
    """Return how far the margin of the prediction drops from the input to its views."""
    return evidence.view_margins(view) - evidence.margins


def _unusual(name: str, statistics: Callable[[Evidence], np.ndarray]) -> Vote:
    """Return the vote on how unusual statistics of an input are for its predicted class."""
    return Vote(name, Features(statistics), ClassDistance())


def _spread(items: Sequence[str], count: int) -> list[str]:
    """Return at most `count` items, evenly spread, the first and the last among them."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[i] for i in chosen]


_FUSED = ("slice of the prediction", "local slices", "logit margin")

FUSED: dict[str, tuple[str, ...]] = {
    "fused": _FUSED,
    "stable": (*_FUSED, "views", "texture", "spectrum"),
    "slices": ("local slices, early", "joint slices of views"),
    "lean": ("views", "texture", "joint slices of views"),
    "photos": ("local slices", "logit margin", "views", "spectrum", "residuals"),
}
"""Preset → the kinds of evidence that it fuses."""

PRESETS: dict[str, Preset] = {
    "paper": _paper,
    "margin": _margin,
    **{name: partial(votes_of, kinds) for name, kinds in FUSED.items()},
}
"""Preset → function that makes its votes from the detector's arguments."""
