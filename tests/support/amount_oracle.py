"""Amounts by brute force: DeepLIFT's rules on one neuron at a time, in plain Python.

The walk carries multipliers; an amount is a multiplier times the change from the reference, the
network's values for the profile's mean input. Amounts of a channel are those of its elements.
"""

from collections import defaultdict

from support.slicing_oracle import Oracle


class AmountOracle(Oracle):
    def usual(self):
        """Return the reference values."""
        return self.forward({o.name: self.mean[o.name] for o in self.im.operations if not o.inputs})

    def slice(self, x, starts, by_channel=False):
        """Return (neurons, synapses) for one sample, as amounts."""
        y, y0 = self.forward(x), self.usual()
        multipliers = {name: dict.fromkeys(values, 0.0) for name, values in y.items()}
        synapses = defaultdict(lambda: defaultdict(float))
        for name, chosen in starts.items():
            for i in chosen:
                multipliers[name][i] += 1.0
        last = max(list(self.ops).index(name) for name in starts)
        for op in reversed(self.im.operations[: last + 1]):
            for n, m in multipliers[op.name].items():
                if m == 0 or not op.inputs:
                    continue
                connections = self.wiring[op.name][n]
                ends = [[end[op.inputs[c.tensor]][c.index] for c in connections] for end in (y, y0)]
                factors = self.factors(op, connections, *ends, y[op.name][n], y0[op.name][n])
                for k, c in enumerate(connections):
                    source = op.inputs[c.tensor]
                    multipliers[source][c.index] += m * factors[k]
                    if c.synapse is not None:
                        amount = m * c.weight * (ends[0][k] - ends[1][k])
                        synapses[op.params.name][c.synapse] += amount
        amounts = {
            name: {i: m * (y[name][i] - y0[name][i]) if m else 0.0 for i, m in by_index.items()}
            for name, by_index in multipliers.items()
        }
        return self.summed(amounts) if by_channel else amounts, synapses

    def summed(self, amounts):
        """Return the amounts of channels."""
        result = {}
        for name, by_index in amounts.items():
            result[name] = defaultdict(float)
            for i, amount in by_index.items():
                result[name][i[-1:]] += amount
        return result

    def factors(self, op, connections, xs, x0s, y, y0):
        """Return by what the multiplier of a neuron is multiplied for each of its inputs."""
        if op.kind == "weighted_sum":
            return [c.weight for c in connections]
        if op.kind == "average":
            return [1 / len(xs)] * len(xs)
        if op.kind == "subtract":
            return [1.0, *[-1.0] * (len(xs) - 1)]
        if op.kind == "multiply":
            return product_factors(xs, x0s)
        if op.kind in ("maximum", "maximum_merge", "minimum_merge"):
            sign = -1 if op.kind == "minimum_merge" else 1
            first = [sign * x for x in xs].index(sign * y)
            first0 = [sign * x for x in x0s].index(sign * y0)
            most = sign * max(sign * y, sign * y0)
            found = [0.0] * len(xs)
            for k, change in ((first, most - y0), (first0, y - most)):
                if xs[k] != x0s[k]:
                    found[k] += change / (xs[k] - x0s[k])
            return found
        if op.kind in ("rectify", "elementwise", "scale"):
            if abs(xs[0] - x0s[0]) < 1e-5:
                step = 1e-6
                i = connections[0].index
                at = [self.value(op, i, [xs[0] + d], connections) for d in (-step, step)]
                return [(at[1] - at[0]) / (2 * step)]
            return [(y - y0) / (xs[0] - x0s[0])]
        return [1.0] * len(xs)  # add, routing


def product_factors(xs, x0s):
    """Multiply from left to right, each time by the midpoint of the other factor."""
    if len(xs) == 1:
        return [1.0]
    *head, x = xs
    *head0, x0 = x0s
    product, product0 = 1.0, 1.0
    for a, a0 in zip(head, head0, strict=True):
        product, product0 = product * a, product0 * a0
    middle = (x + x0) / 2
    return [*(f * middle for f in product_factors(head, head0)), (product + product0) / 2]
