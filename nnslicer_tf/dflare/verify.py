"""Replay triggering inputs, one at a time, on freshly loaded models."""

from collections.abc import Callable

import numpy as np

from nnslicer_tf.dflare.bounded import BoundedDomain
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.domain import Domain, Mutation, replay
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess


def verify(
    load_original: Callable[[], ModelLike],
    load_compressed: Callable[[], ModelLike],
    seeds: np.ndarray,
    found: DeviationSet,
    preprocess: Preprocess | None = None,
    *,
    domain: Domain | None = None,
) -> np.ndarray:
    """Check every deviation on freshly loaded models.

    A deviation holds if its trace leads from its seed to its exact image, and the models, queried
    with this image alone, return the two recorded labels. Traces of a search with `max_distance`
    are replayed within that limit, which `found` records.

    Args:
        load_original: Loads the original model.
        load_compressed: Loads the compressed one.
        seeds: The seeds of the search, `(seeds, ...)`.
        found: The deviations.
        preprocess: As in the search.
        domain: As in the search; None: `ImageDomain()`.

    Returns:
        Which of the found deviations hold, `(found,) bool`, in the order of `found.images`.

    Raises:
        InvalidArgumentError: if a trace names an operator that the domain lacks.
    """
    domain = ImageDomain() if domain is None else domain
    pair = ModelPair(load_original(), load_compressed(), domain, preprocess, batch_size=1)
    holds = []
    for seed, outcome in zip(seeds, found, strict=True):
        deviation = outcome.deviation
        if outcome.status != "found" or deviation is None:
            continue
        answers = pair.ask(deviation.image[None])
        same_labels = tuple(answers.labels[0].tolist()) == deviation.labels
        holds.append(
            bool(answers.deviates[0])
            and same_labels
            and (
                deviation.trace is None
                or _leads_to(deviation.image, seed, deviation.trace, domain, found.max_distance)
            )
        )
    return np.array(holds, bool)


def _leads_to(
    image: np.ndarray,
    seed: np.ndarray,
    trace: tuple[Mutation, ...],
    domain: Domain,
    max_distance: float | None,
) -> bool:
    if max_distance is not None:
        domain = BoundedDomain(domain, seed, max_distance)
    return np.array_equal(replay(seed, trace, domain), image)
