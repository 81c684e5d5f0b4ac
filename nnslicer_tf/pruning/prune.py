"""Pruning by scores (NNSlicer, section 6.2.1)."""

from collections.abc import Mapping
from numbers import Real

import keras
import numpy as np

from nnslicer_tf._numerics import smallest
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning.masks import MaskPlan
from nnslicer_tf.slicing import Profile

Ratio = float | Mapping[str, float]


def prune(
    model: ModelLike,
    scores: Mapping[str, np.ndarray],
    ratio: Ratio,
    means: Profile | None = None,
) -> keras.Model:
    """Return a copy without the synapses that have the smallest scores.

    Of each layer's synapses S, the first ⌊ratio · |S|⌋ by ascending |score| become zero and
    stay zero in training (see `apply_masks`), with ties in the order of position. A neuron whose
    synapses are all pruned is pruned together with its bias and normalisation.

    Args:
        model: Any model that `InstrumentedModel` accepts; the copy of a subclassed model is
            functional.
        scores: Kernel name → array of the kernel's shape, as from `scores`. Kernels that are
            not named are not pruned.
        ratio: Share of the synapses of every layer to prune, 0 ≤ ratio < 1; or a share for
            each kernel by name, as from `global_ratios`.
        means: The model's profile. If given, pruned synapses still contribute their mean: a layer
            computes W·(x − x̄) + ȳ with the pruned W and the profile's x̄ and ȳ, and a neuron
            without synapses outputs its mean ȳ. The paper's program does this for NNSlicer and
            EffectivePath only.

    Raises:
        InvalidArgumentError: if a ratio is out of range, a kernel does not exist, or scores
            have a different shape or are NaN.
        ProfileMismatchError: if the profile belongs to a different model.
        UnsupportedLayerError: if a layer cannot be copied or masked, or means are given and it is
            an attention or recurrent layer or an embedding.
    """
    keep = keep_masks(scores, ratio)
    im = instrumented(model)
    if means is not None:
        means.check_model(im)
    return MaskPlan(im).apply(keep, None if means is None else means.means)


def keep_masks(scores: Mapping[str, np.ndarray], ratio: Ratio) -> dict[str, np.ndarray]:
    """Mark the synapses that pruning keeps: kernel name → bool array of the kernel's shape.

    Arguments and errors are those of `prune`.
    """
    ratios = _ratios(scores, ratio)
    return {name: _keep(name, np.asarray(s), ratios[name]) for name, s in scores.items()}


def global_ratios(scores: Mapping[str, np.ndarray], ratio: float) -> dict[str, float]:
    """Return each kernel's pruning ratio if the model's smallest scores are pruned globally.

    Args:
        scores: Kernel name → scores, comparable between kernels.
        ratio: Share of all the model's synapses to prune, 0 ≤ ratio < 1.

    Returns:
        Kernel name → its ratio, for `prune`; a kernel keeps at least one synapse.

    Raises:
        InvalidArgumentError: if the ratio is out of range.
    """
    _check_ratio(ratio)
    sizes = [np.size(score) for score in scores.values()]
    kernel_of = np.repeat(np.arange(len(sizes)), sizes)
    magnitudes = np.concatenate([np.abs(score).ravel() for score in scores.values()])
    pruned = smallest(magnitudes, _share(ratio, len(magnitudes)))
    counts = np.bincount(kernel_of[pruned], minlength=len(sizes))
    return {
        name: min(count, size - 1) / size
        for name, count, size in zip(scores, counts, sizes, strict=True)
    }


def _keep(name: str, score: np.ndarray, ratio: float) -> np.ndarray:
    if np.isnan(score).any():
        raise InvalidArgumentError(f"The scores of kernel '{name}' are NaN in places.")
    return ~smallest(np.abs(score), _share(ratio, score.size))


def _share(ratio: float, size: int) -> int:
    """Return ⌊ratio · size⌋, although 0.29 · 100 is slightly below 29 in floating point."""
    return int(ratio * size + 1e-9)


def _ratios(scores: Mapping[str, np.ndarray], ratio: Ratio) -> dict[str, float]:
    ratios = dict(ratio) if isinstance(ratio, Mapping) else dict.fromkeys(scores, ratio)
    for value in ratios.values():
        _check_ratio(value)
    missing = [name for name in scores if name not in ratios]
    if missing:
        raise InvalidArgumentError(
            f"There is no ratio for kernel {missing[0]!r}, which has scores. There are ratios "
            f"for: {', '.join(ratios)}."
        )
    return ratios


def _check_ratio(ratio: float) -> None:
    is_number = isinstance(ratio, Real) and not isinstance(ratio, bool)
    if not is_number or not 0 <= ratio < 1:
        raise InvalidArgumentError(
            f"ratio is the share of synapses to prune, 0 ≤ ratio < 1. Received: {ratio!r}"
        )
