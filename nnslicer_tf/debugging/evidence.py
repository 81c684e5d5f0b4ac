"""Evidence about neurons and synapses from failing and passing runs, as `SuspicionScores`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from keras import ops

from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.debugging.runs import ClassifiedSamples, Runs
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Mean, Synapses
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.slicing import Slicer

Arrays = dict[str, np.ndarray]

_BATCH = 32
_MAX_PATCHED = 64
_CANDIDATES, _FINALISTS = 48, 12
_ADJUSTMENTS = (
    *((factor, b) for factor in (0.0, -1.0, -0.4, 0.4, 2.0) for b in (0.0, 1.0, -1.0, 3.0, -3.0)),
    *((0.98, b) for b in (1.0, -1.0, 3.0, -3.0, 9.0, -9.0)),
)
_NO_CLASS = (
    "No passing sample has the correct class of a failing one. Classes are compared one by one: "
    "pass passing samples of the failing samples' correct classes."
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


SlicerMaker: TypeAlias = Callable[[], Slicer]
"""Makes a slicer with the profile and the options given to `suspicious`."""


def channel_scores(values: np.ndarray, add_up: bool) -> np.ndarray:
    """Return the scores of channels, the last axis, from those of their positions."""
    flat = values.reshape(-1, values.shape[-1])
    return flat.sum(axis=0) if add_up else flat.mean(axis=0)


# --- slices --------------------------------------------------------------------------------


def contrast(im: InstrumentedModel, runs: Runs, make_slicer: SlicerMaker) -> SuspicionScores:
    """Return mean differences of contributions to the right class, weighted by failing samples."""
    passing = dict(runs.passing.by_class())
    shared = [(label, rows) for label, rows in runs.failing.by_class() if label in passing]
    if not shared:
        raise InvalidArgumentError(_NO_CLASS)
    slicer, total = make_slicer(), sum(len(rows) for _, rows in shared)
    neurons: Arrays = {}
    synapses: Arrays = {}
    for label, rows in shared:
        neuron, _ = im.classes.neuron(label)  # of one sigmoid both classes share it
        means = [
            _weighted(slicer, samples.x[chosen], [neuron], np.full(len(chosen), 1 / len(chosen)))
            for samples, chosen in ((runs.failing, rows), (runs.passing, passing[label]))
        ]
        for sums, failed, passed in zip((neurons, synapses), *means, strict=True):
            for name in failed:
                difference = np.abs(failed[name] - passed[name]) * (len(rows) / total)
                sums[name] = sums.get(name, 0) + difference
    return SuspicionScores(neurons, synapses, add_up=True)


def wrong_minus_right(
    im: InstrumentedModel, runs: Runs, make_slicer: SlicerMaker
) -> SuspicionScores:
    """Return contributions to the wrong class's rise minus those to the right one's.

    Contributions to an output below the profile's mean are negative: counts are multiplied by −1,
    amounts have this sign already.
    """
    samples, slicer = runs.failing, make_slicer()
    mean = slicer.profile.means[im.logit_operation]
    changes = im.classes.scores(im.logits(samples.x)) - im.classes.scores(mean[None])
    signs = np.sign(changes) if slicer.contribution == "count" else np.ones_like(changes)
    rose = signs[np.arange(len(samples)), samples.predicted] / len(samples)
    neurons, synapses = _weighted(slicer, samples.x, "predicted", rose)
    for label, rows in samples.by_class():
        fell = -signs[rows, label] / len(samples)
        parts = _weighted(slicer, samples.x[rows], [im.classes.neuron(label)[0]], fell)
        for sums, part in zip((neurons, synapses), parts, strict=True):
            for name, values in part.items():
                sums[name] = sums[name] + values
    return SuspicionScores(neurons, synapses, add_up=True)


def _weighted(
    slicer: Slicer, x: np.ndarray, outputs: Any, weights: np.ndarray
) -> tuple[Arrays, Arrays]:
    """Return weighted sums of the samples' contributions, for neurons and synapses."""
    neurons: Arrays = {}
    synapses: Arrays = {}
    first = 0
    operations = [operation.name for operation in slicer.im.operations]
    for part in slicer.iterate(x, outputs, operations=operations):
        these = weights[first : first + len(part.predicted)]
        first += len(these)
        for sums, values in ((neurons, part.neurons), (synapses, part.synapses)):
            for name, array in values.items():
                sums[name] = sums.get(name, 0) + np.tensordot(these, array, axes=1)
    return neurons, synapses


# --- gradients -----------------------------------------------------------------------------


