"""Replay triggering inputs, one at a time, on freshly loaded models."""

from collections.abc import Callable

import numpy as np

from nnslicer_tf.dflare.bounded import BoundedDomain
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.default_domain import default_domain
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.domain import Domain, replay
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
        domain: As in the search.

    Returns:
        Which of the found deviations hold, `(found,) bool`, in the order of `found.images`.

    Raises:
        InvalidArgumentError: if a trace names an operator that the domain lacks.
    """
    original = load_original()
    domain = default_domain(seeds, original) if domain is None else domain
    pair = ModelPair(original, load_compressed(), domain, preprocess, batch_size=1)
    holds = []
    for seed, outcome in zip(seeds, found, strict=True):
        deviation = outcome.deviation
        if outcome.status != "found" or deviation is None:
            continue
        answers = pair.ask(deviation.image[None])
        same_labels = tuple(answers.labels[0].tolist()) == deviation.labels
        replayed = deviation.image
        if deviation.trace is not None:
            limit = found.max_distance
            near = domain if limit is None else BoundedDomain(domain, seed, limit)
            replayed = replay(seed.astype(replayed.dtype), deviation.trace, near)
        same_image = np.array_equal(replayed, deviation.image)
        holds.append(bool(answers.deviates[0]) and same_labels and same_image)
    return np.array(holds, bool)
