"""Results that arrive in any order, put in order."""

import itertools

import pytest

from nnslicer_tf.engine.engines import in_order


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_results_are_given_by_index(order):
    results = [(index, f"result {index}") for index in order]
    assert list(in_order(results)) == sorted(results)


def test_a_result_is_given_as_soon_as_all_before_it_are():
    arrived = []

    def results():
        for index in (0, 2, 1, 3):
            arrived.append(index)
            yield index, str(index)

    seen = [(index, tuple(arrived)) for index, _ in in_order(results())]
    assert seen == [(0, (0,)), (1, (0, 2, 1)), (2, (0, 2, 1)), (3, (0, 2, 1, 3))]
