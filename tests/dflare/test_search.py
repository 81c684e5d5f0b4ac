import numpy as np
import pytest

from nnslicer_tf.dflare import DFlare, ImageDomain
from nnslicer_tf.dflare.domain import Answers
from nnslicer_tf.errors import InvalidArgumentError

SEED = np.random.default_rng(5).integers(0, 256, (4, 4, 1), dtype=np.uint8)


def answer(*rows):
    """Answers with given (label, label, D); every state is the same, so never new again."""
    labels = np.array([row[:2] for row in rows])
    count = len(rows)
    outputs = np.full((count, 2), 0.5, np.float32)
    distance = np.array([row[2] for row in rows], float)
    return Answers(outputs, outputs, labels, labels[:, 0] != labels[:, 1], distance)


def begin(search):
    steps = search.run(SEED, ImageDomain(), np.random.default_rng(0))
    np.testing.assert_array_equal(next(steps), SEED[None])
    return steps


def finish(steps, last):
    with pytest.raises(StopIteration) as end:
        steps.send(last)
    return end.value.value


def test_a_seed_that_deviates_ends_with_an_empty_trace():
    assert finish(begin(DFlare()), answer((0, 1, 0.1))).trace == ()


def test_only_accepted_mutants_stay_in_the_trace():
    steps = begin(DFlare(patience=None, bisections=0))
    first = steps.send(answer((0, 0, 0.2)))[0]
    steps.send(answer((0, 0, 0.3)))  # accepted: D grew
    steps.send(answer((0, 0, 0.1)))  # refused: D fell
    last = steps.send(answer((0, 0, 0.2)))[0]  # refused
    found = finish(steps, answer((0, 1, 0.0)))
    assert len(found.trace) == 2
    assert found.labels == (0, 1)
    np.testing.assert_array_equal(found.x, last)
    np.testing.assert_array_equal(ImageDomain().replay(SEED, found.trace[:1]), first)
    np.testing.assert_array_equal(ImageDomain().replay(SEED, found.trace), last)


def test_patience_accepts_the_last_of_many_refused_mutants():
    steps = begin(DFlare(patience=3, bisections=0))
    mutants = [steps.send(answer((0, 0, distance))) for distance in (0.9, 0.1, 0.2)]
    steps.send(answer((0, 0, 0.1)))  # the third refusal
    steps.send(answer((0, 0, 0.0)))  # the first one after it
    found = finish(steps, answer((0, 1, 0.0)))
    assert len(found.trace) == 2
    np.testing.assert_array_equal(ImageDomain().replay(SEED, found.trace[:1]), mutants[2][0])


def test_without_patience_the_search_stays():
    steps = begin(DFlare(patience=None, bisections=0))
    steps.send(answer((0, 0, 0.2)))
    for _ in range(2):
        steps.send(answer((0, 0, 0.9)))
    for _ in range(500):
        steps.send(answer((0, 0, 0.1)))
    assert len(finish(steps, answer((0, 1, 0.0))).trace) == 3


def test_bisection_halves_the_mutation_that_crossed_the_boundary():
    steps = begin(DFlare(bisections=3))
    crossing = steps.send(answer((0, 0, 0.2)))[0].astype(float)
    # both models say 1 at the end and half-way, 0 at a quarter, and disagree at three eighths
    for label, share in ((1, 0.5), (1, 0.25), (0, 0.375)):
        step = steps.send(answer((label, label, 0.1)))[0]
        np.testing.assert_array_equal(step, np.rint(SEED + share * (crossing - SEED)))
    found = finish(steps, answer((0, 1, 0.0)))
    assert [mutation.share for mutation in found.trace] == [0.375]
    np.testing.assert_array_equal(ImageDomain().replay(SEED, found.trace), found.x)


def test_bad_options():
    for options in ({"patience": 0}, {"bisections": -1}):
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))} must be"):
            DFlare(**options)
    for options in ({"timeout": "long"}, {"timeout": 0}, {"delta": None}, {"radius": [1]}):
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(options))} must be"):
            DFlare(**options)
