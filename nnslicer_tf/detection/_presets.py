"""How the presets of `SliceDetector` judge an input; the classes behind its names.

A judge learns from normal inputs, gives a suspicion for each input, and hands out its
state as arrays. Adding a preset: write a judge and a line in `JUDGES`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnslicer_tf.detection._scores import (
    ClassDistance,
    RidgeMargin,
    Score,
    TreeDisagreement,
    runner_up_margin,
)
from nnslicer_tf.detection._slices import (
    SliceVectors,
    channel_statistics,
    convolutions,
    draw_columns,
    spread,
)
from nnslicer_tf.detection._spectrum import SPECTRA
from nnslicer_tf.detection._thresholds import fuse, p_values, two_sided
from nnslicer_tf.detection._views import VIEWS, View
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.slicing import Slicer

__all__ = ["JUDGES"]

# The covariance of `ClassDistance` is a matrix of so many rows and columns at most.
_DISTANCE_SYNAPSES = 2048
_LOCAL_LAYERS = 5
# Layers whose texture is judged: the first sees colours only, later ones the object.
_TEXTURE_LAYERS = slice(1, 3)
# Share of the normal inputs to learn from that only serve as reference of the p-values.
_REFERENCE = 0.25
_VOTES_OF_THEIR_OWN = ("view ", "texture ", "spectrum ")


class _SingleScore:
    """One score of one slice."""

    def __init__(
        self, slicer: Slicer, kernels: Sequence[str], max_synapses: int, score: Score, local: bool
    ) -> None:
        self._slicer, self._kernels, self._most = slicer, kernels, max_synapses
        self._score, self._local = score, local

    def learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        im = self._slicer.im
        self._vectors = self._features(draw_columns(im, self._kernels, self._most, rng))
        logits = im.logits(x)
        self._score.fit(self._vectors(x), logits.argmax(axis=1), logits.shape[1])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._score(self._vectors(x), self._slicer.im.logits(x).argmax(axis=1))

    def arrays(self) -> dict[str, np.ndarray]:
        return {"columns": self._vectors.columns, **self._score.arrays()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self._vectors = self._features(arrays["columns"])
        self._score.restore(arrays)

    def _features(self, columns: np.ndarray) -> SliceVectors:
        return SliceVectors(self._slicer, self._kernels, columns, self._local)


class _Unusual:
    """How unusual statistics of an input are for the predicted class.

    Args:
        slicer: Slicer of the watched model.
        statistics: Gives (N, features) of the inputs.
    """

    def __init__(self, slicer: Slicer, statistics: Callable[[np.ndarray], np.ndarray]) -> None:
        self._im, self._statistics = slicer.im, statistics
        self._score = ClassDistance()

    def learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        logits = self._im.logits(x)
        self._score.fit(self._statistics(x), logits.argmax(axis=1), logits.shape[1])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._score(self._statistics(x), self._im.logits(x).argmax(axis=1))

    def arrays(self) -> dict[str, np.ndarray]:
        return self._score.arrays()

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self._score.restore(arrays)


class _LogitMargin:
    """The model's own margin: nothing to learn."""

    def __init__(self, slicer: Slicer) -> None:
        self._slicer = slicer

    def learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Do nothing."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        logits = self._slicer.im.logits(x)
        return runner_up_margin(logits, logits.argmax(axis=1))

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Do nothing."""


class _ViewMargin:
    """The margin of the model's prediction in views of the input: nothing to learn.

    Args:
        slicer: Slicer of the watched model.
        view: What is looked at instead of the input.
        change: How far the margin falls from the input to its views, not the margin itself.
    """

    def __init__(self, slicer: Slicer, view: View, change: bool) -> None:
        self._slicer, self._view, self._change = slicer, view, change

    def learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Do nothing."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        im = self._slicer.im
        logits = im.logits(x)
        predicted = logits.argmax(axis=1)
        views = [runner_up_margin(im.logits(seen), predicted) for seen in self._view(x)]
        suspicion = np.mean(views, axis=0)
        return suspicion - runner_up_margin(logits, predicted) if self._change else suspicion

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Do nothing."""


