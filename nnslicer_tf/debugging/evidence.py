"""What failing and passing runs say about neurons and synapses: `SuspicionScores`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from keras import ops
from scipy.special import log_softmax

from nnslicer_tf._environment import track
from nnslicer_tf.debugging.runs import Runs
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Mean, Synapses
from nnslicer_tf.instrument.ablation import nearness
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.graph import gradient_function
from nnslicer_tf.instrument.inputs import arrays_of, drawn
from nnslicer_tf.instrument.recurrence import Member

Arrays = dict[str, np.ndarray]

_BATCH = 32
_MAX_PATCHED = 64
_CANDIDATES, _FINALISTS = 48, 12
_RARE = 0.03  # share of the units
_ADJUSTMENTS = (
    *((factor, b) for factor in (0.0, -1.0, -0.4, 0.4, 2.0) for b in (0.0, 1.0, -1.0, 3.0, -3.0)),
    *((0.98, b) for b in (1.0, -1.0, 3.0, -3.0, 9.0, -9.0)),
)


@dataclass(frozen=True, eq=False)
class SuspicionScores:
    """Signed scores, float64; a channel's score is the sum or the mean over its positions.

    Attributes:
        neurons: Operation name → array of its shape, for all operations.
        synapses: Kernel name → array of its shape, for all kernels.
        add_up: Whether a channel's score is the sum of its positions' scores, not their mean.
    """

    neurons: Arrays
    synapses: Arrays
    add_up: bool

    @classmethod
    def by_channel(cls, im: InstrumentedModel, neurons: Arrays) -> "SuspicionScores":
        """Return scores in which a synapse has the mean score of the channel that it feeds."""
        synapses: Arrays = {}
        for operation in im.operations:
            kernel = operation.params
            if isinstance(kernel, Synapses):
                channels = channel_scores(neurons[operation.name], add_up=False)
                layout = kernel.from_kernel(np.zeros(kernel.shape)).shape
                scores = kernel.to_kernel(np.broadcast_to(channels, layout))
                synapses[kernel.name] = synapses.get(kernel.name, 0) + scores
        return cls(neurons, synapses, add_up=False)


def channel_scores(values: np.ndarray, add_up: bool) -> np.ndarray:
    """Return the scores of channels, the last axis, from those of their positions."""
    flat = values.reshape(-1, values.shape[-1])
    return flat.sum(axis=0) if add_up else flat.mean(axis=0)


def gradient(
    im: InstrumentedModel,
    runs: Runs,
    _: bool = False,
    reference: Mapping[str, np.ndarray] | None = None,
) -> SuspicionScores:
    """Return gradient × activation for the error of the answers, averaged over failing samples.

    The error is the wrong logit minus the right one, of maps summed over the wrong positions, or
    the distance of numbers to the right ones. Outputs score 0. With a reference, operation name →
    value, it is gradient × difference from this.
    """
    recurrent = [o.layer for o in im.operations if isinstance(o.params, Member)]
    if recurrent:
        raise UnsupportedLayerError(
            f"Layer '{recurrent[0]}' is recurrent, without gradients: use method='adjustment'."
        )
    names = [operation.name for operation in im.operations]
    neurons = {o.name: np.zeros(o.shape) for o in im.operations}
    synapses = {name: np.zeros(kernel.shape) for name, kernel in im.kernels.items()}

    kind, samples = im.classes, runs.failing
    end = im.output_operations[0] if kind.is_number else im.logit_operation
    directions = kind.contrast(samples.predicted, samples.right).astype(np.float32)

    def error(values: Mapping[str, Any], weights: Any) -> Any:
        products = values[end] * ops.reshape(weights, ops.shape(values[end]))
        return ops.sum(products, axis=tuple(range(1, len(products.shape))))

    slopes_of = gradient_function(im.graph, error, [end], names)
    usual = reference or {}  # missing values are zero
    for batch in np.array_split(np.arange(len(samples)), -(-len(samples) // _BATCH)):
        x = samples.x[batch]
        values = im.capture(x, len(x))
        changes = {name: values[name] - usual.get(name, np.float32(0)) for name in names}
        slopes = dict(zip(names, slopes_of(arrays_of(x), directions[batch]), strict=True))
        for name in names:
            neurons[name] += (slopes[name] * changes[name]).sum(axis=0, dtype=np.float64)
        # The gradient by the weights, with the changes of the inputs as inputs.
        for operation in im.operations:
            kernel = operation.params
            if isinstance(kernel, Synapses) and kernel.name in synapses:
                inputs = ops.convert_to_tensor(changes[operation.inputs[0]])
                weights = ops.cast(kernel.variable(), "float32")
                slope = ops.convert_to_tensor(slopes[operation.name])
                function = partial(kernel.apply, inputs)
                (by_weight,) = vector_jacobian_product(function, [weights], slope)
                part = ops.convert_to_numpy(by_weight * weights)
                synapses[kernel.name] += part.astype(np.float64)
    for sums in (neurons, synapses):
        sums |= {name: total / len(samples) for name, total in sums.items()}
    inside = {operation.name for operation in im.graph.ancestors([im.logit_operation])}
    for name in set(names) - inside | {*im.graph.ends(im.logit_operation)}:
        neurons[name][...] = 0  # outputs are what is to be explained
    return SuspicionScores(neurons, synapses, add_up=True)


def adjustment(im: InstrumentedModel, runs: Runs, progress: bool = False) -> SuspicionScores:
    """Return by how much the loss falls when a channel is adjusted in the way that helps most.

    An adjusted channel has the value m + a · (value − m) + b · s, with its mean m and its spread s,
    for the pairs of `_ADJUSTMENTS`: a = 0 sets it to its mean, a = −1 mirrors it, a = 0.98 shifts
    it. The loss is the cross-entropy (of maps, its mean over positions), or the distance of numbers
    to the right ones, over at most 64 failing and 64 passing samples, drawn by their values. First-
    order effects choose the candidates; others score below these. Outputs score 0.
    """
    both = runs.failing, runs.passing
    failing, passing = (part.part(drawn(part.x, _MAX_PATCHED)) for part in both)
    x = np.concatenate([failing.x, passing.x])
    right = np.concatenate([failing.right, passing.right])
    sizes = len(failing), len(passing)
    weights = np.repeat([0.5 / size for size in sizes], sizes)

    # The mean and the spread of each channel; one that is always the same gets that of its layer.
    whole = Ablation(im, "zero", "channel")
    values = im.capture(x, of=list(whole.shapes))
    means, spreads = {}, {}
    silent = []
    for name, shape in whole.shapes.items():
        by_channel = values[name].reshape(-1, shape[-1])
        spread, usual = by_channel.std(axis=0), np.median(by_channel.std(axis=0))
        means[name], spreads[name] = values[name].mean(axis=0), np.maximum(spread, usual)
        silent.append(spread <= 1e-3 * usual)

    def shifted(size: float) -> Mean:
        return Mean({name: means[name] + size * spreads[name] for name in means})

    kind = im.classes

    def losses(rows: Any, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
        logits = ablation.outputs(mask, rows)
        if kind.is_number:
            return kind.distances(kind.answers(im.outputs_from(logits)), y)
        likelihoods = log_softmax(kind.scores(logits).astype(np.float64), axis=-1)
        return -np.take_along_axis(likelihoods, y[..., None], -1).reshape(len(y), -1).mean(axis=1)

    # What lowers the loss: the right class's score less those of its rivals, or nearer numbers (a
    # function after the last layer rises, so that its slope hardly matters).
    logits = im.logits(x)
    if kind.is_number:
        towards = kind.contrast(right, kind.answers(im.outputs_from(logits)))
    else:
        chosen = np.eye(kind.count)[right]
        rivals = nearness(kind.scores(logits), chosen) if kind.by_softmax else 0.0
        towards = kind.of_scores(chosen - rivals) / max(1, np.prod(kind.positions))
    towards = weights[:, None] * towards.reshape(len(x), -1)

    # Candidates: channels that never change, and those that matter most to first order.
    ablation = Ablation(im, shifted(0), "channel")
    keep = np.ones(ablation.units, np.float32)
    falls = []
    for size in (0.0, 1.0):
        rows = ablation.rows(x, shifted(size))
        falls.append(-ablation.slopes(keep, rows, towards.astype(np.float32), 0.0)[1])
    to_mean, shift = falls[0], np.abs(falls[1] - falls[0])
    orders = [np.argsort(-score, kind="stable") for score in (to_mean, shift, np.abs(to_mean))]
    always = np.flatnonzero(np.concatenate(silent))[: _CANDIDATES // 3]
    ranked = dict.fromkeys([*always, *np.stack(orders, axis=1).ravel()])
    candidates = np.array(list(ranked)[:_CANDIDATES])

    def gains(candidates: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the most that the loss over chosen samples falls, for each candidate."""
        y, share = right[chosen], weights[chosen] / weights[chosen].sum()
        best = np.full(len(candidates), -np.inf)
        before = None
        for factor, size in track(_ADJUSTMENTS, "Adjustments", progress=progress):
            rows = ablation.rows(x[chosen], shifted(size / (1 - factor)))
            before = share @ losses(rows, y, keep) if before is None else before
            for place, unit in enumerate(candidates):
                mask = keep.copy()
                mask[unit] = factor
                best[place] = max(best[place], before - share @ losses(rows, y, mask))
        return best

    from_failing, from_passing = (min(size, _MAX_PATCHED // 4) for size in sizes)
    rough = gains(candidates, np.r_[:from_failing, sizes[0] : sizes[0] + from_passing])
    best = np.argsort(-rough, kind="stable")[:_FINALISTS]
    scores = np.zeros(ablation.units)
    scores[np.argsort(to_mean, kind="stable")] = np.arange(ablation.units) / (4 * ablation.units)
    scores[candidates[np.argsort(rough, kind="stable")]] = np.linspace(0.25, 0.5, len(candidates))
    scores[candidates[best]] = 0.5 + np.maximum(gains(candidates[best], np.arange(len(x))), 0)
    # A sum that never changes does nothing: where such units are rare, they come first.
    if len(always) <= max(1, _RARE * ablation.units):
        scores[always[rough[: len(always)] > 0]] += 1
    neurons = {o.name: np.zeros(o.shape) for o in im.operations}
    for name, part in ablation.masks(scores.astype(np.float32)).items():
        neurons[name] = np.broadcast_to(part, im[name].shape).astype(np.float64)
    return SuspicionScores.by_channel(im, neurons)


METHODS: dict[str, Callable[[InstrumentedModel, Runs, bool], SuspicionScores]] = {
    "adjustment": adjustment,
    "gradient": gradient,
}
"""The methods of `suspicious` by name. To add one, add a function of the model, the runs and a
bool, whether to show progress bars."""
