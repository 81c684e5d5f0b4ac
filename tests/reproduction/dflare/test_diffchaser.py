"""DiffChaser: its generations by hand, and searches between models whose deviations are known."""

import numpy as np
import pytest

from nnslicer_tf.dflare import DeviationSet, ImageDomain, ModelPair, TextDomain, verify
from nnslicer_tf.dflare.domain import Answers
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.dflare.diffchaser import DiffChaser, cross
from support.deviating import find


def test_k_uncertainty_by_hand():
    first, second = np.array([[0.5, 0.2, 0.3]]), np.array([[0.1, 0.8, 0.1]])
    answers = Answers(first, second, np.zeros((1, 2)), np.zeros(1, bool), np.zeros(1))
    np.testing.assert_allclose(DiffChaser(k=2).uncertainty(answers), [[0.2], [0.7]])
    np.testing.assert_allclose(DiffChaser(k=3).uncertainty(answers), [[0.3], [0.7]])


def test_it_breeds_from_the_least_certain():
    search = DiffChaser(population=8, mutation_rate=0.0, tournament=50)
    seed = np.random.default_rng(5).integers(0, 256, (4, 4, 1), dtype=np.uint8)
    steps = search.run(seed, ImageDomain(), np.random.default_rng(0))
    np.testing.assert_array_equal(next(steps), seed[None])
    same, none = np.zeros((8, 2), int), np.zeros(8, bool)
    certain = np.tile(np.array([[0.9, 0.1]], np.float32), (8, 1))
    pool = steps.send(Answers(certain[:1], certain[:1], same[:1], none[:1], np.zeros(1)))
    assert pool.shape == (8, 4, 4, 1)
    original, compressed = certain.copy(), certain.copy()
    original[2] = compressed[5] = (0.51, 0.49)
    children = steps.send(Answers(original, compressed, same, none, np.zeros(8)))
    # tournaments of 50 out of 8 nearly always meet the best: input 2 in the original's
    # branch, 5 in the compressed model's; a child of equal parents is that parent
    np.testing.assert_array_equal(children[:4], np.repeat(pool[2:3], 4, axis=0))
    np.testing.assert_array_equal(children[4:], np.repeat(pool[5:6], 4, axis=0))


def test_found_images_lie_between_the_thresholds(pair, seeds, tmp_path):
    found = find(*pair, seeds, search=DiffChaser(population=40), max_queries=20_000)
    assert found.success_rate == 1
    means = found.images.reshape(len(seeds), -1).mean(axis=1)
    assert ((means > 128) & (means < 131)).all()
    np.testing.assert_array_equal(found.labels, [[1, 0]] * len(seeds))
    assert verify(ModelPair(*pair), found).all()
    found.save(tmp_path / "found.npz")
    loaded = DeviationSet.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(loaded.images, found.images)
    assert loaded.summary() == found.summary()


def test_bad_options(pair, seeds):
    for options in ({"population": 2}, {"k": 1}, {"tournament": 0}, {"k": "two"}):
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))} must be"):
            DiffChaser(**options)
    with pytest.raises(InvalidArgumentError, match="mutation_rate"):
        DiffChaser(mutation_rate=1.5)
    with pytest.raises(InvalidArgumentError, match=r"k must be in 2 … 2, .* Received: 3"):
        find(*pair, seeds, search=DiffChaser(population=8, k=3))


@pytest.fixture
def sentences():
    """The domain of sentences of 40 words."""
    return TextDomain(np.random.default_rng(0).normal(size=(40, 6)))


def test_children_of_two_sentences_are_sentences(sentences):
    rng = np.random.default_rng(1)
    first, second = (rng.integers(2, 40, (30, 9)) for _ in range(2))
    for rows in (first, second):
        rows[np.arange(9) >= rng.integers(1, 10, (30, 1))] = 0
    children = cross(first, second, sentences, rng)
    sentences.check_seeds(children)
    for a, b, child in zip(first, second, children, strict=True):
        words = child[child != 0].tolist()
        cuts = range(1, np.count_nonzero(a) + 1)
        assert words in [[*a[:cut], *[w for w in b[cut:] if w]] for cut in cuts]


def test_it_finds_the_sentences_between_two_thresholds(sentences):
    def by_sum(threshold):
        """A classifier: whether the numbers of the words add up to a threshold or more."""

        def probabilities(batch):
            first = np.where(batch.sum(axis=1) >= threshold, 0.9, 0.1)
            return np.stack([first, 1 - first], axis=1)

        return probabilities

    seeds = np.array([[2, 3, 4, 0, 0, 0], [30, 30, 30, 39, 39, 0]])
    pair, search = (by_sum(60), by_sum(80)), DiffChaser(population=60, max_queries=5_000)
    found = find(*pair, seeds, search=search, domain=sentences)
    assert found.found.all()
    assert all(60 <= x.sum() < 80 for x in found.images)
    assert verify(ModelPair(*pair, domain=sentences), found).all()
