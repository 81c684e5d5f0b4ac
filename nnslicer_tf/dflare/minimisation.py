"""Minimised deviations: as much of the seed as the deviation allows.

First the whole change is reduced as far as the models still disagree; then block after block of the
image, from quarters of its sides to single pixels, goes back to the seed where they still do (as in
delta debugging, Zeller and Hildebrandt 2002); at last what is left is reduced again. Cost: some
hundred queries an image, one at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from nnslicer_tf._progress import track
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.deviations import Deviation, DeviationSet, Outcome
from nnslicer_tf.dflare.domain import Answers, Domain
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess
from nnslicer_tf.errors import InvalidArgumentError

_HALVINGS = 8
_SIDES = (4, 8, 16)  # blocks along a side


def minimise(
    found: DeviationSet,
    original: ModelLike,
    compressed: ModelLike,
    preprocess: Preprocess | None = None,
    *,
    domain: Domain | None = None,
    progress: bool = True,
) -> DeviationSet:
    """Return the deviations with the smallest changes of their seeds that were found.

    The same two labels are not kept: any disagreement counts. What is minimised has no trace.

    Args:
        found: Deviations of images with their seeds, as of `find_deviations`.
        original: As in the search.
        compressed: As in the search.
        preprocess: As in the search.
        domain: As in the search; None: `ImageDomain()`.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if the set has no seeds.
    """
    if found.seeds is None:
        raise InvalidArgumentError(
            "These deviations have no seeds to come back to: search again with find_deviations, or "
            "make the set with DeviationSet(outcomes, seeds=seeds)."
        )
    domain = ImageDomain() if domain is None else domain
    pair = ModelPair(original, compressed, domain, preprocess, batch_size=1)
    outcomes = []
    confidences = []
    for seed, outcome in track(
        zip(found.seeds, found, strict=True), "Minimising", len(found), progress
    ):
        if outcome.status == "found" and outcome.deviation is not None:
            outcome, answers = _minimised(outcome, outcome.deviation, seed, pair)
            confidences.append([answers.original[0].max(), answers.compressed[0].max()])
        outcomes.append(outcome)
    return DeviationSet(outcomes, found.seeds, found.truth, np.array(confidences).reshape(-1, 2))


def _minimised(
    outcome: Outcome, deviation: Deviation, seed: np.ndarray, pair: ModelPair
) -> tuple[Outcome, Answers]:
    def deviates(x: np.ndarray) -> bool:
        return bool(pair.ask(x[None]).deviates[0])

    image = _nearest(seed, deviation.image, pair.domain, deviates)
    for block in _blocks(seed.shape):
        if np.array_equal(image[block], seed[block]):
            continue
        restored = image.copy()
        restored[block] = seed[block]
        if deviates(restored):
            image = restored
    image = _nearest(seed, image, pair.domain, deviates)
    answers = pair.ask(image[None])
    labels = (int(answers.labels[0, 0]), int(answers.labels[0, 1]))
    smaller = replace(deviation, image=image, labels=labels, trace=None)
    return replace(outcome, deviation=smaller), answers


def _nearest(
    seed: np.ndarray, image: np.ndarray, domain: Domain, deviates: Callable[[np.ndarray], bool]
) -> np.ndarray:
    """Return the deviation nearest to the seed that bisection finds on the way to the image."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        x = domain.blend(seed, image, share)
        if deviates(x):
            high = share
        else:
            low = share
    return image if high == 1 else domain.blend(seed, image, high)


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield blocks of an image, large ones first."""
    for side in _SIDES:
        steps = [max(1, length // side) for length in shape[:2]]
        for top in range(0, shape[0], steps[0]):
            for left in range(0, shape[1], steps[1]):
                yield slice(top, top + steps[0]), slice(left, left + steps[1])