class _Fused:
    """Class distance, local margins and logit margin, fused by their p-values."""

    def __init__(
        self, slicer: Slicer, kernels: Sequence[str] | None, max_synapses: int, alpha: float
    ) -> None:
        chosen = kernels or convolutions(slicer.im)
        in_order = [name for name in slicer.im.kernels if name in chosen]
        few = min(max_synapses, _DISTANCE_SYNAPSES)
        self._parts: dict[str, Any] = {
            "distance": _SingleScore(slicer, in_order[-1:], few, ClassDistance(), False)
        }
        for name in spread(in_order, _LOCAL_LAYERS):
            margin = _SingleScore(slicer, [name], max_synapses, RidgeMargin(alpha), True)
            self._parts[f"local {name}"] = margin
        self._parts["logits"] = _LogitMargin(slicer)

    def learn(self, x: np.ndarray, rng: np.random.Generator) -> None:
        order = rng.permutation(len(x))
        cut = round(len(x) * (1 - _REFERENCE))
        learned, reference = np.sort(order[:cut]), np.sort(order[cut:])
        self._reference = {}
        for name, part in self._parts.items():
            part.learn(x[learned], rng)
            self._reference[name] = part(x[reference])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        scores = {name: part(x) for name, part in self._parts.items()}
        p = {name: p_values(score, self._reference[name]) for name, score in scores.items()}
        local = [value for name, value in p.items() if name.startswith("local ")]
        margin = two_sided(scores["logits"], self._reference["logits"])
        others = [[v] for name, v in p.items() if name.startswith(_VOTES_OF_THEIR_OWN)]
        return fuse([[p["distance"]], local, [margin], *others])

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"reference|{name}": scores for name, scores in self._reference.items()}
        for name, part in self._parts.items():
            arrays |= {f"{name}|{key}": array for key, array in part.arrays().items()}
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self._reference = {name: arrays[f"reference|{name}"] for name in self._parts}
        for name, part in self._parts.items():
            start = f"{name}|"
            own = {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}
            part.restore(own)


class _Stable(_Fused):
    """The same, how the prediction holds in views of the image, its texture and its spectrum."""

    def __init__(
        self, slicer: Slicer, kernels: Sequence[str] | None, max_synapses: int, alpha: float
    ) -> None:
        if len(slicer.im.input_shape) != 3:
            raise InvalidArgumentError(
                "The preset 'stable' mirrors and shifts images of shape (height, width, "
                "channels). "
                f"The model's inputs have shape {slicer.im.input_shape}: take 'fused'."
            )
        super().__init__(slicer, kernels, max_synapses, alpha)
        for name, view in VIEWS.items():
            self._parts[f"view {name}"] = _ViewMargin(slicer, view, False)
            self._parts[f"view {name} change"] = _ViewMargin(slicer, view, True)
        in_order = [name for name in slicer.im.kernels if name in convolutions(slicer.im)]
        for name in in_order[_TEXTURE_LAYERS]:
            statistics = partial(channel_statistics, slicer.im, name)
            self._parts[f"texture {name}"] = _Unusual(slicer, statistics)
        for name, statistics in SPECTRA.items():
            self._parts[f"spectrum {name}"] = _Unusual(slicer, statistics)


def _paper(
    slicer: Slicer, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> _SingleScore:
    chosen = kernels or list(slicer.im.kernels)
    return _SingleScore(slicer, chosen, max_synapses, TreeDisagreement(), False)


def _margin(
    slicer: Slicer, kernels: Sequence[str] | None, max_synapses: int, alpha: float
) -> _SingleScore:
    chosen = kernels or convolutions(slicer.im)
    return _SingleScore(slicer, chosen, max_synapses, RidgeMargin(alpha), False)


JUDGES = {"paper": _paper, "margin": _margin, "fused": _Fused, "stable": _Stable}
