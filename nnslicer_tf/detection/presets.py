"""The presets of `SliceDetector`: which votes score an input.

Adding a preset: write a function from `Options` to votes and add it to `PRESETS`; `votes_of`
returns the votes of kinds of evidence. Several votes are fused by their p-values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.detection.evidence import Evidence, convolutions
from nnslicer_tf.detection.scorers import ClassDistance, Identity, RidgeMargin, TreeDisagreement
from nnslicer_tf.detection.spectra import SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.detection.votes import Features, SliceFeatures, Vote
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

# Bounds the size of the covariance matrix of `ClassDistance`.
MAX_DISTANCE_SYNAPSES = 2048
MAX_LOCAL_LAYERS = 5
# Synapses per layer, when those of several layers are combined.
MAX_JOINT_SYNAPSES = 1024
# Layers whose texture is scored: the first sees only colours, later ones the object.
_TEXTURE_LAYERS = slice(1, 3)
# Layers whose local slices are compared with those of the class.
_EARLY_LAYERS = slice(1, 4)
# Values scaled to 0 … 1 may leave that range by this much.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Options:
    """The model and the arguments of a detector, from which votes are made.

    Attributes:
        im: The watched model.
        kernels: Names of the kernels to use; None: those of the preset.
        max_synapses: Number of synapses drawn from larger kernels.
        alpha: Penalty of the ridge regressions.
    """

    im: InstrumentedModel
    kernels: Sequence[str] | None
    max_synapses: int
    alpha: float

    @property
    def convolutions(self) -> list[str]:
        """Names of the kernels to use, by default those of all convolutions, in order."""
        names = self.kernels or convolutions(self.im)
        return [name for name in self.im.kernels if name in names]

    def slices(
        self, kernels: Sequence[str], most: int | None = None, **options: object
    ) -> SliceFeatures:
        """Return slice features of kernels, of at most `most` synapses per kernel."""
        most = min(self.max_synapses, most or self.max_synapses)
        return SliceFeatures(self.im, kernels, most, **options)  # type: ignore[arg-type]

    def depths(self) -> list[str]:
        """Return kernels at several depths, those of windowed convolutions if there are any."""
        wide = [n for n in self.convolutions if np.prod(self.im.kernels[n].shape[:-2]) > 1]
        return spread(wide or self.convolutions, MAX_LOCAL_LAYERS)


Preset = Callable[[Options], list[Vote]]
"""A function that returns new, unfitted votes."""


def _paper(options: Options) -> list[Vote]:
    kernels = options.kernels or list(options.im.kernels)
    return [Vote("tree", options.slices(kernels), TreeDisagreement())]


def _margin(options: Options) -> list[Vote]:
    return [Vote("margin", options.slices(options.convolutions), RidgeMargin(options.alpha))]


def _distance(options: Options) -> list[Vote]:
    slices = options.slices(options.convolutions[-1:], MAX_DISTANCE_SYNAPSES)
    return [Vote("distance", slices, ClassDistance())]


def _local(options: Options) -> list[Vote]:
    return [
        Vote(
            f"local {name}",
            options.slices([name], local=True),
            RidgeMargin(options.alpha),
            group="local",
        )
        for name in spread(options.convolutions, MAX_LOCAL_LAYERS)
    ]


def _logits(options: Options) -> list[Vote]:
    margins = Features(lambda evidence: evidence.margins)
    return [Vote("logits", margins, Identity(), two_sided=True)]


def _views(options: Options) -> list[Vote]:
    def change(evidence: Evidence, view: str) -> np.ndarray:
        """Return how far the margin of the prediction drops from the input to its views."""
        return evidence.view_margins(view) - evidence.margins

    votes = []
    for view in VIEWS:
        margins = Features(partial(Evidence.view_margins, view=view))
        changes = Features(partial(change, view=view))
        votes += [
            Vote(f"view {view}", margins, Identity()),
            Vote(f"view {view} change", changes, Identity()),
        ]
    return votes


def _texture(options: Options) -> list[Vote]:
    return [
        Vote(
            f"texture {name}",
            Features(partial(Evidence.channel_statistics, kernel=name)),
            ClassDistance(),
        )
        for name in convolutions(options.im)[_TEXTURE_LAYERS]
    ]


def _spectra(options: Options) -> list[Vote]:
    return [
        Vote(f"spectrum {name}", Features(partial(Evidence.spectrum, name=name)), ClassDistance())
        for name in SPECTRA
    ]


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


def _residuals(options: Options) -> list[Vote]:
    residuals = _Residuals(lambda evidence: evidence.residuals)
    return [Vote("residuals", residuals, ClassDistance())]


def _early(options: Options) -> list[Vote]:
    return [
        Vote(
            f"early {name}",
            options.slices([name], MAX_DISTANCE_SYNAPSES, local=True),
            ClassDistance(),
        )
        for name in options.convolutions[_EARLY_LAYERS]
    ]


def _joint(options: Options) -> list[Vote]:
    names, most = options.depths(), MAX_JOINT_SYNAPSES
    plain = options.slices(names, most, local=True)
    votes = [Vote("joint", plain, RidgeMargin(options.alpha), two_sided=True)]
    return votes + [
        Vote(f"joint, {view}", options.slices(names, most, view=view), RidgeMargin(options.alpha))
        for view in VIEWS
    ]


EVIDENCE: dict[str, Preset] = {
    "slice of the prediction": _distance,
    "local slices": _local,
    "logit margin": _logits,
    "views": _views,
    "texture": _texture,
    "spectrum": _spectra,
    "local slices, early": _early,
    "joint slices of views": _joint,
    "residuals": _residuals,
}
"""Kind of evidence → its votes, which the presets below fuse."""

# Kinds that need images as inputs.
_OF_IMAGES = {"views", "texture", "spectrum", "residuals", "joint slices of views"}


def votes_of(
    kinds: Sequence[str], options: Options, evidence: Mapping[str, Preset] = EVIDENCE
) -> list[Vote]:
    """Return the votes of kinds of evidence.

    Args:
        kinds: Names from `evidence`.
        options: The model and the detector's arguments.
        evidence: The kinds of evidence that there are.

    Raises:
        InvalidArgumentError: for an unknown kind, or one that needs images if the model does
            not take images.
    """
    for kind in kinds:
        check_name("evidence", kind, evidence)
    if len(options.im.input_shape) != 3 and not _OF_IMAGES.isdisjoint(kinds):
        raise InvalidArgumentError(
            "This detector mirrors and shifts images of shape (height, width, channels). "
            f"The model's inputs have shape {options.im.input_shape}: take 'fused'."
        )
    return [vote for kind in kinds for vote in evidence[kind](options)]


def spread(items: Sequence[str], count: int) -> list[str]:
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
"""Preset → function that makes its votes."""
