from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from nnslicer_tf.dflare import (
    AnyChangeFitness,
    DistanceFitness,
    GrowthFitness,
    MetropolisHastings,
    NoveltyFitness,
    RankOnly,
    Uniform,
)
from nnslicer_tf.dflare.fitness import ObservedStates
from nnslicer_tf.errors import InvalidArgumentError

# (fitness, D of the mutant, D of the best, new) -> accepted, by hand from H = D / δ + O
CASES = [
    (NoveltyFitness(1e-3), 0.5, 0.4, False, True),
    (NoveltyFitness(1e-3), 0.4, 0.4, False, True),
    (NoveltyFitness(1e-3), 0.3995, 0.4, False, False),
    (NoveltyFitness(1e-3), 0.3995, 0.4, True, True),
    (NoveltyFitness(1e-3), 0.3985, 0.4, True, False),
    (NoveltyFitness(1e-2), 0.3985, 0.4, True, True),
    (DistanceFitness(), 0.4, 0.4, False, True),
    (DistanceFitness(), 0.3999, 0.4, True, False),
    (GrowthFitness(0.2), 0.3, 0.1, False, True),
    (GrowthFitness(0.2), 0.2, 0.1, True, False),
    (GrowthFitness(0.2), 0.3, 0.3, True, False),
    (GrowthFitness(), 1.0, 0.0, True, False),  # as programmed: never
    (AnyChangeFitness(1e-3), 0.3, 0.4, False, True),
    (AnyChangeFitness(1e-3), 0.3995, 0.4, False, False),
    (AnyChangeFitness(1e-3), 0.3995, 0.4, True, True),
]


@pytest.mark.parametrize(("fitness", "distance", "best", "new", "accepted"), CASES)
def test_accepts(fitness, distance, best, new, accepted):
    assert fitness.accepts(distance, best, new) is accepted


def test_observed_states_match_brute_force():
    rng = np.random.default_rng(0)
    states = rng.random((300, 6)).astype(np.float32)
    observed, kept = ObservedStates(0.4), []
    for state in states:
        new = all(np.linalg.norm(state - other) > 0.4 for other in kept)
        assert observed.add(state) is new
        if new:
            kept.append(state)
    assert 1 < len(kept) < 300


def test_searches_do_not_share_their_memory():
    fitness = NoveltyFitness()
    first, second = fitness.start(), fitness.start()
    state = np.ones(4, np.float32)
    assert first.observe(state)
    assert not first.observe(state)
    assert second.observe(state)
    assert not DistanceFitness().start().observe(state)


def test_bad_fitness():
    with pytest.raises(InvalidArgumentError, match="delta"):
        NoveltyFitness(delta=0)
    with pytest.raises(InvalidArgumentError, match="radius"):
        NoveltyFitness(radius=-1)


def trained(kind):
    """A selection in which v is 1 for `good`, 1/2 for `fair`, 0 for `poor`."""
    selection = kind().start(["poor", "fair", "good"])
    for operator, outcomes in {"good": [1, 1], "fair": [1, 0], "poor": [0, 0]}.items():
        for accepted in outcomes:
            selection.update(operator, bool(accepted))
    return selection


RANK = {"good": 0, "fair": 1, "poor": 2}


def transitions(acceptance):
    """The matrix of the chain: a candidate is uniform, and drawn again when refused."""
    weights = np.array([[min(1, acceptance(b, a)) for b in RANK.values()] for a in RANK.values()])
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "acceptance"),
    [
        (MetropolisHastings, lambda rank, last: (2 / 3) ** (rank - last)),
        (RankOnly, lambda rank, last: (2 / 3) ** rank),
    ],
)
def test_selection_walks_by_the_transition_matrix(kind, acceptance):
    selection, rng = trained(kind), np.random.default_rng(0)
    walk = [selection.next(rng) for _ in range(20_000)]
    counts = Counter(pairwise(walk))
    for row, last in zip(transitions(acceptance), RANK, strict=True):
        total = sum(counts[last, following] for following in RANK)
        for probability, following in zip(row, RANK, strict=True):
            assert abs(counts[last, following] / total - probability) < 0.03


def test_uniform_selection_is_uniform():
    selection, rng = trained(Uniform), np.random.default_rng(0)
    counts = Counter(selection.next(rng) for _ in range(9000))
    assert all(abs(count - 3000) < 200 for count in counts.values())
