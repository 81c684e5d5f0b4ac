"""Encoded sentences of SST-2, drawn at random for the experiments."""

import numpy as np

from nnslicer_tf.datasets import texts
from reproduction.sentences.settings import SentenceSettings


def drawn_sentences(s: SentenceSettings, split: str = "test") -> np.ndarray:
    """Return the sentences to measure on, `(sentences, words)` tokens, in the split's order."""
    sentences = texts.load("sst2", split)
    drawn = np.sort(np.random.default_rng(s.seed).permutation(len(sentences))[: s.sentences])
    return texts.vocabulary().encode([sentences.text[i] for i in drawn])


def profiled_sentences(s: SentenceSettings) -> np.ndarray:
    """Return the training sentences of the profile, `(sentences, words)` tokens."""
    return texts.vocabulary().encode(texts.load("sst2", f"train[:{s.profile}]").text)
