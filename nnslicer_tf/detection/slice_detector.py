"""`SliceDetector`: detect adversarial inputs by their slices (NNSlicer, section 6.1).

Each input is sliced for C = (ξ, M(ξ)). A classifier F learns from normal inputs which slice belongs
to which class; an input whose slice does not fit the prediction is flagged.

Limits: synapses near the output reveal the prediction, so F copies it and flags nothing; for
adaptive attacks, see `apps/challenge_detector.py`. Cost: slicing, about three passes of the model
at θ = 0, far more at θ > 0. Memory: one float32 per sampled synapse and input.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, ClassVar, Self

import numpy as np

from nnslicer_tf._checks import check_count, check_name, names_of
from nnslicer_tf.detection.evidence import Evidence, convolutions, with_local_slices
from nnslicer_tf.detection.images import SPECTRA, VIEWS
from nnslicer_tf.detection.scorers import ClassDistance, RidgeMargin, Scorer, TreeDisagreement
from nnslicer_tf.detection.votes import Vote, VotingDetector
from nnslicer_tf.errors import InputRangeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.outputs import check_synapses
from nnslicer_tf.slicing import Slicer

MAX_DISTANCE_SYNAPSES = 2048  # bounds the size of the covariance matrix of `ClassDistance`
MAX_LOCAL_LAYERS = 5
MAX_JOINT_SYNAPSES = 1024  # synapses per layer, when those of several layers are combined
_TEXTURE_LAYERS = slice(1, 3)  # the first layer sees only colours, later ones the object
_EARLY_LAYERS = slice(1, 4)  # layers whose local slices are compared with those of the class
_ROUNDING = 1e-3  # values scaled to 0 … 1 may leave that range by this much

_FUSED = ("slice of the prediction", "local slices", "logit margin")

PRESETS: dict[str, tuple[str, ...]] = {
    "paper": ("tree",),
    "margin": ("margin",),
    "fused": _FUSED,
    "stable": (*_FUSED, "views", "texture", "spectrum"),
    "slices": ("local slices, early", "joint slices of views"),
    "lean": ("views", "texture", "joint slices of views"),
    "photos": ("local slices", "logit margin", "views", "spectrum", "residuals"),
}
"""Preset → the kinds of evidence that it fuses; see `SliceDetector.votes_of`."""

# Kinds that need images as inputs.
_OF_IMAGES = {"views", "texture", "spectrum", "residuals", "joint slices of views"}


@dataclass(eq=False, repr=False)
class SliceDetector(VotingDetector):
    """Flags inputs whose slice does not fit the model's prediction.

    A preset selects the kinds of evidence that score an input; several scores are fused by
    multiplying their p-values among normal inputs. The arguments are those of `VotingDetector`,
    and:

    Args:
        slicer: Makes the slices. It is fastest at θ = 0, for which the presets were developed.
        preset: A name from `PRESETS`:
            "paper": a decision tree F on the synapses of all kernels; flag if F(slice) ≠ M(ξ).
            "margin": a ridge regression on the synapses of the convolutions; flag if its margin for
                M(ξ) is unusually low: the paper's rule with a reject option.
            "fused": slices and the logit margin.
            "stable": also views, texture and spectrum; for images of objects whose mirror image is
                plausible, unlike digits.
            "slices": only slices that do not depend on the prediction.
            "lean": minimal evidence that detected as much as all of it, chosen on digits; for
                images.
            "photos": chosen on CIFAR-10; for images with values from 0 to 1.
        kernels: Names of the kernels whose synapses are used, for `"fused"` and `"stable"` those of
            convolutions; None: those of the preset.
        max_synapses: Number of synapses drawn at random from larger kernels.
    """

    source: ClassVar[str] = "slicer"
    names_parts: ClassVar[bool] = True

    slicer: Slicer
    preset: str = "margin"
    _: KW_ONLY
    kernels: tuple[str, ...] | None = None
    max_synapses: int = 4096

    @property  # type: ignore[misc]  # derived from the slicer, which `set_params` may replace
    def im(self) -> InstrumentedModel:  # type: ignore[override]  # is never set, see above
        """The instrumented model."""
        if not isinstance(self.slicer, Slicer):
            found = type(self.slicer).__name__
            raise InvalidArgumentError(f"slicer must be a Slicer of the model. Received: {found}")
        return self.slicer.im

    @property
    def _named(self) -> tuple[str, ...]:
        """The names in `kernels`, which may be an array; () for the preset's."""
        return () if self.kernels is None else names_of("kernels", self.kernels)

    def votes(self) -> list[Vote]:
        """Return the votes of the preset, some of which need a model of images."""
        kinds = PRESETS[self.preset]
        if len(self.im.input_shape) != 3 and not _OF_IMAGES.isdisjoint(kinds):
            raise InvalidArgumentError(
                "This detector mirrors and shifts images (height, width, channels). The model's "
                f"inputs have the shape {self.im.input_shape}: use 'fused'."
            )
        return [vote for kind in kinds for vote in self.votes_of(kind)]

    def votes_of(self, kind: str) -> list[Vote]:
        """Return the votes of a kind of evidence.

        Args:
            kind: "tree", "margin": a classifier on the slices for the prediction. "slice of the
                prediction": the distance of the last convolution's slice to those of its class.
                "local slices": ridge margins of the local slices of up to five convolutions. "local
                slices, early": distances of the local slices of up to three early convolutions.
                "joint slices of views": ridge margins of local slices at several depths, of the
                image and its views. "logit margin": unusually small or large. "views": the
                prediction's margin in views, and its drop there. "texture": how unusual the
                channels of the second and third convolution are for the class. "spectrum",
                "residuals": how unusual the image's frequencies and noise are for it.

        Raises InvalidArgumentError for an unknown kind.
        """
        check_name("evidence", kind, EVIDENCE)
        return EVIDENCE[kind](self)

    @property
    def convolutions(self) -> list[str]:
        """Names of the kernels to use, by default those of all convolutions, in order."""
        names = self._named or convolutions(self.im)
        return [name for name in self.im.kernels if name in names]

    def depths(self) -> list[str]:
        """Return kernels at several depths, those of windowed convolutions if there are any."""
        local = with_local_slices(self.im, self.convolutions)
        wide = [n for n in local if np.prod(self.im.kernels[n].shape[:-2]) > 1]
        return spread(wide or local)

    def slice_vote(
        self,
        name: str,
        kernels: Sequence[str],
        scorer: Scorer,
        most: int | None = None,
        *,
        group: str | None = None,
        two_sided: bool = False,
        **options: Any,
    ) -> Vote:
        """Return a vote on at most `most` synapses' slices; for options see `Evidence.slices`."""
        check_synapses(self.im)
        names = [name for name in self.im.kernels if name in kernels]
        sizes = [self.im.kernels[name].size for name in names]
        most = min(self.max_synapses, most or self.max_synapses)
        read = partial(_slices, kernels=names, **options)
        columns: dict[str, Any] = {"sizes": sizes, "most": most}
        return Vote(name, read, scorer, group=group, two_sided=two_sided, **columns)

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Fit the votes."""
        low, high = evidence.x.min(), evidence.x.max()
        scaled = low >= -_ROUNDING and high <= 1 + _ROUNDING
        if not scaled and any(vote.name == "residuals" for vote in self.votes()):
            raise InputRangeError(
                "The residuals of 'photos' need values from 0 to 1; the normal inputs range from "
                f"{low:.4g} to {high:.4g}. Scale them and let the model scale them back, "
                "InstrumentedModel(model, preprocess=…), or use 'stable'."
            )
        super().learn(evidence, rng)

    @property
    def shows_progress(self) -> bool:
        """Whether `fit` shows a progress bar, as the slicer does."""
        return self.slicer.progress

    def evidence(self, x: np.ndarray) -> Evidence:
        """Return the evidence of inputs, including slices."""
        return Evidence(self.im, x, self.slicer)

    def identity(self) -> str:
        """Return a hash of the model, the profile and the slicer's options."""
        total = hashlib.sha256(self.im.fingerprint.encode())
        for mean in self.slicer.profile.means.values():
            total.update(mean.tobytes())
        # Older files have only the defaults of these options.
        reading = self.slicer.relative_to, self.slicer.rectify
        neurons = self.slicer.granularity, self.slicer.product
        if reading != ("output", "sign"):
            total.update(repr(reading).encode())
        if neurons != ("activation", "value"):
            total.update(repr(neurons).encode())
        if self.slicer.contribution != "count":
            total.update(self.slicer.contribution.encode())
        return total.hexdigest()

    def check_parameters(self) -> None:
        """Reject unknown presets and kernels, and numbers out of range."""
        super().check_parameters()
        check_name("preset", self.preset, PRESETS)
        check_count("max_synapses", self.max_synapses)
        self.kernels = None if self.kernels is None else self._named  # of an iterator, once
        if self.kernels == ():
            raise InvalidArgumentError("`kernels` is empty. Omit it to use the preset's.")
        for name in self._named:
            check_name("kernel", name, self.im.kernels)

    def _parameters(self) -> dict[str, Any]:
        return super()._parameters() | {"theta": self.slicer.theta, "kernels": self._named or None}

    @classmethod
    def _with_parameters(cls, source: Slicer, parameters: dict[str, Any]) -> Self:
        if not isinstance(source, Slicer):
            raise InvalidArgumentError(
                f"A {cls.__name__} is loaded with its slicer: {cls.__name__}.load(path, slicer). "
                f"Received: {type(source).__name__}"
            )
        theta = parameters.pop("theta")
        if type(theta) not in (int, float) or not 0 <= theta < np.inf:  # None is the default
            raise ValueError(f"its θ is {theta!r}")
        return cls(source.at_theta(theta), **parameters)


