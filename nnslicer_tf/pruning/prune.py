"""Pruning by scores (NNSlicer, section 6.2.1), and batch normalisation after it (ours)."""

from collections.abc import Mapping

import keras
import numpy as np

from nnslicer_tf._checks import check_number
from nnslicer_tf._numerics import smallest
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import DataLike, ModelLike, instrumented
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.copies import rebuild
from nnslicer_tf.instrument.data import Samples
from nnslicer_tf.pruning.masks import masked_copy
from nnslicer_tf.pruning.rankers import check_scores
from nnslicer_tf.slicing import Profile

Ratio = float | Mapping[str, float]


def prune(
    model: ModelLike, scores: Mapping[str, np.ndarray], ratio: Ratio, means: Profile | None = None
) -> keras.Model:
    """Return a copy without the synapses that have the smallest scores.

    Of each layer's synapses S, the first ⌊ratio · |S|⌋ by ascending |score|, ties by position,
    become zero and stay zero in training (see `apply_masks`). A neuron without synapses is pruned
    with its bias and normalisation.

    Args:
        model: Any that `InstrumentedModel` accepts; the copy of a subclassed one is functional.
        scores: Kernel name → array of its shape, as from `scores`. Other kernels are not pruned.
        ratio: Share of the synapses of every layer to prune, 0 ≤ ratio < 1; or a share for each
            kernel by name, as from `global_ratios`.
        means: The model's profile. If given, pruned synapses still contribute their mean: a layer
            computes W·(x − x̄) + ȳ with the pruned W and the profile's x̄ and ȳ. The paper's
            program does this for NNSlicer and EffectivePath only.

    Raises InvalidArgumentError for ratios out of range, unknown kernels, or scores that do not fit;
    ProfileMismatchError if the profile belongs to a different model; UnsupportedLayerError if a
    layer cannot be copied or masked, or means are given and it is an attention or recurrent layer
    or an embedding.
    """
    keep = keep_masks(scores, ratio)
    im = instrumented(model, means)
    if means is not None:
        means.check_model(im)
    return masked_copy(maskable(im), keep, None if means is None else means.means)


def keep_masks(scores: Mapping[str, np.ndarray], ratio: Ratio) -> dict[str, np.ndarray]:
    """Return masks, false where `prune` removes synapses: kernel name → bools of its shape.

    Arguments and errors are those of `prune`.
    """
    scores = check_scores(scores)
    ratios = ratio if isinstance(ratio, Mapping) else dict.fromkeys(scores, ratio)
    for value in ratios.values():
        check_number("ratio", value, "[0, 1)")
    if lone := scores.keys() ^ ratios.keys():
        raise InvalidArgumentError(f"Kernels have scores or a ratio, but not both: {[*lone]}.")
    return {n: ~smallest(np.abs(s), _count(ratios[n], np.size(s))) for n, s in scores.items()}


def global_ratios(scores: Mapping[str, np.ndarray], ratio: float) -> dict[str, float]:
    """Return each kernel's ratio, for `prune`, if the smallest scores are pruned globally.

    `scores` must be comparable between kernels, each of which keeps at least one synapse. `ratio`
    is the share of all the model's synapses to prune, 0 ≤ ratio < 1, else InvalidArgumentError.
    """
    check_number("ratio", ratio, "[0, 1)")
    scores = check_scores(scores)
    sizes = [np.size(score) for score in scores.values()]
    magnitudes = np.concatenate([np.abs(score).ravel() for score in scores.values()])
    pruned = smallest(magnitudes, _count(ratio, len(magnitudes)))
    counts = np.bincount(np.repeat(np.arange(len(sizes)), sizes)[pruned], minlength=len(sizes))
    return {
        name: min(count, size - 1) / size
        for name, count, size in zip(scores, counts, sizes, strict=True)
    }


def _count(ratio: float, size: int) -> int:
    """Return ⌊ratio · size⌋, although 0.29 · 100 is slightly below 29 in floating point."""
    return int(ratio * size + 1e-9)


def renormalise(model: ModelLike, x: DataLike) -> keras.Model:
    """Return a copy whose batch normalisations have the statistics of these samples.

    Pruning changes the mean and variance of every sum, so the moving statistics no longer fit.
    Masks persist. Layers that are only active in training, such as dropout, are active. Cost: a
    forward pass of the samples, all in one batch.

    Args:
        model: Any model with one input that `InstrumentedModel` accepts, usually a pruned one.
        x: Samples `(samples, *input_shape)`, at least a few hundred.

    Raises InputShapeError if the samples do not fit the model; SeveralInputsError if the model has
    several inputs; InvalidArgumentError if there are fewer than two samples.
    """
    im = maskable(model)
    samples = Samples(x, im.input_shape, im.bounds, columns=getattr(model, "columns", ())).array()
    if len(samples) < 2:
        raise InvalidArgumentError(f"Statistics need two samples or more. Received: {len(samples)}")
    momentum = {
        id(o.keras_layer): {"momentum": 0.0}
        for o in im.operations
        if isinstance(o.keras_layer, keras.layers.BatchNormalization)
    }
    measured = rebuild(im.functional, {}, momentum)
    measured(samples, training=True)
    variables = zip(im.functional.variables, measured.variables, strict=True)
    return rebuild(im.functional, {id(v): keras.ops.convert_to_numpy(m) for v, m in variables})
