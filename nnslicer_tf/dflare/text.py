"""Sentences as word indices: a domain whose mutations are small edits.

The operators are those of "easy data augmentation" (Wei and Zou, EMNLP 2019): replace a word with
a similar one, insert one, swap two neighbours, delete one. Similar words are neighbours in an
embedding, as in TextFooler (Jin et al., AAAI 2020). Sentences are `(length,)` integers, 0 padding.
"""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import partial

import numpy as np

from nnslicer_tf._checks import check_count
from nnslicer_tf.datasets.texts import PADDING, UNKNOWN
from nnslicer_tf.dflare.domain import Domain, MutationOperator, Parameters
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError

_PIECE = 1024  # words whose similarities are computed at a time


def similar_words(embedding: np.ndarray, count: int = 8) -> np.ndarray:
    """Return the `count` most similar words of each word by cosine, `(words, count)` int64.

    `embedding` is `(words, features)`. Padding and the unknown word never appear among the similar
    words but have similar words themselves, so that unknown words can be replaced.
    """
    check_count("count", count)
    vectors = np.array(embedding, np.float32)
    if vectors.ndim != 2 or len(vectors) <= UNKNOWN + 1 + count:
        raise InvalidArgumentError(
            f"`similar_words` needs vectors (words, features) of more than {UNKNOWN + 1 + count} "
            f"words. Received an array of shape {vectors.shape}."
        )
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    nearest = []
    for first in range(0, len(vectors), _PIECE):
        cosines = vectors[first : first + _PIECE] @ vectors.T
        cosines[:, : UNKNOWN + 1] = -np.inf
        rows = np.arange(len(cosines))
        cosines[rows, first + rows] = -np.inf
        most = np.sort(np.argpartition(-cosines, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(cosines, most, axis=1), axis=1, kind="stable")
        nearest.append(np.take_along_axis(most, order, axis=1))
    return np.concatenate(nearest)


def word_count(sentence: np.ndarray) -> int:
    """Return the number of words in a sentence."""
    return int(np.count_nonzero(sentence != PADDING))


def word_edits(a: np.ndarray, b: np.ndarray) -> int:
    """Return the Levenshtein distance of two sentences: words to replace, insert or delete."""
    a, b = a[: word_count(a)], b[: word_count(b)]
    row = np.arange(len(b) + 1)
    for i, word in enumerate(a, start=1):
        row = np.concatenate([[i], np.minimum(row[:-1] + (b != word), row[1:] + 1)])
        for j in range(1, len(row)):  # insertions depend on each other
            row[j] = min(row[j], row[j - 1] + 1)
    return int(row[-1])


def text_operators(similar: np.ndarray) -> tuple[MutationOperator, ...]:
    """Return the four edits; `similar` is the result of `similar_words`."""

    def draw_replaced(rng: np.random.Generator, x: np.ndarray) -> Parameters:
        place = int(rng.integers(word_count(x)))
        return {"place": place, "word": int(rng.choice(similar[x[place]]))}

    def replace(x: np.ndarray, parameters: Parameters) -> np.ndarray:
        mutant = x.copy()
        mutant[int(parameters["place"])] = parameters["word"]
        return mutant

    def draw_inserted(rng: np.random.Generator, x: np.ndarray) -> Parameters:
        count = word_count(x)
        word = int(rng.choice(similar[x[rng.integers(count)]]))
        return {"place": int(rng.integers(min(count + 1, len(x)))), "word": word}

    def insert(x: np.ndarray, parameters: Parameters) -> np.ndarray:
        longer = np.insert(x, int(parameters["place"]), parameters["word"])
        return longer[: len(x)].astype(x.dtype)  # a full sentence loses its last word

    def draw_place(last: int, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw a word, not one of the `last` ones."""
        return {"place": int(rng.integers(max(word_count(x) - last, 1)))}

    def swap(x: np.ndarray, parameters: Parameters) -> np.ndarray:
        place, mutant = int(parameters["place"]), x.copy()
        if word_count(x) > 1:
            mutant[[place, place + 1]] = x[[place + 1, place]]
        return mutant

    def drop(x: np.ndarray, parameters: Parameters) -> np.ndarray:
        if word_count(x) < 2:
            return x.copy()
        return np.append(np.delete(x, int(parameters["place"])), PADDING).astype(x.dtype)

    return (
        MutationOperator("replace_word", draw_replaced, replace),
        MutationOperator("insert_word", draw_inserted, insert),
        MutationOperator("swap_words", partial(draw_place, 1), swap),
        MutationOperator("drop_word", partial(draw_place, 0), drop),
    )


class TextDomain(Domain):
    """Sentences `(length,)` of integers: words, then 0 as padding.

    Args:
        embedding: Vectors `(words, features)` that define similarity, such as the tested model's.
        operators: The pool of mutation operators; None: the four edits.
    """

    def __init__(
        self, embedding: np.ndarray, operators: Sequence[MutationOperator] | None = None
    ) -> None:
        self.words = len(embedding)
        operators = text_operators(similar_words(embedding)) if operators is None else operators
        super().__init__(operators)

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` unless `seeds` is `(batch, length)` words padded at the end."""
        if seeds.ndim != 2 or seeds.dtype.kind not in "iu":
            raise InputShapeError(
                "Seed sentences must be integers of the shape (batch, length), the numbers of "
                f"their words. Received: {seeds.dtype} of shape {seeds.shape}"
            )
        if seeds.min() < 0 or seeds.max() >= self.words:
            raise InputShapeError(
                f"The embedding has the words 0 to {self.words - 1}. Received sentences with "
                f"{seeds.min()} to {seeds.max()}."
            )
        present = seeds != PADDING
        bad = ~present[:, 0] | (np.diff(present.astype(int), axis=1) > 0).any(axis=1)
        if bad.any():
            raise InputShapeError(
                f"Seed sentence {int(np.flatnonzero(bad)[0])} has no word, or a word after padding."
            )

    def as_inputs(self, batch: np.ndarray) -> np.ndarray:
        """Return the words as they are."""
        return batch

    def blend(self, x: np.ndarray, mutant: np.ndarray, share: float) -> np.ndarray:
        """Return the mutant, or `x` for a share of 0, as nothing lies between two sentences."""
        return mutant if share > 0 else x

    def smaller(
        self, seed: np.ndarray, x: np.ndarray, deviates: Callable[[np.ndarray], bool]
    ) -> np.ndarray:
        """Undo edits one by one while the models still disagree, the largest first."""
        before, tried = seed[: word_count(seed)].tolist(), set()
        while True:
            after = x[: word_count(x)].tolist()
            edits = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
            edits = [edit for edit in edits if edit[0] != "equal"]
            edits.sort(key=lambda edit: -max(edit[2] - edit[1], edit[4] - edit[3]))
            for _, start, stop, new_start, new_stop in edits:
                words = [*after[:new_start], *before[start:stop], *after[new_stop:]]
                if not 0 < len(words) <= len(seed) or tuple(words) in tried:
                    continue
                tried.add(tuple(words))
                candidate = np.full(len(seed), PADDING, seed.dtype)
                candidate[: len(words)] = words
                if deviates(candidate):
                    x = candidate
                    break
            else:
                return x
