"""Baselines of `suspicious`: contrasts of slices, of gradients and of values, formulas, and chance.

A formula of fault localisation scores a part by how many failing and passing samples it takes
part in: as a member of their slices, or, with the prefix `deepfault_`, by being active (DeepFault:
Eniser et al., FASE 2019). `register` adds all to `debugging.METHODS`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.debugging import METHODS, Runs, SuspicionScores
from nnslicer_tf.debugging.evidence import gradient
from nnslicer_tf.debugging.runs import ClassifiedSamples
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Mean, Synapses
from nnslicer_tf.slicing import Profile, Slicer

Arrays = dict[str, np.ndarray]
Formula = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""`formula(failed, passed, all_failed, all_passed)`: counts, arrays of one shape → scores."""

_BATCH = 32
_MAX_PATCHED = 64
_EXPONENT = 3  # the exponent of D*, as in DeepFault (section 4)
_NO_CLASS = (
    "No passing sample has the correct class of a failing one. Classes are compared one by one: "
    "pass passing samples of the failing samples' correct classes."
)


def slicer_of(
    im: InstrumentedModel,
    runs: Runs,
    progress: bool,
    theta: float | None = None,
    contribution: str = "count",
) -> Slicer:
    """Return a slicer with the profile of the passing samples."""
    profile = Profile.from_data(im, runs.passing.x, progress=progress)
    return Slicer(im, profile, theta, contribution=contribution, progress=progress)


def _by_class(samples: ClassifiedSamples) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each right class with the indices of its samples."""
    for label in np.unique(samples.right):
        yield int(label), np.flatnonzero(samples.right == label)


# --- slices --------------------------------------------------------------------------------


def contrast(
    im: InstrumentedModel, runs: Runs, progress: bool = False, **options: Any
) -> SuspicionScores:
    """Return mean differences of contributions to the right class, weighted by failing samples.

    Here and below, the options are those of the slicer: `theta` and `contribution`.
    """
    passing = dict(_by_class(runs.passing))
    shared = [(label, rows) for label, rows in _by_class(runs.failing) if label in passing]
    if not shared:
        raise InvalidArgumentError(_NO_CLASS)
    slicer, total = slicer_of(im, runs, progress, **options), sum(len(rows) for _, rows in shared)
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
    im: InstrumentedModel, runs: Runs, progress: bool = False, **options: Any
) -> SuspicionScores:
    """Return contributions to the wrong class's rise minus those to the right one's.

    Contributions to an output below the profile's mean are negative: counts are multiplied by −1,
    amounts have this sign already, but for class 0 of one sigmoid, whose score is −z.
    """
    samples, slicer = runs.failing, slicer_of(im, runs, progress, **options)
    mean = slicer.profile.means[im.logit_operation]
    changes = im.classes.scores(im.logits(samples.x)) - im.classes.scores(mean[None])
    of_scores = [im.classes.neuron(label)[1] for label in range(changes.shape[1])]
    signs = np.sign(changes) if slicer.contribution == "count" else 0 * changes + of_scores
    rose = signs[np.arange(len(samples)), samples.predicted] / len(samples)
    neurons, synapses = _weighted(slicer, samples.x, "predicted", rose)
    for label, rows in _by_class(samples):
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


# --- gradients and interventions -----------------------------------------------------------


def gradient_contrast(im: InstrumentedModel, runs: Runs, progress: bool = False) -> SuspicionScores:
    """Return gradient × difference of the activation from passing samples of the same class.

    To first order, the part of the wrong logit's lead that is due to the neuron's deviation.
    """
    means = _class_means(im, runs.passing)
    shared = [(label, rows) for label, rows in _by_class(runs.failing) if label in means]
    if not shared:
        raise InvalidArgumentError(_NO_CLASS)
    total = sum(len(rows) for _, rows in shared)
    neurons: Arrays = {}
    synapses: Arrays = {}
    for label, rows in shared:
        part = Runs(runs.failing.part(rows), runs.passing)
        found = gradient(im, part, progress, means[label])
        for sums, values in ((neurons, found.neurons), (synapses, found.synapses)):
            for name, array in values.items():
                sums[name] = sums.get(name, 0) + array * (len(rows) / total)
    return SuspicionScores(neurons, synapses, add_up=True)


def _class_means(im: InstrumentedModel, samples: ClassifiedSamples) -> dict[int, Arrays]:
    means = {}
    for label, rows in _by_class(samples):
        sums: Arrays = {}
        for batch in im.capture_batches(samples.x[rows], _BATCH):
            for name, values in batch.items():
                sums[name] = sums.get(name, 0) + values.sum(axis=0, dtype=np.float64)
        means[label] = {n: (total / len(rows)).astype(np.float32) for n, total in sums.items()}
    return means


def patching(im: InstrumentedModel, runs: Runs, _: bool = False) -> SuspicionScores:
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
    for label, chosen in _by_class(samples):
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


# --- formulas ------------------------------------------------------------------------------


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return above / below; 0 for 0 / 0, and a value above all others for other n / 0."""
    quotient = np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)
    largest = quotient.max(initial=0.0)
    return np.where((below == 0) & (above > 0), largest + above, quotient)


