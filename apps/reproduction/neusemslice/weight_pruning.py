"""Four unstructured compressors: which weights to keep at a given density.

All keep the largest weights of each kernel; they differ in the density of each kernel. Since shares
only shrink, a removed weight stays removed in later iterations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_count, check_name, check_number
from nnslicer_tf._environment import track
from nnslicer_tf._numerics import largest
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Ablation, ModelLike, Zero, instrumented
from nnslicer_tf.instrument.layout import WEIGHT
from nnslicer_tf.pruning import apply_masks, weight_masks

COMPRESSORS = ("lamp", "global", "uniform_plus", "erk")
_MIN_LAST = 0.2  # share of the last kernel that `uniform_plus` keeps


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

    def to_frame(self) -> pd.DataFrame:
        """Return one row per iteration: its number and accuracy."""
        numbers = range(1, len(self.history) + 1)
        return pd.DataFrame({"iteration": numbers, "accuracy": self.history})

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
    """Iteratively remove weights, without retraining, until the accuracy falls.

    Args:
        model: A Keras model; it is not changed.
        method: How weights compete:
            "lamp": by w² / Σ w'² over the kernel's weights w' that are not smaller, over all
                kernels (Lee et al., ICLR 2021, eq. 2).
            "global": by |w| over all kernels (Morcos et al., NeurIPS 2019).
            "uniform_plus": the same share of every kernel, except for all of a first convolution
                and at least 20 % of the last kernel (Gale et al., 2019, section 6.2).
            "erk": shares in proportion to (sum of the kernel's extents) / (product of them), at
                most 1 (Evci et al., "Rigging the Lottery", ICML 2020, section 3).
        evaluate: Returns the accuracy of a model; called once per iteration with a working copy, of
            which it must not keep a reference.
        lowest: The accuracy below which compression stops; the previous iteration is the result.
        share: Share of the remaining weights that an iteration removes, (0, 1).
        most: Largest number of iterations, at least 1.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: for an unknown method, a share or number out of range, or an accuracy
            that is NaN.
    """
    check_name("compressor", method, COMPRESSORS)
    check_number("share", share, "(0, 1)")
    check_count("most", most)

    def accuracy_of(model: keras.Model) -> float:
        value = float(evaluate(model))
        if np.isnan(value):
            raise InvalidArgumentError("evaluate returned NaN; it must return an accuracy.")
        return value

    im = instrumented(model)
    ablation = Ablation(im, Zero(), WEIGHT)
    masked: keras.Model | None = None
    scores = weight_scores({name: k.kernel() for name, k in im.kernels.items()}, method)
    keep: dict[str, np.ndarray] = {}
    history, accuracy = [], accuracy_of(im.model)
    for iteration in track(range(1, most + 1), method, most, progress):
        masks = masks_at_density(scores, method, (1 - share) ** iteration)
        masked = ablation.model(weight_masks(ablation.im, masks), into=masked)
        history.append(accuracy_of(masked))
        if history[-1] < lowest:
            break
        keep, accuracy = masks, history[-1]
    iterations = len(history) - (history[-1] < lowest)
    removed = sum(int((~mask).sum()) for mask in keep.values())
    rate = removed / im.model.count_params()
    return Compression(apply_masks(im, keep), rate, iterations, accuracy, tuple(history))


def weight_scores(kernels: Mapping[str, np.ndarray], method: str) -> dict[str, np.ndarray]:
    """Return the scores by which a compressor ranks weights, of the kernels' shapes.

    Kernels are in topological order; `method` is a name of `COMPRESSORS`.
    """
    scores = {}
    for name, weights in kernels.items():
        scores[name] = np.abs(weights)
        if method == "lamp":
            squares = weights.astype(np.float64).ravel() ** 2
            order = np.argsort(squares, kind="stable")
            # In ascending order: the sum of the remaining squares, this weight included.
            left = np.cumsum(squares[order][::-1])[::-1]
            ratios = np.empty_like(squares)
            ratios[order] = np.divide(squares[order], left, out=np.zeros_like(left), where=left > 0)
            scores[name] = ratios.reshape(weights.shape)
    return scores


def masks_at_density(
    scores: Mapping[str, np.ndarray], method: str, density: float
) -> dict[str, np.ndarray]:
    """Return which weights a compressor keeps at a density: kernel name → bools of its shape.

    If the exceptions of `uniform_plus` alone exceed the density, it removes the other kernels.
    Raises InvalidArgumentError if the density is not in [0, 1].
    """
    check_number("density", density, "[0, 1]")
    names, sizes = list(scores), {name: s.size for name, s in scores.items()}
    if method in ("lamp", "global"):  # one threshold for all kernels
        flat = np.concatenate([s.ravel() for s in scores.values()])
        ends = np.cumsum(list(sizes.values()))[:-1]
        parts = np.split(largest(flat, round(density * len(flat))), ends)
        return {name: p.reshape(scores[name].shape) for name, p in zip(names, parts, strict=True)}
    # A share for each kernel, in proportion to its weight unless it is fixed.
    fixed: dict[str, float] = {}
    weight = dict.fromkeys(names, 1.0)
    if method == "erk":
        weight = {name: sum(s.shape) / s.size for name, s in scores.items()}
    elif scores[names[0]].ndim > 2:
        fixed[names[0]] = 1.0
    while True:
        free = [name for name in names if name not in fixed]
        budget = density * sum(sizes.values()) - sum(fixed[n] * sizes[n] for n in fixed)
        scale = budget / max(1, sum(weight[name] * sizes[name] for name in free))
        shares = {name: scale * weight[name] for name in free}
        if method == "erk" and any(share > 1 for share in shares.values()):
            fixed[max(shares, key=shares.__getitem__)] = 1.0
        elif method == "uniform_plus" and scale < _MIN_LAST and names[-1] not in fixed:
            fixed[names[-1]] = _MIN_LAST
        else:
            shares = {name: float(np.clip(share, 0, 1)) for name, share in shares.items()}
            shares |= fixed
            return {n: largest(s, round(shares[n] * s.size)) for n, s in scores.items()}
