"""Minimise deviations by undoing every change that is not needed.

The domain defines what can be undone: an image is reset to its seed block by block, a row value by
value, a sentence edit by edit, as long as the models still disagree (as in delta debugging, Zeller
and Hildebrandt, 2002). Cost: a few hundred queries per image, one at a time; a few per sentence.
"""

from dataclasses import replace

import numpy as np

from nnslicer_tf._environment import track
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.default_domain import default_domain
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.domain import Domain
from nnslicer_tf.dflare.model_pair import ModelPair, Preprocess
from nnslicer_tf.errors import InvalidArgumentError


def minimise(
    found: DeviationSet,
    original: ModelLike,
    compressed: ModelLike,
    preprocess: Preprocess | None = None,
    *,
    domain: Domain | None = None,
    progress: bool = True,
) -> DeviationSet:
    """Return the deviations with their changes from the seeds minimised.

    Any disagreement counts, so the labels may change. Minimised deviations have no trace.

    Args:
        found: Deviations with their seeds, from `find_deviations`.
        original: As in the search.
        compressed: As in the search.
        preprocess: As in the search.
        domain: As in the search.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if the set has no seeds.
    """
    if found.seeds is None:
        raise InvalidArgumentError(
            "These deviations have no seeds to come back to: search again with find_deviations, or "
            "make the set with DeviationSet(outcomes, seeds=seeds)."
        )
    domain = default_domain(found.seeds, original) if domain is None else domain
    pair = ModelPair(original, compressed, domain, preprocess, batch_size=1)

    def deviates(x: np.ndarray) -> bool:
        return bool(pair.ask(x[None]).deviates[0])

    outcomes = []
    confidences = []
    for seed, outcome in track(
        zip(found.seeds, found, strict=True), "Minimising", len(found), progress
    ):
        if outcome.status == "found" and outcome.deviation is not None:
            image = domain.smaller(seed, outcome.deviation.image, deviates)
            answers = pair.ask(image[None])
            first, second = answers.labels[0].tolist()
            smaller = replace(outcome.deviation, image=image, labels=(first, second), trace=None)
            outcome = replace(outcome, deviation=smaller)
            confidences.append([answers.original[0].max(), answers.compressed[0].max()])
        outcomes.append(outcome)
    known = np.array(confidences).reshape(-1, 2)
    return DeviationSet(
        outcomes, found.seeds, found.truth, known, found.max_distance, found.features
    )
