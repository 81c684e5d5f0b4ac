"""Four unstructured compressors: which weights to keep at a given density.

All keep the largest weights of each kernel; they differ in how many each kernel keeps.

| name | |
|---|---|
| `lamp` | the largest w² / Σ of w'² over the kernel's weights that are not smaller, over all kernels (Lee et al., "Layer-adaptive Sparsity for the Magnitude-based Pruning", ICLR 2021, eq. 2) |
| `global` | the largest |w| over all kernels (Morcos et al., "One Ticket to Win Them All", NeurIPS 2019) |
| `uniform_plus` | the same share of every kernel, but all of a first convolution, and at least 20 % of the last kernel (Gale et al., "The State of Sparsity in Deep Neural Networks", 2019, section 6.2) |
| `erk` | shares in proportion to (sum of the kernel's extents) / (product of them), none above 1 (Evci et al., "Rigging the Lottery", ICML 2020, section 3) |

`compress` iteratively removes a tenth of the remaining weights until the accuracy falls. As
all keep the largest weights and shares only shrink, a removed weight stays removed.
"""  # noqa: E501

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf._environment import track
from nnslicer_tf._numerics import largest
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning import apply_masks
from nnslicer_tf.semantic.restructuring import Masker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Kernels = Mapping[str, np.ndarray]
Masks = dict[str, np.ndarray]


def lamp(kernels: Kernels, density: float) -> Masks:
    """Keep the weights with the largest layer-adaptive scores.

    Args:
        kernels: Kernel name → weights, in topological order.
        density: Share of all weights to keep, 0 ≤ density ≤ 1.

    Returns:
        Kernel name → bool array of its shape, True for weights to keep.

    Raises:
        InvalidArgumentError: if the density is out of range.
    """
    return _RULES["lamp"].keep(kernels, density)


def global_magnitude(kernels: Kernels, density: float) -> Masks:
    """Keep the largest weights of all kernels together; arguments as in `lamp`."""
    return _RULES["global"].keep(kernels, density)


def uniform_plus(kernels: Kernels, density: float) -> Masks:
    """Keep the same share of every kernel, with two exceptions; arguments as in `lamp`.

    If the exceptions alone exceed a density, the other kernels keep nothing.
    """
    return _RULES["uniform_plus"].keep(kernels, density)


def erk(kernels: Kernels, density: float) -> Masks:
    """Keep shares by the Erdős-Rényi-kernel rule; arguments as in `lamp`."""
    return _RULES["erk"].keep(kernels, density)


COMPRESSORS: dict[str, Callable[[Kernels, float], Masks]] = {
    "lamp": lamp,
    "global": global_magnitude,
    "uniform_plus": uniform_plus,
    "erk": erk,
}
"""The compressors by name."""


@dataclass(frozen=True, eq=False)
class Compression(ShownAsTable):
    """The result of iterative compression.

    Attributes:
        model: The most compressed model before the accuracy fell, a copy of the given one if
            nothing could be removed; training and saving preserve its masks (see
            `pruning.apply_masks`).
        rate: Share of the original model's parameters that were removed.
        iterations: Number of iterations that led to `model`.
        accuracy: Its accuracy, as returned by `evaluate`.
        history: The accuracy after each iteration; the last is too low, unless the number of
            iterations ran out.
    """

    model: keras.Model
    rate: float
    iterations: int
    accuracy: float
    history: tuple[float, ...]

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per iteration: its number and accuracy."""
        import pandas as pd

        numbers = range(1, len(self.history) + 1)
        return pd.DataFrame({"iteration": numbers, "accuracy": self.history})

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the accuracy after each iteration; a dashed line marks the last one kept."""
        from nnslicer_tf.report.figures import new_axes

        ax = new_axes(ax)
        ax.plot(range(1, len(self.history) + 1), self.history, marker="o")
        ax.axvline(self.iterations, color="grey", linestyle="--", linewidth=0.8)
        ax.set(xlabel="iteration", ylabel="accuracy", title=f"{self.rate:.1%} removed")
        return ax

    def __repr__(self) -> str:
        return (
            f"Compression({self.rate:.2%} removed in {self.iterations} iterations, "
            f"accuracy {self.accuracy:.2%})"
        )


