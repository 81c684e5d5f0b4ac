"""Baselines of `suspicious`: formulas of fault localisation, and chance.

A formula scores a part by how many failing and passing samples it takes part in: as a member of
their slices, or, with the prefix `deepfault_`, by being active (DeepFault: Eniser et al., FASE
2019). `register` adds all to `debugging.METHODS`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from nnslicer_tf.debugging import METHODS, Runs, SuspicionScores
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Slicer

Arrays = dict[str, np.ndarray]
Formula = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""`formula(failed, passed, all_failed, all_passed)`: counts, arrays of one shape → scores."""

_BATCH = 32
_EXPONENT = 3  # the exponent of D*, as in DeepFault (section 4)


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
    formula: Formula, im: InstrumentedModel, runs: Runs, make_slicer: Callable[[], Slicer]
) -> SuspicionScores:
    """Apply a formula to membership in the slices for the predicted class."""
    slicer = make_slicer()
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
    formula: Formula, im: InstrumentedModel, runs: Runs, _: Callable[[], Slicer]
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
    seed: int, im: InstrumentedModel, runs: Runs, _: Callable[[], Slicer]
) -> SuspicionScores:
    """Return random scores."""
    rng = np.random.default_rng(seed)
    neurons = {o.name: rng.random(o.shape) for o in im.operations}
    synapses = {name: rng.random(kernel.shape) for name, kernel in im.kernels.items()}
    return SuspicionScores(neurons, synapses, add_up=False)


BASELINES = {
    **{name: partial(membership, formula) for name, formula in FORMULAS.items()},
    **{f"deepfault_{name}": partial(activity, formula) for name, formula in FORMULAS.items()},
    "random": partial(chance, 0),
}


def register(seed: int = 0) -> None:
    """Add the baselines to the methods of `suspicious`; the seed is that of "random"."""
    METHODS.update(BASELINES, random=partial(chance, seed))