FORMULAS: dict[str, Formula] = {
    # The share of failures over the sum of both shares (Jones and Harrold, ASE 2005).
    "tarantula": lambda failed, passed, all_failed, all_passed: _ratio(
        failed / all_failed, failed / all_failed + passed / all_passed
    ),
    # The cosine between taking part and failing (Abreu et al., TAIC PART 2007).
    "ochiai": lambda failed, passed, all_failed, all_passed: _ratio(
        failed, np.sqrt(all_failed * (failed + passed))
    ),
    # D* with * = 3 (Wong et al., IEEE Transactions on Reliability 2014).
    "dstar": lambda failed, passed, all_failed, all_passed: _ratio(
        failed.astype(np.float64) ** _EXPONENT, passed + (all_failed - failed)
    ),
}


def membership(
    formula: Formula, im: InstrumentedModel, runs: Runs, progress: bool = False, **options: Any
) -> SuspicionScores:
    """Apply a formula to membership in the slices for the predicted class."""
    slicer = slicer_of(im, runs, progress, **options)
    operations = [operation.name for operation in im.operations]
    failed, passed = ({}, {}), ({}, {})  # of neurons and of synapses
    for counts, samples in ((failed, runs.failing), (passed, runs.passing)):
        for part in slicer.iterate(samples.x, "predicted", operations=operations):
            for sums, values in zip(counts, (part.neurons, part.synapses), strict=True):
                for name, array in values.items():
                    sums[name] = sums.get(name, 0) + (array != 0).sum(axis=0, dtype=np.float64)
    sizes = len(runs.failing), len(runs.passing)
    neurons, synapses = (
        {name: formula(failed[i][name], passed[i][name], *sizes) for name in failed[i]}
        for i in (0, 1)
    )
    return SuspicionScores(neurons, synapses, add_up=False)


def activity(
    formula: Formula, im: InstrumentedModel, runs: Runs, _: bool = False
) -> SuspicionScores:
    """Apply a formula to active (positive) neurons, and to targets of synapses (as DeepFault)."""
    failed: Arrays = {}
    passed: Arrays = {}
    for sums, samples in ((failed, runs.failing), (passed, runs.passing)):
        for batch in im.capture_batches(samples.x, _BATCH):
            for name, values in batch.items():
                sums[name] = sums.get(name, 0) + (values > 0).sum(axis=0, dtype=np.float64)
    sizes = len(runs.failing), len(runs.passing)
    neurons = {name: formula(failed[name], passed[name], *sizes) for name in failed}
    return SuspicionScores.by_channel(im, neurons)


def chance(
    seed: int, im: InstrumentedModel, runs: Runs | None = None, _: bool = False
) -> SuspicionScores:
    """Return random scores."""
    rng = np.random.default_rng(seed)
    neurons = {o.name: rng.random(o.shape) for o in im.operations}
    synapses = {name: rng.random(kernel.shape) for name, kernel in im.kernels.items()}
    return SuspicionScores(neurons, synapses, add_up=False)


_OF_SLICES = {"contrast": contrast, "wrong_minus_right": wrong_minus_right}
BASELINES = {
    "patching": patching,
    "gradient_contrast": gradient_contrast,
    **_OF_SLICES,
    **{f"{name}:amount": partial(f, contribution="amount") for name, f in _OF_SLICES.items()},
    **{name: partial(membership, formula) for name, formula in FORMULAS.items()},
    **{f"deepfault_{name}": partial(activity, formula) for name, formula in FORMULAS.items()},
    "random": partial(chance, 0),
}


def register(seed: int = 0) -> None:
    """Add the baselines to the methods of `suspicious`; the seed is that of "random"."""
    METHODS.update(BASELINES, random=partial(chance, seed))
