"""Comparison of a `Slice` with what an oracle found."""

import numpy as np


def check_equal(result, contrib, synapses):
    """Compare a `Slice` with the oracle's dictionaries, entry by entry."""
    assert set(result.neurons) == set(contrib)
    for name, by_index in contrib.items():
        expected = np.zeros_like(result.neurons[name])
        for i, value in by_index.items():
            expected[i] = value
        np.testing.assert_array_equal(result.neurons[name], expected, err_msg=name)
    for name, values in result.synapses.items():
        expected = np.zeros_like(values)
        for i, value in synapses[name].items():
            expected[i] = value
        np.testing.assert_array_equal(values, expected, err_msg=name)
