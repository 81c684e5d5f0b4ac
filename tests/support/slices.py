"""Comparison of a `Slice` with what an oracle found, with another one, and with itself."""

import numpy as np
import pytest


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


def cuts(im):
    """Return the operations through which every path from the inputs to the logits goes."""
    operations = {o.name: o for o in im.operations}

    def reaches_inputs(without):
        seen, waiting = set(), [im.logit_operation]
        while waiting:
            name = waiting.pop()
            if name not in seen and name != without and operations[name].kind != "mask":
                seen.add(name)
                waiting += operations[name].inputs
        return bool(seen & set(im.input_operations))

    return [name for name in operations if not reaches_inputs(name)]


def check_complete(slicer, x, outputs=(1,)):
    """Check that the amounts at every cut, and of every kernel, add up to the change of y."""
    im = slicer.im
    found = slicer.slice(x, outputs=outputs)
    change = found.neurons[im.logit_operation].sum()
    for name in cuts(im):
        assert found.neurons[name].sum() == pytest.approx(change, abs=2e-5), name
    uses = [kernel.name for o in im.operations for kernel in o.kernels]
    for operation in im.operations:
        if operation.kind == "weighted_sum" and uses.count(operation.params.name) == 1:
            amounts = found.neurons[operation.name].sum()
            total = found.synapses[operation.params.name].sum()
            assert total == pytest.approx(amounts, abs=2e-5), operation.name
    return change
