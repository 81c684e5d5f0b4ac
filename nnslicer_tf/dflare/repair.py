"""DRepair: correct a compressed model's labels from its probabilities (paper, section 5.5).

A perceptron with one hidden layer learns the original's label from the compressed model's
probability vector, on seeds and triggering inputs; it takes a second or two for 1,000.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from nnslicer_tf._checks import check_count
from nnslicer_tf.dflare.classifiers import Classifier
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.domain import NO_LABEL
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.errors import InvalidArgumentError


@dataclass(eq=False)
class RepairedClassifier(Classifier):
    """A compressed model whose labels a perceptron, fitted to them, corrects."""

    compressed: Classifier
    network: MLPClassifier
    classes: int

    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the repaired probabilities, `(batch, classes) float32`."""
        repaired, known = np.zeros((len(inputs), self.classes), np.float32), 1
        if len(self.network.classes_) > 1:  # the perceptron always returns two columns or more
            known = self.network.predict_proba(self.compressed.probabilities(inputs))
        repaired[:, self.network.classes_] = known
        return repaired


def repair_labels(
    pair: ModelPair, found: DeviationSet, *, hidden: int = 100, max_iter: int = 500, rng: int = 0
) -> RepairedClassifier:
    """Return the compressed model with its labels corrected by DRepair.

    Args:
        pair: The models of the search.
        found: The outcomes of the search.
        hidden: Units of the hidden layer.
        max_iter: Passes over the training data.
        rng: Seed of the initial weights and of the order of the samples.

    Raises InvalidArgumentError if nothing was found, or the seeds are unknown.
    """
    check_count("hidden", hidden)
    check_count("rng", rng, 0)
    check_count("max_iter", max_iter)
    seeds, triggers, seed_labels, trigger_labels = repair_data(pair, found)
    x, y = np.concatenate([seeds, triggers]), np.concatenate([seed_labels, trigger_labels])
    network = MLPClassifier((hidden,), max_iter=max_iter, random_state=rng)
    with warnings.catch_warnings():
        # Stopping at max_iter prevents overfitting.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(x, y)
    return RepairedClassifier(pair.compressed, network, x.shape[1])


def repair_data(
    pair: ModelPair, found: DeviationSet
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Query the models with the successful searches' seeds and triggering inputs.

    Returns the compressed model's `(pairs, classes)` and the original's labels `(pairs,)` on both.
    """
    if not found.found.any():
        raise InvalidArgumentError("A repair needs triggering inputs, but none was found.")
    if (found.labels == NO_LABEL).any():
        raise InvalidArgumentError("Labels are repaired, and these models have maps or numbers.")
    pair = pair.for_seeds(found.known_seeds())
    before, after = pair.ask(found.known_seeds()[found.found]), pair.ask(found.images)
    return before.compressed, after.compressed, before.labels[:, 0], after.labels[:, 0]