def gradient(im: InstrumentedModel, runs: Runs, _: SlicerMaker) -> SuspicionScores:
    """Return gradient × activation for wrong minus right logit, averaged over failing samples."""
    return _attributed(im, runs.failing, lambda label: {})


def gradient_contrast(im: InstrumentedModel, runs: Runs, _: SlicerMaker) -> SuspicionScores:
    """Return gradient × difference of the activation from passing samples of the same class.

    To first order, the part of the wrong logit's lead that is due to the neuron's deviation.
    """
    means = _class_means(im, runs.passing)
    if not any(label in means for label, _ in runs.failing.by_class()):
        raise InvalidArgumentError(_NO_CLASS)
    return _attributed(im, runs.failing, means.get)


def _attributed(
    im: InstrumentedModel,
    samples: ClassifiedSamples,
    references: Callable[[int], Mapping[str, np.ndarray] | None],
) -> SuspicionScores:
    """Return the mean of gradient × (value − reference) over failing samples."""
    recurrent = [o.layer for o in im.operations if isinstance(o.params, Member)]
    if recurrent:
        raise UnsupportedLayerError(
            f"Layer '{recurrent[0]}' is recurrent: its gates have no gradients here. Use "
            "method='patching', or a method on slices, such as 'contrast'."
        )
    names = [operation.name for operation in im.operations]
    neurons = {o.name: np.zeros(o.shape) for o in im.operations}
    synapses = {name: np.zeros(kernel.shape) for name, kernel in im.kernels.items()}

    def gradients(x: np.ndarray, classes: np.ndarray) -> Arrays:
        """Return the gradients of one class's score per sample; of a single sigmoid, −z or z."""
        outputs, signs = np.array([im.classes.neuron(int(label)) for label in classes]).T
        slopes = im.gradients(x, outputs, names, batch_size=len(x))
        signs = signs.astype(np.float32)
        return {n: v * signs.reshape(-1, *[1] * (v.ndim - 1)) for n, v in slopes.items()}

    used = 0
    for label, rows in samples.by_class():
        reference = references(label)  # missing values are zero
        if reference is None:
            continue
        used += len(rows)
        for batch in np.array_split(rows, -(-len(rows) // _BATCH)):
            x = samples.x[batch]
            values = im.capture(x, len(x))
            changes = {name: values[name] - reference.get(name, np.float32(0)) for name in names}
            wrong, right = (gradients(x, c[batch]) for c in (samples.predicted, samples.right))
            slopes = {name: wrong[name] - right[name] for name in names}
            for name in names:
                neurons[name] += (slopes[name] * changes[name]).sum(axis=0, dtype=np.float64)
            # The gradient by the weights, with the changes of the inputs as inputs.
            for operation in im.operations:
                kernel = operation.params
                if isinstance(kernel, Synapses):
                    inputs = ops.convert_to_tensor(changes[operation.inputs[0]])
                    weights = ops.cast(kernel.variable(), "float32")
                    slope = ops.convert_to_tensor(slopes[operation.name])
                    function = partial(kernel.apply, inputs)
                    (by_weight,) = vector_jacobian_product(function, [weights], slope)
                    part = ops.convert_to_numpy(by_weight * weights)
                    synapses[kernel.name] += part.astype(np.float64)
    for sums in (neurons, synapses):
        sums |= {name: total / used for name, total in sums.items()}
    return SuspicionScores(neurons, synapses, add_up=True)


def _class_means(im: InstrumentedModel, samples: ClassifiedSamples) -> dict[int, Arrays]:
    means = {}
    for label, rows in samples.by_class():
        sums: Arrays = {}
        for batch in im.capture_batches(samples.x[rows], _BATCH):
            for name, values in batch.items():
                sums[name] = sums.get(name, 0) + values.sum(axis=0, dtype=np.float64)
        means[label] = {n: (total / len(rows)).astype(np.float32) for n, total in sums.items()}
    return means


# --- interventions -------------------------------------------------------------------------


def patching(im: InstrumentedModel, runs: Runs, _: SlicerMaker) -> SuspicionScores:
    """Return the gain from patching each channel with its values on passing samples.

    The gain is the exact mean rise of the right logit's lead over at most 64 failing samples. A
    channel of an operation with a kernel passes its score on to its positions and synapses;
    outputs score 0. Costs a forward pass per channel and class.
    """
    means = _class_means(im, runs.passing)
    rows = np.flatnonzero(np.isin(runs.failing.right, list(means)))[:_MAX_PATCHED]
    if not len(rows):
        raise InvalidArgumentError(_NO_CLASS)
    samples = runs.failing.part(rows)
    sums = [o.name for o in im.operations if isinstance(o.params, Synapses)]
    of = [name for name in sums if name != im.logit_operation]
    neurons = {o.name: np.zeros(o.shape) for o in im.operations}
    for label, chosen in samples.by_class():
        ablation = Ablation(im, Mean(means[label]), "channel", of=of)
        x, right = ablation.rows(samples.x[chosen]), samples.right[chosen]
        whole = np.ones(ablation.units, np.float32)
        leads = [
            -runner_up_margin(im.classes.scores(ablation.outputs(mask, x)), right).sum()
            for mask in (whole, *(whole - np.eye(ablation.units, dtype=np.float32)))
        ]
        gains = (np.array(leads[1:]) - leads[0]) / len(rows)
        for name, part in ablation.masks(gains).items():
            neurons[name] += part
    return SuspicionScores.by_channel(im, neurons)


def adjustment(im: InstrumentedModel, runs: Runs, _: SlicerMaker) -> SuspicionScores:
    """Return by how much the loss falls when a channel is adjusted in the way that helps most.

    An adjusted channel has the value m + a · (value − m) + b · s, with its mean m and its spread s,
    for the pairs of `_ADJUSTMENTS`: a = 0 sets it to its mean, a = −1 mirrors it, a = 0.98 shifts
    it. The loss is the cross-entropy over equally many failing and passing samples. First-order
    effects choose the candidates; others score below these. Outputs score 0.
    """
    failing, passing = (
        part.part(np.arange(min(len(part), _MAX_PATCHED))) for part in (runs.failing, runs.passing)
    )
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

    def losses(rows: Any, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
        logits = im.classes.scores(ablation.outputs(mask, rows)).astype(np.float64)
        highest = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - highest).sum(axis=1)) + highest[:, 0]
        return total - logits[np.arange(len(y)), y]

    # Candidates: channels that never change, and those that matter most to first order.
    ablation = Ablation(im, shifted(0), "channel")
    keep = np.ones(ablation.units, np.float32)
    falls = []
    for size in (0.0, 1.0):
        fall = np.zeros(ablation.units)
        for label in np.unique(right):
            chosen = right == label
            neuron, sign = im.classes.neuron(int(label))
            of_score = np.zeros(im[im.logit_operation].size, np.float32)
            of_score[neuron] = sign
            rows = ablation.rows(x[chosen], shifted(size))
            each = np.ones((chosen.sum(), ablation.units), np.float32)
            slopes = ablation.slopes(each, rows, of_score, float(im.classes.by_softmax))[1]
            fall -= weights[chosen] @ slopes
        falls.append(fall)
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
        for factor, size in _ADJUSTMENTS:
            rows = ablation.rows(x[chosen], shifted(size / (1 - factor)))
            before = share @ losses(rows, y, keep) if before is None else before
            for place, unit in enumerate(candidates):
                mask = keep.copy()
                mask[unit] = factor
                best[place] = max(best[place], before - share @ losses(rows, y, mask))
        return best

    from_failing, from_passing = (min(size, _MAX_PATCHED // 4) for size in sizes)
    few = np.r_[:from_failing, sizes[0] : sizes[0] + from_passing]
    rough = gains(candidates, few)
    best = np.argsort(-rough, kind="stable")[:_FINALISTS]
    scores = np.zeros(ablation.units)
    scores[np.argsort(to_mean, kind="stable")] = np.arange(ablation.units) / (4 * ablation.units)
    scores[candidates[np.argsort(rough, kind="stable")]] = np.linspace(0.25, 0.5, len(candidates))
    exact = gains(candidates[best], np.arange(len(x)))
    scores[candidates[best]] = 0.5 + np.maximum(exact, 0)
    neurons = {o.name: np.zeros(o.shape) for o in im.operations}
    for name, part in ablation.masks(scores.astype(np.float32)).items():
        neurons[name] = np.broadcast_to(part, im[name].shape).astype(np.float64)
    return SuspicionScores.by_channel(im, neurons)


METHODS: dict[str, Callable[[InstrumentedModel, Runs, SlicerMaker], SuspicionScores]] = {
    "adjustment": adjustment,
    "patching": patching,
    "gradient_contrast": gradient_contrast,
    "gradient": gradient,
    "contrast": contrast,
    "wrong_minus_right": wrong_minus_right,
}
"""The methods of `suspicious` by name. To add one, add a function of the model, the runs and a
`SlicerMaker`, which methods on slices call to get their slicer."""
