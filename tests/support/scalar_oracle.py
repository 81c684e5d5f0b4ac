"""Contributions in graphs of scalars, by the definitions: one number at a time.

A function of `keras.ops` is written as sums, products, maxima and functions of single numbers, over
NumPy arrays of `Node`s; moves of values are moves in NumPy. Nothing is shared with the library.
"""

import math
from typing import ClassVar

import numpy as np

from support.amount_oracle import product_factors
from support.slicing_oracle import keep, sign


class Node:
    """A number that is computed from others: a sum, product, maximum, minimum or function."""

    nodes: ClassVar[list["Node"]] = []

    def __init__(self, kind, inputs=(), weights=(), function=None):
        self.kind, self.inputs, self.weights, self.function = kind, inputs, weights, function
        Node.nodes.append(self)

    def compute(self, at):
        x = [at[node] for node in self.inputs]
        if self.kind == "sum":
            return math.fsum(w * v for w, v in zip(self.weights, x, strict=True))
        if self.kind == "product":  # Σ_s a_s · b_s: all a, then all b
            half = len(x) // 2
            return math.fsum(a * b for a, b in zip(x[:half], x[half:], strict=True))
        if self.kind in ("maximum", "minimum"):
            return max(x) if self.kind == "maximum" else min(x)
        return float(self.function(x[0]))


def total(nodes, weights=None):
    nodes = list(nodes)
    return Node("sum", nodes, [1.0] * len(nodes) if weights is None else [*map(float, weights)])


def products(first, second):
    return Node("product", [*first, *second])


def each(function, *arrays):
    """Apply a function of nodes to the elements of arrays."""
    arrays = np.broadcast_arrays(*arrays)
    result = np.empty(arrays[0].shape, object)
    for i in np.ndindex(result.shape):
        result[i] = function(*(a[i] for a in arrays))
    return result


def apply(function, x):
    return each(lambda n: Node("function", [n], function=function), x)


def add(*xs):
    return each(lambda *n: total(n), *xs)


def subtract(x, y):
    return each(lambda a, b: total([a, b], [1.0, -1.0]), x, y)


def multiply(x, y):
    return each(lambda a, b: products([a], [b]), x, y)


def along(function, x, axis):
    """Apply a function of a list of nodes along an axis."""
    front = np.moveaxis(x, axis, -1)
    result = np.empty(front.shape[:-1], object)
    for i in np.ndindex(result.shape):
        result[i] = function(list(front[i]))
    return result


def maximum(nodes):
    return Node("maximum", list(nodes))


def minimum(nodes):
    negative = [Node("function", [n], function=lambda v: -v) for n in nodes]
    return Node("function", [maximum(negative)], function=lambda v: -v)


def forward(inputs, values):
    """Return the value of every node, by node."""
    at = dict(zip(inputs, map(float, values), strict=True))
    for node in Node.nodes:
        if node not in at:
            at[node] = node.compute(at)
    return at


def counts(at, mean, start, theta):
    """Return CONTRIB of every node for one criterion, and those of the start's synapses."""
    contrib = dict.fromkeys(Node.nodes, 0)
    contrib[start] = 1
    synapses = []
    for node in reversed(Node.nodes):
        dy = at[node] - mean[node]
        if contrib[node] == 0 or not node.inputs or abs(dy) < 1e-7:
            continue
        x = [at[n] for n in node.inputs]
        dx = [at[n] - mean[n] for n in node.inputs]
        if node.kind == "sum":
            v = [w * d for w, d in zip(node.weights, dx, strict=True)]
        elif node.kind == "product":
            half = len(x) // 2
            v = [d * x[(i + half) % len(x)] for i, d in enumerate(dx)]
        elif node.kind in ("maximum", "minimum"):
            v = [d if value == at[node] else 0.0 for d, value in zip(dx, x, strict=True)]
        else:
            v = dx
        several = node.kind in ("sum", "product")
        for i in keep(v, theta * abs(at[node])) if several else range(len(v)):
            g = sign(contrib[node]) * sign(dy) * (sign(v[i]) if abs(v[i]) > 1e-9 else 0)
            contrib[node.inputs[i]] += g
            if node is start:
                synapses.append((i, g))
    return contrib, synapses


def amounts(at, usual, start):
    """Return the amounts of every node, by multipliers."""
    multipliers = dict.fromkeys(Node.nodes, 0.0)
    multipliers[start] = 1.0
    for node in reversed(Node.nodes):
        if multipliers[node] == 0 or not node.inputs:
            continue
        y, y0 = at[node], usual[node]
        x, x0 = ([values[n] for n in node.inputs] for values in (at, usual))
        if node.kind == "sum":
            factors = node.weights
        elif node.kind == "product":
            half = len(x) // 2
            pairs = [(i, i + half) for i in range(half)]
            factors = [0.0] * len(x)
            for a, b in pairs:
                factors[a], factors[b] = product_factors([x[a], x[b]], [x0[a], x0[b]])
        elif node.kind in ("maximum", "minimum"):
            factors = [0.0] * len(x)
            most = max(y, y0) if node.kind == "maximum" else min(y, y0)
            for k, change in ((x.index(y), most - y0), (x0.index(y0), y - most)):
                if x[k] != x0[k]:
                    factors[k] += change / (x[k] - x0[k])
        elif abs(x[0] - x0[0]) < 1e-5:
            ends = [node.function(x[0] + d) for d in (-1e-6, 1e-6)]
            factors = [(ends[1] - ends[0]) / 2e-6]
        else:
            factors = [(y - y0) / (x[0] - x0[0])]
        for n, factor in zip(node.inputs, factors, strict=True):
            multipliers[n] += multipliers[node] * factor
    return {n: m * (at[n] - usual[n]) for n, m in multipliers.items()}