def compress(
    model: ModelLike,
    method: str,
    evaluate: Callable[[keras.Model], float],
    lowest: float,
    *,
    share: float = 0.1,
    most: int = 40,
    progress: bool = False,
) -> Compression:
    """Iteratively remove a share of the remaining weights until the accuracy falls.

    The model is not retrained in between.

    Args:
        model: A Keras model; it is not changed.
        method: A name of `COMPRESSORS`.
        evaluate: Returns the accuracy of a model; called once per iteration with a working
            copy that it must not keep.
        lowest: The accuracy below which compression stops; the previous iteration is the result.
        share: Share of the remaining weights that an iteration removes, (0, 1).
        most: Largest number of iterations, at least 1.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: for an unknown method, a share or number out of range, or an accuracy
            that is NaN.
    """
    check_name("compressor", method, COMPRESSORS)
    if not 0 < share < 1:
        raise InvalidArgumentError(f"share must be in (0, 1). Received: {share!r}")
    check_count("most", most)
    im = instrumented(model)
    kernels = {name: k.kernel() for name, k in im.kernels.items()}
    rule, masker = _RULES[method], Masker(im)
    scores = rule.scores(kernels)
    kept: Masks = {}
    history, accuracy = [], _accuracy(evaluate, im.model)
    for iteration in track(range(1, most + 1), method, most, progress):
        masks = rule.chosen(scores, (1 - share) ** iteration)
        history.append(_accuracy(evaluate, masker.kernels(masks)))
        if history[-1] < lowest:
            break
        kept, accuracy = masks, history[-1]
    iterations = len(history) - (history[-1] < lowest)
    removed = sum(int((~mask).sum()) for mask in kept.values())
    rate = removed / im.model.count_params()
    result = apply_masks(im, kept)
    return Compression(result, rate, iterations, float(accuracy), tuple(history))


def _accuracy(evaluate: Callable[[keras.Model], float], model: keras.Model) -> float:
    accuracy = float(evaluate(model))
    if np.isnan(accuracy):
        raise InvalidArgumentError("evaluate returned NaN; it must return an accuracy.")
    return accuracy


@dataclass(frozen=True)
class _Rule:
    """A compressor in two steps, of which only the second depends on the density.

    Attributes:
        score: Maps a kernel's weights to their scores.
        chosen: Maps all scores and a density to the weights to keep.
    """

    score: Callable[[np.ndarray], np.ndarray]
    chosen: Callable[[Kernels, float], Masks]

    def scores(self, kernels: Kernels) -> dict[str, np.ndarray]:
        return {name: self.score(weights) for name, weights in kernels.items()}

    def keep(self, kernels: Kernels, density: float) -> Masks:
        if not 0 <= density <= 1:
            raise InvalidArgumentError(
                f"density is the share of weights to keep, 0 ≤ density ≤ 1. Received: {density!r}"
            )
        return self.chosen(self.scores(kernels), density)


def _lamp_scores(weights: np.ndarray) -> np.ndarray:
    squares = weights.astype(np.float64).ravel() ** 2
    order = np.argsort(squares, kind="stable")
    # In ascending order: the sum of the remaining squares, this weight included.
    left = np.cumsum(squares[order][::-1])[::-1]
    scores = np.empty_like(squares)
    scores[order] = np.divide(squares[order], left, out=np.zeros_like(left), where=left > 0)
    return scores.reshape(weights.shape)


def _largest_of_all(scores: Kernels, density: float) -> Masks:
    flat = np.concatenate([s.ravel() for s in scores.values()])
    kept = largest(flat, round(density * len(flat)))
    ends = np.cumsum([s.size for s in scores.values()])
    parts = np.split(kept, ends[:-1])
    return {name: p.reshape(s.shape) for (name, s), p in zip(scores.items(), parts, strict=True)}


def _largest_of_each(scores: Kernels, shares: Mapping[str, float]) -> Masks:
    return {name: largest(s, round(shares[name] * s.size)) for name, s in scores.items()}


def _uniform_plus(scores: Kernels, density: float) -> Masks:
    names = list(scores)
    fixed = {names[0]: 1.0} if scores[names[0]].ndim > 2 else {}
    share = _rest(scores, fixed, density)
    if share < 0.2 and names[-1] not in fixed:
        fixed[names[-1]] = 0.2
        share = _rest(scores, fixed, density)
    return _largest_of_each(scores, {name: fixed.get(name, share) for name in names})


def _erk(scores: Kernels, density: float) -> Masks:
    ratios = {name: sum(s.shape) / s.size for name, s in scores.items()}
    fixed: dict[str, float] = {}
    while True:
        free = [name for name in scores if name not in fixed]
        budget = density * sum(s.size for s in scores.values())
        budget -= sum(scores[name].size for name in fixed)
        scale = budget / max(1, sum(ratios[name] * scores[name].size for name in free))
        full = {name: 1.0 for name in free if scale * ratios[name] > 1}
        if not full:
            shares = {name: scale * ratios[name] for name in free}
            return _largest_of_each(scores, shares | fixed)
        fixed[max(full, key=ratios.__getitem__)] = 1.0


def _rest(scores: Kernels, fixed: Mapping[str, float], density: float) -> float:
    """Return the share to keep of the kernels that are not fixed, within [0, 1]."""
    budget = density * sum(s.size for s in scores.values())
    budget -= sum(fixed[name] * scores[name].size for name in fixed)
    free = sum(s.size for name, s in scores.items() if name not in fixed)
    return float(np.clip(budget / max(1, free), 0, 1))


_RULES = {
    "lamp": _Rule(_lamp_scores, _largest_of_all),
    "global": _Rule(np.abs, _largest_of_all),
    "uniform_plus": _Rule(np.abs, _uniform_plus),
    "erk": _Rule(np.abs, _erk),
}
