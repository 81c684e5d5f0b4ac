"""Sentences as inputs: edits against what they are by definition, and a search in a known model."""

import numpy as np
import pytest

from nnslicer_tf import zoo
from nnslicer_tf.datasets import texts
from nnslicer_tf.dflare import (
    DFlare,
    DiffChaser,
    ModelPair,
    TextDomain,
    as_classifier,
    compress,
    minimise,
    verify,
    with_softmax,
)
from nnslicer_tf.dflare.text import similar_words, word_edits
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from support.deviating import find

WORDS = 40


@pytest.fixture
def embedding():
    return np.random.default_rng(0).normal(size=(WORDS, 6))


def sentences(count=30, length=9, seed=1):
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, length), np.int32)
    for row in rows:
        words = rng.integers(1, length + 1)
        row[:words] = rng.integers(2, WORDS, words)
    return rows


def test_similar_words_by_brute_force(embedding):
    found = similar_words(embedding, 3)
    norms = np.linalg.norm(embedding, axis=1)
    for word in range(WORDS):
        others = [w for w in range(2, WORDS) if w != word]
        cosines = [embedding[word] @ embedding[w] / (norms[word] * norms[w]) for w in others]
        expected = [others[i] for i in np.argsort(-np.array(cosines))[:3]]
        assert found[word].tolist() == expected


def test_too_few_words_are_refused(embedding):
    with pytest.raises(InvalidArgumentError, match="more than 10"):
        similar_words(embedding[:9], 8)


@pytest.mark.parametrize(
    ("sentence", "operator", "parameters", "expected"),
    [
        ([5, 6, 7, 0], "replace_word", {"place": 1, "word": 9}, [5, 9, 7, 0]),
        ([5, 6, 7, 0], "insert_word", {"place": 0, "word": 9}, [9, 5, 6, 7]),
        ([5, 6, 7, 8], "insert_word", {"place": 3, "word": 9}, [5, 6, 7, 9]),
        ([5, 6, 7, 0], "swap_words", {"place": 1}, [5, 7, 6, 0]),
        ([5, 6, 7, 0], "drop_word", {"place": 0}, [6, 7, 0, 0]),
        ([5, 0], "drop_word", {"place": 0}, [5, 0]),
        ([5, 0], "swap_words", {"place": 0}, [5, 0]),
    ],
)
def test_operators_by_hand(embedding, sentence, operator, parameters, expected):
    operator = TextDomain(embedding).operators[operator]
    assert operator.apply(np.array(sentence, np.int32), parameters).tolist() == expected


def test_mutants_are_sentences_and_repeatable(embedding):
    domain = TextDomain(embedding)
    rng = np.random.default_rng(0)
    for x in sentences():
        for name, operator in domain.operators.items():
            parameters = operator.draw(rng, x)
            mutant = operator.apply(x, parameters)
            assert mutant.shape == x.shape and mutant.dtype == x.dtype
            domain.check_seeds(mutant[None])
            np.testing.assert_array_equal(operator.apply(x, parameters), mutant)
            assert word_edits(x, mutant) <= 2, name


def test_children_of_two_sentences_are_sentences(embedding):
    domain, rng = TextDomain(embedding), np.random.default_rng(0)
    first, second = sentences(), sentences(seed=2)
    children = domain.cross(first, second, rng)
    domain.check_seeds(children)
    for a, b, child in zip(first, second, children, strict=True):
        words = child[child != 0].tolist()
        cuts = range(1, np.count_nonzero(a) + 1)
        assert words in [[*a[:cut], *[w for w in b[cut:] if w]] for cut in cuts]


def levenshtein(a, b):
    if not a or not b:
        return len(a) + len(b)
    rest = levenshtein(a[1:], b[1:]) + (a[0] != b[0])
    return min(rest, 1 + levenshtein(a[1:], b), 1 + levenshtein(a, b[1:]))


def test_word_edits_are_the_levenshtein_distance():
    rows = sentences(12, 5, seed=3) % 4 + 2 * (sentences(12, 5, seed=3) > 0)
    for a in rows:
        for b in rows:
            expected = levenshtein([w for w in a.tolist() if w], [w for w in b.tolist() if w])
            assert word_edits(a, b) == expected


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.zeros((2, 4), np.float32), "integers"),
        (np.array([[1, 0, 2]]), "padding"),
        (np.array([[0, 0, 0]]), "no word"),
        (np.array([[WORDS, 1, 0]]), "0 to 39"),
    ],
)
def test_bad_seeds_are_refused(embedding, bad, said):
    with pytest.raises(InputShapeError, match=said):
        TextDomain(embedding).check_seeds(bad)


def by_sum(threshold):
    """A classifier: whether the numbers of the words add up to a threshold or more."""

    def probabilities(batch):
        first = np.where(batch.sum(axis=1) >= threshold, 0.9, 0.1)
        return np.stack([first, 1 - first], axis=1)

    return probabilities


@pytest.mark.parametrize("search", [DFlare(), DiffChaser(population=60)], ids=repr)
def test_a_search_finds_the_sentences_between_two_thresholds(embedding, search):
    seeds = np.array([[2, 3, 4, 0, 0, 0], [30, 30, 30, 39, 39, 0]])
    domain = TextDomain(embedding)
    pair, budget = (by_sum(60), by_sum(80)), {"max_queries": 5_000, "progress": False}
    found = find(*pair, seeds, search=search, domain=domain, **budget)
    assert found.found.all()
    assert all(60 <= x.sum() < 80 for x in found.images)
    asked = ModelPair(*pair, domain=domain)
    assert verify(asked, found).all()
    table = found.to_frame()
    edits = [word_edits(seed, x) for seed, x in zip(seeds, found.images, strict=True)]
    assert table["words"].tolist() == edits and "L∞" not in table

    least = minimise(asked, found, progress=False)
    assert all(60 <= x.sum() < 80 for x in least.images)
    assert (least.to_frame()["words"] <= table["words"]).all()


def test_what_needs_distances_of_values_is_refused(embedding):
    seeds, domain = np.array([[2, 3, 0]]), TextDomain(embedding)
    pair = by_sum(6), by_sum(9)
    with pytest.raises(InvalidArgumentError, match="max_distance"):
        find(*pair, seeds, domain=domain, max_distance=3, progress=False)
    found = find(*pair, seeds, domain=domain, max_queries=2_000, progress=False)
    with pytest.raises(InvalidArgumentError, match="cannot be drawn"):
        found.figure()


def test_a_real_sentence_and_a_mutated_transformer():
    model = with_softmax(zoo.load("text_transformer"))
    changed = compress(model, "prune", ratio=0.5)
    vectors = next(w for w in model.weights if w.shape[0] == len(texts.vocabulary()))
    seeds = texts.vocabulary().encode(
        ["a warm and funny film .", "it is dull , slow and far too long ."]
    )
    domain = TextDomain(np.asarray(vectors))
    found = find(model, changed, seeds, domain=domain, max_queries=1_000, progress=False)
    assert found.found.all()
    for outcome in found:
        x = outcome.deviation.image[None]
        labels = [as_classifier(m).probabilities(x)[0].argmax() for m in (model, changed)]
        assert tuple(labels) == outcome.deviation.labels and labels[0] != labels[1]
