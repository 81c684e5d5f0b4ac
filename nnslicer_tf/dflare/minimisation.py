"""Minimise deviations by undoing every change that is not needed.

While the models still disagree, images are reset to the seed block by block, rows value by value,
sentences edit by edit (as in delta debugging, Zeller and Hildebrandt, 2002). Cost: a few hundred
queries per image, one at a time; a few per sentence.
"""

from dataclasses import replace

import numpy as np

from nnslicer_tf._environment import track
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.model_pair import ModelPair


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

    outcomes, confidences = [], []
    for seed, outcome in track(zip(seeds, found, strict=True), "Minimising", len(found), progress):
        if outcome.status == "found" and outcome.deviation is not None:
            image = pair.domain.smaller(seed, outcome.deviation.image, deviates)
            answers = pair.ask(image[None])
            first, second = answers.labels[0].tolist()
            smaller = replace(outcome.deviation, image=image, labels=(first, second), trace=None)
            outcome = replace(outcome, deviation=smaller)
            confidences.append([answers.original[0].max(), answers.compressed[0].max()])
        outcomes.append(outcome)
    known = np.array(confidences).reshape(-1, 2)
    return DeviationSet(outcomes, seeds, found.truth, known, found.max_distance, found.features)
