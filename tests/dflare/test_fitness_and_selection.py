from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from nnslicer_tf.dflare import DFlare, ImageDomain
from nnslicer_tf.dflare.domain import Answers
from nnslicer_tf.dflare.search import metropolis_hastings, uniform
from nnslicer_tf.errors import InvalidArgumentError

# (options, D of the mutant, D of the best, new) -> accepted, by hand from H = D / δ + O
CASES = [
    ({"delta": 1e-3}, 0.5, 0.4, False, True),
    ({"delta": 1e-3}, 0.4, 0.4, False, True),
    ({"delta": 1e-3}, 0.3995, 0.4, False, False),
    ({"delta": 1e-3}, 0.3995, 0.4, True, True),
    ({"delta": 1e-3}, 0.3985, 0.4, True, False),
    ({"delta": 1e-2}, 0.3985, 0.4, True, True),
    ({"fitness": "distance"}, 0.4, 0.4, False, True),
    ({"fitness": "distance"}, 0.3999, 0.4, True, False),
    ({"fitness": lambda distance, best, new: distance > 0.2}, 0.3, 0.4, False, True),
]


@pytest.mark.parametrize(("options", "distance", "best", "new", "accepted"), CASES)
def test_accepts(options, distance, best, new, accepted):
    assert DFlare(**options).accepts(distance, best, new) is accepted


def test_new_states_match_brute_force():
    """What the fitness hears of states is whether one as near was seen in the same search."""
    rng = np.random.default_rng(0)
    states = rng.random((300, 2, 3)).astype(np.float32)
    heard = []

    def fitness(distance, best, new):
        heard.append(new)
        return False

    search = DFlare(fitness=fitness, patience=None, bisections=0, radius=0.4)
    for _ in range(2):
        heard.clear()
        steps = search.run(np.zeros((4, 4, 1), np.uint8), ImageDomain(), np.random.default_rng(0))
        next(steps)
        for first, second in states:
            same = np.zeros((1, 2), int)
            steps.send(Answers(first[None], second[None], same, np.zeros(1, bool), np.zeros(1)))
        seen, expected = [], []
        for state in states.reshape(300, 6):
            expected.append(all(np.linalg.norm(state - other) > 0.4 for other in seen))
            if expected[-1]:
                seen.append(state)
        assert heard == expected[1:] and 1 < len(seen) < 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0}, "delta"),
        ({"radius": -1}, "radius"),
        ({"fitness": "novel"}, "Did you mean 'novelty'"),
        ({"selection": "uniformly"}, "Did you mean 'uniform'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        DFlare(**options)


VALUES = np.array([0.0, 0.5, 1.0])  # of the operators poor, fair and good
RANKS = [2, 1, 0]


def walk(selection, steps):
    rng, last, places = np.random.default_rng(0), None, []
    for _ in range(steps):
        last = selection(VALUES, last, rng)
        places.append(last)
    return places


def test_selection_walks_by_the_transition_matrix():
    counts = Counter(pairwise(walk(metropolis_hastings, 20_000)))
    for last, rank in enumerate(RANKS):
        # A candidate is uniform, and drawn again when rejected.
        weights = np.array([min(1, (2 / 3) ** (other - rank)) for other in RANKS])
        total = sum(counts[last, following] for following in range(3))
        for following, probability in enumerate(weights / weights.sum()):
            assert abs(counts[last, following] / total - probability) < 0.03


def test_uniform_selection_is_uniform():
    counts = Counter(walk(uniform, 9000))
    assert all(abs(count - 3000) < 200 for count in counts.values())