def spread(items: Sequence[str], count: int = MAX_LOCAL_LAYERS) -> list[str]:
    """Return at most `count` items, evenly spread, including the first and the last."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[i] for i in places]


def _drop(view: Any, evidence: Evidence) -> Any:
    return evidence.view_margins(view) - evidence.margins


def _joint(detector: SliceDetector) -> list[Vote]:
    names, most = detector.depths(), MAX_JOINT_SYNAPSES
    ridge = partial(RidgeMargin, detector.alpha)
    views = (detector.slice_vote(f"joint, {v}", names, ridge(), most, view=v) for v in VIEWS)
    return [detector.slice_vote("joint", names, ridge(), most, two_sided=True, local=True), *views]


EVIDENCE: dict[str, Callable[[SliceDetector], list[Vote]]] = {
    "tree": lambda d: [d.slice_vote("tree", d._named or list(d.im.kernels), TreeDisagreement())],
    "margin": lambda d: [d.slice_vote("margin", d.convolutions, RidgeMargin(d.alpha))],
    "slice of the prediction": lambda d: [
        d.slice_vote("distance", d.convolutions[-1:], ClassDistance(), MAX_DISTANCE_SYNAPSES)
    ],
    "local slices": lambda d: [
        d.slice_vote(f"local {n}", [n], RidgeMargin(d.alpha), group="local", local=True)
        for n in spread(with_local_slices(d.im, d.convolutions))
    ],
    "local slices, early": lambda d: [
        d.slice_vote(f"early {n}", [n], ClassDistance(), MAX_DISTANCE_SYNAPSES, local=True)
        for n in with_local_slices(d.im, d.convolutions)[_EARLY_LAYERS]
    ],
    "joint slices of views": _joint,
    "logit margin": lambda _: [Vote("logits", attrgetter("margins"), two_sided=True)],
    "views": lambda _: [
        vote
        for view in VIEWS
        for vote in (
            Vote(f"view {view}", methodcaller("view_margins", view)),
            Vote(f"view {view} change", partial(_drop, view)),
        )
    ],
    "texture": lambda d: [
        Vote(f"texture {n}", methodcaller("channel_statistics", n), ClassDistance())
        for n in with_local_slices(d.im, convolutions(d.im))[_TEXTURE_LAYERS]
    ],
    "spectrum": lambda _: [
        Vote(f"spectrum {g}", methodcaller("spectrum", g), ClassDistance()) for g in SPECTRA
    ],
    "residuals": lambda _: [Vote("residuals", attrgetter("residuals"), ClassDistance())],
}
"""Kind of evidence → its votes; see `SliceDetector.votes_of`."""


def _slices(evidence: Evidence, columns: np.ndarray, **options: Any) -> Any:
    return evidence.slices(columns=columns, **options)  # its own, which attackers replace
