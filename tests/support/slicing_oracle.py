"""Slicing by brute force: the definitions, one neuron at a time, in plain Python.

Nothing here is shared with the library but the names of the operations and which
operation feeds which. Values are computed from the layers' weights by the textbook
formulas, so the captured activations are checked as well. Data and weights are dyadic,
so that float32, float64 and this file agree exactly.
"""

import itertools
import math
from collections import defaultdict

import keras
import numpy as np


def indices(shape):
    return itertools.product(*map(range, shape))


def sign(value):
    return (value > 0) - (value < 0)


class Connection:
    """One input of one neuron: which value, through which synapse, with which weight."""

    def __init__(self, tensor, index, weight=1.0, synapse=None):
        self.tensor = tensor  # position among the operation's inputs
        self.index = index
        self.weight = weight
        self.synapse = synapse  # index into the kernel


class Oracle:
    def __init__(self, im, profile_data, relative_to="output", rectify="sign", product="value"):
        self.product = product
        self.im = im
        self.relative_to = relative_to
        self.rectify = rectify
        self.ops = {op.name: op for op in im.operations}
        self.wiring = {op.name: self.connections(op) for op in im.operations if op.inputs}
        # Read once: a value of a variable takes longer to read than a neuron to compute.
        self.parameters = {op.name: self.read_parameters(op) for op in im.operations}
        self.known = {}
        profile = [self.forward(x) for x in profile_data]
        self.mean = {
            name: {i: math.fsum(p[name][i] for p in profile) / len(profile) for i in first}
            for name, first in profile[0].items()
        }

    # --- what each layer computes -------------------------------------------------

    def connections(self, op):
        """Return, for each output neuron, its inputs in the order that breaks ties."""
        layer, (shape, *_) = op.keras_layer, op.input_shapes
        kind = type(layer).__name__
        if op.kind == "weighted_sum":
            return self.weighted_sum(op, layer, shape)
        if op.kind in ("average", "maximum"):
            return self.pooling(op, layer, shape)
        if op.kind in ("rectify", "elementwise", "scale"):
            return {i: [Connection(0, i)] for i in indices(op.shape)}
        if op.kind in ("add", "subtract", "multiply", "maximum_merge", "minimum_merge"):
            return {
                i: [Connection(k, stretched(i, s)) for k, s in enumerate(op.input_shapes)]
                for i in indices(op.shape)
            }
        assert op.kind == "routing", op
        return getattr(self, f"route_{kind}")(op, layer, shape)

    def weighted_sum(self, op, layer, shape):
        kind = type(layer).__name__
        result = {i: [] for i in indices(op.shape)}
        if kind == "Dense":
            w = np.asarray(layer.kernel)
            for *lead, o in indices(op.shape):
                for i in range(shape[-1]):
                    c = Connection(0, (*lead, i), float(w[i, o]), (i, o))
                    result[(*lead, o)].append(c)
        elif "Transpose" in kind:
            w = np.asarray(layer.kernel)
            before = [
                max((n - 1) * s + k - out, 0) // 2 if layer.padding == "same" else 0
                for n, k, s, out in zip(shape, layer.kernel_size, layer.strides, op.shape)
            ]
            for tap in indices(layer.kernel_size):
                for c in range(shape[-1]):
                    for position in indices(shape[:-1]):
                        at = tuple(
                            p * s + t - b
                            for p, s, t, b in zip(position, layer.strides, tap, before)
                        )
                        if all(0 <= a < n for a, n in zip(at, op.shape[:-1])):
                            for o in range(op.shape[-1]):
                                synapse = (*tap, o, c)
                                result[(*at, o)].append(
                                    Connection(0, (*position, c), float(w[synapse]), synapse)
                                )
        elif kind.startswith("Separable") and not op.name.endswith(":depthwise"):
            w = np.asarray(layer.pointwise_kernel)
            one = (0,) * (w.ndim - 2)
            for *at, o in indices(op.shape):
                for c in range(shape[-1]):
                    synapse = (*one, c, o)
                    result[(*at, o)].append(Connection(0, (*at, c), float(w[synapse]), synapse))
        else:
            depthwise = kind.startswith(("Depthwise", "Separable"))
            kernel = layer.depthwise_kernel if kind.startswith("Separable") else layer.kernel
            w = np.asarray(kernel)
            for *at, o in indices(op.shape):
                for tap, position in window(layer, layer.kernel_size, shape, at):
                    if depthwise:
                        c, m = divmod(o, w.shape[-1])
                        channels = [(c, (*tap, c, m))]
                    else:
                        per_group = shape[-1] // layer.groups
                        group = o // (op.shape[-1] // layer.groups)
                        channels = [(group * per_group + k, (*tap, k, o)) for k in range(per_group)]
                    for c, synapse in channels:
                        result[(*at, o)].append(
                            Connection(0, (*position, c), float(w[synapse]), synapse)
                        )
        return result

    def pooling(self, op, layer, shape):
        if type(layer).__name__.startswith("Global"):
            return {
                i: [Connection(0, (*at, i[-1])) for at in indices(shape[:-1])]
                for i in indices(op.shape)
            }
        return {
            (*at, c): [
                Connection(0, (*position, c))
                for _, position in window(layer, layer.pool_size, shape, at)
            ]
            for *at, c in indices(op.shape)
        }

    def route_Flatten(self, op, layer, shape):
        return {(k,): [Connection(0, i)] for k, i in enumerate(indices(shape))}

    def route_Reshape(self, op, layer, shape):
        pairs = zip(indices(op.shape), indices(shape))
        return {out: [Connection(0, i)] for out, i in pairs}

    def route_Permute(self, op, layer, shape):
        return {tuple(i[d - 1] for d in layer.dims): [Connection(0, i)] for i in indices(shape)}

    def route_Dropout(self, op, layer, shape):
        return {i: [Connection(0, i)] for i in indices(shape)}

    def route_ZeroPadding2D(self, op, layer, shape):
        (top, _), (left, _) = layer.padding
        inside = {(a + top, b + left, c): (a, b, c) for a, b, c in indices(shape)}
        return {i: [Connection(0, inside[i])] if i in inside else [] for i in indices(op.shape)}

    def route_Cropping2D(self, op, layer, shape):
        (top, _), (left, _) = layer.cropping
        return {(a, b, c): [Connection(0, (a + top, b + left, c))] for a, b, c in indices(op.shape)}

    def route_UpSampling2D(self, op, layer, shape):
        h, w = layer.size
        return {(a, b, c): [Connection(0, (a // h, b // w, c))] for a, b, c in indices(op.shape)}

    def route_Concatenate(self, op, layer, shape):
        axis = layer.axis % (len(shape) + 1) - 1 if layer.axis >= 0 else layer.axis
        result = {}
        start = 0
        for k, part in enumerate(op.input_shapes):
            for i in indices(part):
                out = list(i)
                out[axis] += start
                result[tuple(out)] = [Connection(k, i)]
            start += part[axis]
        return result

    # --- forward --------------------------------------------------------------------

    def forward(self, x):
        """Return the value of every neuron for one sample: {operation: {index: value}}.

        A sample of several inputs is a dict by their names.
        """
        sources = [op for op in self.im.operations if not op.inputs]
        given = x if isinstance(x, dict) else {sources[0].name: x}
        key = tuple(float(given[op.name][i]) for op in sources for i in indices(op.shape))
        if key in self.known:
            return self.known[key]
        values = {
            op.name: {i: float(given[op.name][i]) for i in indices(op.shape)} for op in sources
        }
        for op in self.im.operations[len(sources) :]:
            inputs = [values[name] for name in op.inputs]
            values[op.name] = {
                i: self.value(op, i, [inputs[c.tensor][c.index] for c in cs], cs)
                for i, cs in self.wiring[op.name].items()
            }
        self.known[key] = values
        return values

    def read_parameters(self, op):
        """Return the bias of a sum, or what a normalisation is made of, for each channel."""
        layer = op.keras_layer
        if op.kind == "weighted_sum" and not op.name.endswith(":depthwise"):
            return None if layer.bias is None else np.asarray(layer.bias).tolist()
        if op.kind == "scale":
            parts = (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
            return list(zip(*(np.asarray(part).tolist() for part in parts), strict=True))
        return None

    def value(self, op, i, xs, connections):
        layer = op.keras_layer
        if op.kind == "weighted_sum":
            biases = self.parameters[op.name]
            bias = biases[i[-1]] if biases else 0.0
            return math.fsum(c.weight * x for c, x in zip(connections, xs)) + bias
        if op.kind == "average":
            return math.fsum(xs) / len(xs)
        if op.kind in ("maximum", "maximum_merge"):
            return max(xs)
        if op.kind == "minimum_merge":
            return min(xs)
        if op.kind == "add":
            return math.fsum(xs)
        if op.kind == "subtract":
            return xs[0] - math.fsum(xs[1:])
        if op.kind == "multiply":
            return math.prod(xs)
        if op.kind == "routing":
            return xs[0] if xs else 0.0
        if op.kind == "scale":
            mean, variance, gamma, beta = self.parameters[op.name][i[-1]]
            return (xs[0] - mean) / math.sqrt(variance + layer.epsilon) * gamma + beta
        (x,) = xs
        if op.params.function == "softmax":
            return math.nan  # captured, but not walked
        if op.kind == "rectify":
            top = getattr(layer, "max_value", None)
            return min(max(x, 0.0), top if top is not None else math.inf)
        assert isinstance(layer, keras.layers.LeakyReLU), layer
        return x if x > 0 else x * layer.negative_slope

    # --- backward ---------------------------------------------------------------------

    def slice(self, x, starts, theta):
        """Return (neurons, synapses) for one sample at "activation" granularity.

        Args:
            x: The sample.
            starts: {operation: indices of neurons with CONTRIB 1}.
            theta: The threshold.
        """
        y = self.forward(x)
        delta = {
            name: {i: v - self.mean[name][i] for i, v in values.items()}
            for name, values in y.items()
        }
        contrib = {name: dict.fromkeys(values, 0) for name, values in y.items()}
        synapses = defaultdict(lambda: defaultdict(int))
        for name, chosen in starts.items():
            for i in chosen:
                contrib[name][i] += 1
        last = max(list(self.ops).index(name) for name in starts)
        for op in reversed(self.im.operations[: last + 1]):
            for n, total in contrib[op.name].items():
                if total != 0 and op.inputs:
                    self.expand(op, n, total, y, delta, theta, contrib, synapses)
        return contrib, synapses

    def expand(self, op, n, total, y, delta, theta, contrib, synapses):
        connections = self.wiring[op.name][n]
        if op.kind == "routing" or self.passes(op):
            for c in connections:
                contrib[op.inputs[c.tensor]][c.index] += total
            return
        dy = delta[op.name][n]
        if dy == 0:
            return
        dx = [delta[op.inputs[c.tensor]][c.index] for c in connections]
        xs = [y[op.inputs[c.tensor]][c.index] for c in connections]
        v = self.local_values(op, connections, xs, dx, y[op.name][n])
        kept = range(len(v))
        if op.kind in ("weighted_sum", "average", "add", "subtract", "multiply"):
            kept = keep(v, theta * self.reference(v, y[op.name][n]))
        for k in kept:
            g = sign(total) * sign(dy) * sign(v[k])
            contrib[op.inputs[connections[k].tensor]][connections[k].index] += g
            if connections[k].synapse is not None:
                synapses[op.params.name][connections[k].synapse] += g

    def passes(self, op):
        """Whether CONTRIB goes through the operation unchanged."""
        return self.rectify == "pass" and op.kind in ("rectify", "elementwise", "scale")

    def reference(self, v, y):
        """Quantity that θ is multiplied with."""
        return abs(y) if self.relative_to == "output" else abs(math.fsum(v))

    def local_values(self, op, connections, xs, dx, y):
        if op.kind == "weighted_sum":
            return [c.weight * d for c, d in zip(connections, dx)]
        if op.kind == "average":
            return [d / len(dx) for d in dx]
        if op.kind == "subtract":
            return [dx[0], *(-d for d in dx[1:])]
        if op.kind == "multiply":
            half = 0.5 if self.product == "midpoint" else 0.0
            by = [x - half * d for x, d in zip(xs, dx)]
            return [d * math.prod(b for j, b in enumerate(by) if j != k) for k, d in enumerate(dx)]
        if op.kind in ("maximum", "maximum_merge", "minimum_merge"):
            return [d if x == y else 0.0 for d, x in zip(dx, xs)]
        if op.kind == "rectify":
            return [dx[0] if xs[0] > 0 else 0.0]
        return dx  # add, scale, elementwise


class ChannelOracle(Oracle):
    """The same at "channel" granularity: Equation 1, a filter is one neuron."""

    def channel_values(self, values):
        """Return the mean over positions of each channel; units of vectors stay apart."""
        result = {}
        for name, by_index in values.items():
            sums = defaultdict(list)
            for i, v in by_index.items():
                sums[i[-1:]].append(v)
            result[name] = {c: math.fsum(vs) / len(vs) for c, vs in sums.items()}
        return result

    def slice(self, x, starts, theta):
        values = self.forward(x)
        y, mean = self.channel_values(values), self.channel_values(self.mean)
        delta = {n: {c: v - mean[n][c] for c, v in vs.items()} for n, vs in y.items()}
        contrib = {name: dict.fromkeys(vs, 0) for name, vs in y.items()}
        synapses = defaultdict(lambda: defaultdict(int))
        for name, chosen in starts.items():
            for i in chosen:
                contrib[name][i] += 1
        last = max(list(self.ops).index(name) for name in starts)
        for op in reversed(self.im.operations[: last + 1]):
            for n, total in contrib[op.name].items():
                dy = delta[op.name][n]
                moved = op.kind == "routing" or self.passes(op)
                if not op.inputs or total == 0 or (dy == 0 and not moved):
                    continue
                if op.kind == "weighted_sum":
                    read, usual = (
                        self.mean_inputs(op, n, values),
                        self.mean_inputs(op, n, self.mean),
                    )
                    places = sorted(read)
                    v = [read[k][1] * (read[k][0] - usual[k][0]) for k in places]
                    for k in keep(v, theta * self.reference(v, y[op.name][n])):
                        g = sign(total) * sign(dy) * sign(v[k])
                        contrib[op.inputs[0]][places[k][1]] += g
                        synapses[op.params.name][places[k][0]] += g
                    continue
                links = self.links(op, n)
                dx = [delta[op.inputs[t]][c] for t, c in links]
                xs = [y[op.inputs[t]][c] for t, c in links]
                if moved:
                    gs = [total] * len(links)
                elif op.kind == "rectify":
                    gs = [sign(total) * sign(dy) * sign(dx[0]) * (y[op.name][n] > 0)]
                elif op.kind in ("add", "subtract", "multiply"):
                    v = self.local_values(op, [None] * len(links), xs, dx, y[op.name][n])
                    kept = keep(v, theta * self.reference(v, y[op.name][n]))
                    gs = [
                        sign(total) * sign(dy) * sign(v[k]) if k in kept else 0
                        for k in range(len(v))
                    ]
                else:
                    gs = [sign(total) * sign(dy) * sign(d) for d in dx]
                for (t, c), g in zip(links, gs):
                    contrib[op.inputs[t]][c] += g
        return contrib, synapses

    def mean_inputs(self, op, n, values):
        """Return {(synapse, input channel): (mean of what it multiplies, weight)}."""
        positions = max(1, math.prod(op.shape[:-1]))
        result = {}
        for i, connections in self.wiring[op.name].items():
            if i[-1:] != n:
                continue
            for c in connections:
                place = (c.synapse, c.index[-1:])
                total, _ = result.get(place, (0.0, None))
                result[place] = (total + values[op.inputs[0]][c.index] / positions, c.weight)
        return result

    def links(self, op, n):
        """Return the distinct (input, channel) pairs that feed a channel, in order."""
        pairs = {
            (c.tensor, c.index[-1:]): None
            for i, connections in self.wiring[op.name].items()
            if i[-1:] == n
            for c in connections
        }
        return list(pairs)


def keep(v, threshold):
    """Return the positions that remain: the exclusion rule, word for word."""
    order = sorted(range(len(v)), key=lambda i: (abs(v[i]), i))
    excluded = 0
    running = 0.0
    for j, i in enumerate(order, start=1):
        running += v[i]
        if abs(running) < threshold:
            excluded = j
    return order[excluded:]


def window(layer, size, shape, at):
    """Yield (tap, input position) of a sliding window, without padding."""
    strides = layer.strides
    dilation = getattr(layer, "dilation_rate", (1,) * len(size))
    starts = []
    for n, k, s, d in zip(shape, size, strides, dilation):
        reach = (k - 1) * d + 1
        if layer.padding == "same":
            starts.append(max((math.ceil(n / s) - 1) * s + reach - n, 0) // 2)
        elif layer.padding == "causal":
            starts.append(reach - 1)
        else:
            starts.append(0)
    for tap in indices(size):
        position = tuple(
            o * s - b + t * d for o, s, b, t, d in zip(at, strides, starts, tap, dilation)
        )
        if all(0 <= p < n for p, n in zip(position, shape)):
            yield tap, position


def stretched(index, shape):
    """Return the index into a tensor that was broadcast to where `index` is."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if n == 1 else i for i, n in zip(tail, shape))
