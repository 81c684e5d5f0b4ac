"""The explorer's page against the slice that it shows."""

import json

import numpy as np

from nnslicer_tf.instrument.operations import Lookup

# For every neuron in the slice, what the page says that its inputs and their synapses receive.
ADD_UP = """
const view = document.querySelector('.nnx').explorer;
const neurons = {}, synapses = {};
view.doc.operations.forEach((operation, o) => {
  const contributions = view.one.contributions(o);
  if (!operation.inputs.length || operation.kind === "mask") return;
  contributions.forEach((contribution, n) => {
    if (!contribution) return;
    for (const row of view.expand(o, n).rows) {
      const size = view.one.contributions(row.operation).length;
      const received = (neurons[row.operation] ??= new Array(size).fill(0));
      received[row.index] += row.gives;
      if (row.kernel === undefined) continue;
      const { size: weights, inputs, outputs } = view.doc.kernels[row.kernel];
      const collected = (synapses[row.kernel] ??= new Array(weights).fill(0));
      collected[(row.tap * inputs + row.input % inputs) * outputs + row.output] += row.gives;
    }
  });
});
return JSON.stringify([neurons, synapses]);
"""


def adds_up(page, im, one):
    """Check the page's sums against a slice; return the number of neurons that are in it."""
    neurons, synapses = json.loads(page.run(ADD_UP))
    found = 0
    for o, operation in enumerate(im.operations[:-1]):
        expected = one.neurons[operation.name].ravel()
        received = np.array(neurons.get(str(o), np.zeros(len(expected))))
        assert np.array_equal(received, expected), operation.name
        found += np.count_nonzero(expected)
    for k, (name, kernel) in enumerate(im.kernels.items()):
        if isinstance(kernel, Lookup):  # its weights are the neurons of the lookup
            continue
        expected = kernel.layout.from_kernel(one.synapses[name]).ravel()
        assert np.array_equal(synapses.get(str(k), np.zeros(len(expected))), expected), name
    return found
