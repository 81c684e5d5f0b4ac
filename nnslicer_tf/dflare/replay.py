"""Work with deviations that were found: verify, minimise and export them.

`minimise` resets images to the seed block by block, rows value by value, sentences edit by edit, as
long as the models disagree (as in delta debugging, Zeller and Hildebrandt, 2002). It costs a few
hundred queries per image, one at a time, and a few per sentence.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from nnslicer_tf._environment import track
from nnslicer_tf._files import as_path, atomic_path, check_writable
from nnslicer_tf.dflare.deviations import DeviationSet, certainties
from nnslicer_tf.dflare.domain import NO_LABEL
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess
from nnslicer_tf.errors import InvalidArgumentError


def verify(pair: ModelPair, found: DeviationSet) -> np.ndarray:
    """Check which deviations can be reproduced.

    A deviation holds if its trace leads from its seed to its exact image, and the models, queried
    with this image alone, return the two recorded labels.

    Args:
        pair: The models, best freshly loaded; preprocessing and domain as in the search.
        found: The deviations, with their seeds.

    Returns whether each deviation holds, `(found,) bool`, in the order of `found.images`; raises
    InvalidArgumentError if the domain lacks an operator of a trace, or the seeds are unknown.
    """
    seeds = found.known_seeds()
    pair = pair.for_seeds(seeds).one_by_one()
    holds = []
    for seed, outcome in zip(seeds, found, strict=True):
        deviation = outcome.deviation
        if outcome.status != "found" or deviation is None:
            continue
        answers = pair.ask(deviation.image[None])
        same_labels = tuple(answers.labels[0].tolist()) == deviation.labels
        replayed = deviation.image
        if deviation.trace is not None:
            domain = pair.domain.near(seed, found.max_distance)
            replayed = domain.replay(seed.astype(replayed.dtype), deviation.trace)
        same_image = np.array_equal(replayed, deviation.image)
        holds.append(bool(answers.deviates[0]) and same_labels and same_image)
    return np.array(holds, bool)


def minimise(pair: ModelPair, found: DeviationSet, progress: bool = True) -> DeviationSet:
    """Return the deviations with their changes from the seeds minimised.

    Any disagreement counts, so labels may change. Minimised deviations have no trace.

    Args:
        pair: The models of the search.
        found: Deviations with their seeds, else `InvalidArgumentError` is raised.
        progress: Whether to show a progress bar.
    """
    seeds = found.known_seeds()
    pair = pair.for_seeds(seeds).one_by_one()

    def deviates(x: np.ndarray) -> bool:
        return bool(pair.ask(x[None]).deviates[0])

    outcomes = []
    for seed, outcome in track(zip(seeds, found, strict=True), "Minimising", len(found), progress):
        if outcome.status == "found" and outcome.deviation is not None:
            image = pair.domain.smaller(seed, outcome.deviation.image, deviates)
            first, second = pair.ask(image[None]).labels[0].tolist()
            smaller = replace(outcome.deviation, image=image, labels=(first, second), trace=None)
            outcome = replace(outcome, deviation=smaller)
        outcomes.append(outcome)
    smallest = replace(found, outcomes=outcomes)
    if not found.found.any():
        return smallest
    return replace(smallest, **certainties(pair.ask(smallest.images)))


def export_suite(
    found: DeviationSet, folder: str | os.PathLike, preprocess: Preprocess | None = None
) -> Path:
    """Write deviations as a folder of pytest tests.

    Args:
        found: The deviations.
        folder: Receives `test_deviations.py` and `deviations.npz`.
        preprocess: As in the search; the file stores the models' inputs. None: float32 values.

    Returns the test file. Raises InvalidArgumentError if nothing was found, answers are maps or
    numbers, or writing fails.
    """
    if not found.found.any():
        raise InvalidArgumentError("There are no deviations to export: none was found.")
    if (found.labels == NO_LABEL).any():
        raise InvalidArgumentError(
            "The tests compare labels, and these deviations are of maps or numbers. Save them with "
            "found.save, and compare later models with dflare.agreement(pair, found.images)."
        )
    test = check_writable(as_path(folder) / "test_deviations.py")
    inputs = found.images
    if preprocess is not None:
        inputs = np.asarray(preprocess(inputs))
    elif inputs.ndim != 2 or inputs.dtype.kind not in "iu":  # no sentences
        inputs = inputs.astype(np.float32)
    with atomic_path(test.with_name("deviations.npz")) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, inputs=inputs, labels=found.labels[:, 0])
    with atomic_path(test) as temporary:
        temporary.write_bytes(Path(__file__).with_name("test_deviations.txt").read_bytes())
    return test
