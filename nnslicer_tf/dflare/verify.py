"""Replay triggering inputs, one at a time."""

import numpy as np

from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.model_pair import ModelPair


def verify(pair: ModelPair, found: DeviationSet) -> np.ndarray:
    """Check which deviations can be reproduced.

    A deviation holds if its trace leads from its seed to its exact image, and the models, queried
    with this image alone, return the two recorded labels.

    Args:
        pair: The models, best freshly loaded; preprocessing and domain as in the search.
        found: The deviations, with their seeds.

    Returns:
        Whether each deviation holds, `(found,) bool`, in the order of `found.images`.

    Raises:
        InvalidArgumentError: if the domain lacks an operator of a trace, or the seeds are unknown.
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
