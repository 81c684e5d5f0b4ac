"""The presets of `SliceDetector`: by which votes an input is scored.

Adding a preset: write a function that returns votes, and enter it into `PRESETS`. Where there
are several votes, they are fused by their p-values.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from nnslicer_tf.detection._kernels import convolutions
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.detection.scorers import (
    ClassDistance,
    Identity,
    RidgeMargin,
    TreeDisagreement,
)
from nnslicer_tf.detection.spectra import SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.detection.votes import DrawnColumns, Features, Vote
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

Preset = Callable[[InstrumentedModel, Sequence[str] | None, int, float], list[Vote]]
"""From the model, `kernels`, `max_synapses` and `alpha` of the detector to its votes."""

# The covariance of `ClassDistance` is a matrix of so many rows and columns at most.
_DISTANCE_SYNAPSES = 2048
_LOCAL_LAYERS = 5
# Layers whose texture is scored: the first sees colours only, later ones the object.
_TEXTURE_LAYERS = slice(1, 3)
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


def _fused(
    im: InstrumentedModel, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> list[Vote]:
    chosen = kernels or convolutions(im)
    in_order = [name for name in im.kernels if name in chosen]
    few = min(max_synapses, _DISTANCE_SYNAPSES)
    local = [
        Vote(
            f"local {name}",
            _slices(im, [name], max_synapses, local=True),
            RidgeMargin(alpha),
            group="local",
        )
        for name in _spread(in_order, _LOCAL_LAYERS)
    ]
    return [
        Vote("distance", _slices(im, in_order[-1:], few), ClassDistance()),
        *local,
        Vote("logits", Features(lambda evidence: evidence.margins), Identity(), two_sided=True),
    ]


def _stable(
    im: InstrumentedModel, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> list[Vote]:
    _check_images(im, "stable")
    votes = _fused(im, kernels, max_synapses, alpha)
    for name in VIEWS:
        votes += [
            Vote(f"view {name}", Features(partial(_view_margins, view=name)), Identity()),
            Vote(f"view {name} change", Features(partial(_margin_change, view=name)), Identity()),
        ]
    votes += [
        _unusual(f"texture {name}", partial(_channel_statistics, kernel=name))
        for name in convolutions(im)[_TEXTURE_LAYERS]
    ]
    return votes + [_unusual(f"spectrum {name}", partial(_spectrum, name=name)) for name in SPECTRA]


def _slices_alone(
    im: InstrumentedModel, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> list[Vote]:
    _check_images(im, "slices")
    chosen = kernels or convolutions(im)
    in_order = [name for name in im.kernels if name in chosen]
    last, few = in_order[-1], min(max_synapses, _DISTANCE_SYNAPSES)
    plain = _slices(im, [last], few, local=True)
    votes = [Vote(f"local {last}", plain, RidgeMargin(alpha), two_sided=True)]
    votes += [
        Vote(f"local {last}, {view}", _view_slices(im, last, few, view), RidgeMargin(alpha))
        for view in VIEWS
    ]
    return votes + [
        Vote(f"distance {name}", _slices(im, [name], few, local=True), ClassDistance())
        for name in in_order[_EARLY_LAYERS]
    ]


def _check_images(im: InstrumentedModel, preset: str) -> None:
    """Refuse a model whose inputs are no images."""
    if len(im.input_shape) != 3:
        raise InvalidArgumentError(
            f"The preset '{preset}' mirrors and shifts images of shape (height, width, channels). "
            f"The model's inputs have shape {im.input_shape}: take 'fused'."
        )


def _view_slices(im: InstrumentedModel, kernel: str, most: int, view: str) -> DrawnColumns:
    """Return the mean local slice of a kind of view as features."""

    def read(evidence: Evidence, columns: np.ndarray) -> np.ndarray:
        found = [one.slices([kernel], columns, local=True) for one in evidence.views(view)]
        return sum(found[1:], start=found[0]) / len(found)

    return DrawnColumns([im.kernels[kernel].size], most, read)


def _slices(
    im: InstrumentedModel, kernels: Sequence[str], most: int, local: bool = False
) -> DrawnColumns:
    """Return slice vectors as features, of at most `most` synapses of each kernel."""
    in_order = [name for name in im.kernels if name in kernels]
    sizes = [im.kernels[name].size for name in in_order]
    return DrawnColumns(
        sizes, most, lambda evidence, columns: evidence.slices(in_order, columns, local)
    )


def _view_margins(evidence: Evidence, view: str) -> np.ndarray:
    """Return the margins in views; a function, as the evidence may be of arrays or tensors."""
    return evidence.view_margins(view)


def _channel_statistics(evidence: Evidence, kernel: str) -> np.ndarray:
    """Return the texture of a layer."""
    return evidence.channel_statistics(kernel)


def _spectrum(evidence: Evidence, name: str) -> np.ndarray:
    """Return the image's power by frequency."""
    return evidence.spectrum(name)


def _margin_change(evidence: Evidence, view: str) -> np.ndarray:
    """Return how far the prediction's margin falls from the input to its views."""
    return evidence.view_margins(view) - evidence.margins


def _unusual(name: str, statistics: Callable[[Evidence], np.ndarray]) -> Vote:
    """Return the vote on how unusual statistics of an input are for its predicted class."""
    return Vote(name, Features(statistics), ClassDistance())


def _spread(items: list[str], count: int) -> list[str]:
    """Return at most `count` items, evenly spread, the first and the last among them."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[i] for i in chosen]


PRESETS: dict[str, Preset] = {
    "paper": _paper,
    "margin": _margin,
    "fused": _fused,
    "stable": _stable,
    "slices": _slices_alone,
}
"""Preset → how its votes are made of the detector's arguments."""
