"""Encoded sentences of SST-2, drawn at random for the experiments, and measures on them."""

import numpy as np

from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.datasets import texts
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile
from reproduction.sentences.settings import SentenceSettings


def drawn_sentences(s: SentenceSettings, split: str = "test") -> np.ndarray:
    """Return the sentences to measure on, `(sentences, words)` tokens, in the split's order."""
    sentences = texts.load("sst2", split)
    drawn = np.sort(np.random.default_rng(s.seed).permutation(len(sentences))[: s.sentences])
    return texts.vocabulary().encode([sentences.text[i] for i in drawn])


def profiled_sentences(s: SentenceSettings) -> np.ndarray:
    """Return the training sentences of the profile, `(sentences, words)` tokens."""
    return texts.vocabulary().encode(texts.load("sst2", f"train[:{s.profile}]").text)


def lead(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each class's logit minus the largest other one, `(samples,)`."""
    return -runner_up_margin(logits, labels)


def rose(im: InstrumentedModel, profile: Profile, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether the classes' logits are above their means (1) or below (-1).

    Contributions explain the change of a logit, whereas scores measure support for the class.
    """
    change = im.logits(x) - profile.means[im.logit_operation]
    return np.sign(change[np.arange(len(x)), labels])
