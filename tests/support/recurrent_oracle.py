"""Slicing of recurrent models by brute force: unrolled by hand, one scalar neuron at a time.

Nothing is shared with the library but the names of operations. A sequential model becomes a list of
neurons, each with its inputs in the order that breaks ties; padding has no neurons at all.
"""

import itertools
import math
from collections import defaultdict
from types import SimpleNamespace

import keras
import numpy as np
from keras import ops

from support.slicing_oracle import indices, keep, sign, window


@keras.saving.register_keras_serializable(package="tests")
def coarse(x):
    """An activation with five values, so that float32 is exact through many steps."""
    return ops.clip(ops.round(2 * x) / 2, -1, 1)


@keras.saving.register_keras_serializable(package="tests")
def coarse_gate(x):
    """A gate with the values 0, 1/2 and 1."""
    return ops.clip(ops.round(x + 1) / 2, 0, 1)


ACTIVATIONS = {
    "coarse": lambda x: min(max(round(2 * x) / 2, -1.0), 1.0),
    "coarse_gate": lambda x: min(max(round(x + 1) / 2, 0.0), 1.0),
    "relu": lambda x: max(x, 0.0),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


class RecurrentOracle:
    """The definitions on a sequential model of recurrent layers.

    Args:
        model: It; its first layer may be a `Masking`.
        profile_data: Samples whose values are averaged.
        pooled: Whether neurons of masked operations share their means over time.
        product: "value" or "midpoint".
    """

    def __init__(self, model, profile_data, pooled=False, product="value"):
        self.model = model
        self.product = product
        self.pooled = pooled
        values = defaultdict(list)
        for x in profile_data:
            for neuron, value in self.unroll(x).y.items():
                values[neuron].append(value)
        # Steps at which every sample has the same values have means of their own.
        varying = {
            (name, index[0])
            for (name, index), found in values.items()
            if index and (len(found) < len(profile_data) or len(set(found)) > 1)
        }
        self.constant = {(n, i[0]) for n, i in values if i} - varying
        together = defaultdict(list)
        for neuron, found in values.items():
            together[self.shared(neuron)] += found
        self.mean = {place: sum(found) / len(found) for place, found in together.items()}

    def shared(self, neuron):
        """Return what a neuron shares its mean with."""
        name, index = neuron
        is_pooled = self.pooled and name in self.masked and (name, index[0]) not in self.constant
        return (name, index[1:]) if is_pooled else neuron

    def unroll(self, x):
        net = Net(x)
        self.masked = net.masked
        source = self.model.inputs[0]._keras_history.operation.name
        for i in indices(x.shape):
            net.add((source, i), "input", [], value=float(x[i]))
        at = [{i[1:]: (source, i) for i in indices(x.shape) if i[0] == t} for t in range(len(x))]
        for layer in self.model.layers:
            at = net.layer(layer, at)
        return net

    def slice(self, x, starts, theta):
        """Return ({neuron: CONTRIB}, {(kernel, index): CONTRIB}) of one sample."""
        net = self.unroll(x)
        contrib, synapses = defaultdict(int), defaultdict(int)
        for neuron in starts:
            contrib[neuron] += 1
        delta = {n: net.y[n] - self.mean[self.shared(n)] for n in net.y}
        for n in net.order:  # a copy that is held has the Δ of what it copies
            if net.kind[n] == "held":
                delta[n] = delta[net.inputs[n][0][0]]
        for n in reversed(net.order):
            total, kind, inputs = contrib[n], net.kind[n], net.inputs[n]
            if total == 0 or kind == "input":
                continue
            if kind in ("copy", "held"):
                for source, *_ in inputs:
                    contrib[source] += total
                continue
            if delta[n] == 0:
                continue
            d = [delta.get(source, 0.0) for source, *_ in inputs]
            values = [net.y.get(source, 0.0) for source, *_ in inputs]
            if kind == "sum":
                v = [w * dx for (_, w, _), dx in zip(inputs, d, strict=True)]
            elif kind == "multiply":
                a, b = (self.factor(net, source) for source, *_ in inputs)
                v = [d[0] * b, d[1] * a]
            elif kind == "rectify":
                v = [d[0] if values[0] > 0 else 0.0]
            else:
                v = d
            kept = range(len(v))
            if kind in ("sum", "multiply", "add"):
                kept = keep(v, theta * abs(net.y[n]))
            for k in kept:
                g = sign(total) * sign(delta[n]) * sign(v[k])
                source, _, synapse = inputs[k]
                contrib[source] += g
                if synapse is not None:
                    synapses[synapse] += g
        return contrib, synapses

    def factor(self, net, neuron):
        """Return what the Δ of the other factor of a product is multiplied by."""
        value = net.y.get(neuron, 0.0)
        if self.product == "value" or neuron not in net.y:
            return value
        if net.kind[neuron] == "held":  # the copy's mean is that of what it copies
            return self.factor(net, net.inputs[neuron][0][0])
        return (value + self.mean[self.shared(neuron)]) / 2


ZERO = ("zero", ())


class Net:
    """Neurons of an unrolled model, with their values."""

    def __init__(self, x):
        self.order, self.kind, self.inputs, self.y = [], {}, {}, {}
        self.masked = set()
        self.present = None

    def add(self, neuron, kind, inputs, bias=0.0, function=None, value=None):
        """Add a neuron with inputs (neuron, weight, synapse)."""
        inputs = [(source, None if w is None else float(w), place) for source, w, place in inputs]
        values = [(self.y.get(source, 0.0), weight) for source, weight, _ in inputs]
        if value is None:
            if kind == "sum":
                value = math.fsum(v * w for v, w in values) + float(bias)
            elif kind == "multiply":
                value = math.prod(v for v, _ in values)
            elif kind == "add":
                value = math.fsum(v for v, _ in values)
            else:
                value = values[0][0] if function is None else function(values[0][0])
        self.order.append(neuron)
        self.kind[neuron], self.inputs[neuron], self.y[neuron] = kind, inputs, value
        if self.present is not None and neuron[1] and neuron[0] in self._timed:
            self.masked.add(neuron[0])
        return neuron

    _timed = frozenset()

    def layer(self, layer, at):
        """Return the neurons of a layer's output; of a sequence, a list over time of dicts."""
        return getattr(self, type(layer).__name__)(layer, at)

    def one(self, name, index, source, kind="one", function=None):
        return self.add((name, index), kind, [(source, None, None)], function=function)

    # --- layers without time ----------------------------------------------------------

    def Masking(self, layer, at):
        self.present = [any(self.y[n] != layer.mask_value for n in d.values()) for d in at]
        self._timed = {layer.name}
        # Nor are the input's values at padding neurons, as nothing else reads them.
        for t, d in enumerate(at):
            for n in d.values():
                self.masked.add(n[0])
                if not self.present[t]:
                    self.order.remove(n)
                    del self.y[n], self.kind[n], self.inputs[n]
        return [
            {i: self.one(layer.name, (t, *i), n) for i, n in d.items()} if self.present[t] else {}
            for t, d in enumerate(at)
        ]

    def Flatten(self, layer, at):
        flat = [n for d in at for n in d.values()]
        return [{(k,): self.one(layer.name, (k,), n, "copy") for k, n in enumerate(flat)}]

    def Dense(self, layer, at):
        w, b = (np.asarray(v, np.float64) for v in layer.weights)
        sources = list(at[0].values())
        return [
            {
                (o,): self.add(
                    (layer.name, (o,)),
                    "sum",
                    [(n, w[i, o], (layer.name, (i, o))) for i, n in enumerate(sources)],
                    b[o],
                )
                for o in range(w.shape[1])
            }
        ]

    def TimeDistributed(self, layer, at):
        w, b = (np.asarray(v, np.float64) for v in layer.layer.weights)
        return [
            {
                (o,): self.add(
                    (layer.name, (t, o)),
                    "sum",
                    [(d[i,], w[i, o], (layer.name, (i, o))) for i in range(len(w))],
                    b[o],
                )
                for o in range(w.shape[1])
            }
            for t, d in enumerate(at)
        ]

    # --- layers through time ----------------------------------------------------------

    def SimpleRNN(self, layer, at):
        return self.recurrent(layer, at, layer.name, "", layer.name)

    LSTM = GRU = RNN = ConvLSTM1D = ConvLSTM2D = SimpleRNN

    def Bidirectional(self, layer, at):
        ends = []
        for direction in ("forward", "backward"):
            inner = getattr(layer, f"{direction}_layer")
            path, prefix = f"{layer.name}/{direction}", f":{direction}"
            out = self.recurrent(inner, at, path, prefix, layer.name, direction == "backward")
            ends.append(out)
        if self.present is not None and layer.return_sequences:
            self.masked |= {layer.name, f"{layer.name}:sum"}
        merged = []
        for t, (a, b) in enumerate(zip(*ends, strict=True)):
            lead = (t,) if layer.return_sequences else ()
            here = {}
            for i, n in a.items():
                both = [(n, None, None), (b[i], None, None)] if i in b else []
                if layer.merge_mode == "concat":
                    here[i] = self.one(layer.name, (*lead, *i), n, "copy")
                elif layer.merge_mode == "sum":
                    here[i] = self.add((layer.name, (*lead, *i)), "add", both)
                elif layer.merge_mode == "mul":
                    here[i] = self.add((layer.name, (*lead, *i)), "multiply", both)
                else:
                    middle = self.add((f"{layer.name}:sum", (*lead, *i)), "add", both)
                    half = lambda v: v / 2  # noqa: E731
                    here[i] = self.one(layer.name, (*lead, *i), middle, function=half)
            if layer.merge_mode == "concat":
                for i, n in b.items():
                    j = (*i[:-1], i[-1] + len(a))
                    here[j] = self.one(layer.name, (*lead, *j), n, "copy")
            merged.append(here)
        return merged

    def recurrent(self, layer, at, path, prefix, base, flip=False):
        """Unroll a recurrent layer; return its output."""
        steps = len(at)
        places = list(reversed(range(steps))) if layer.go_backwards else list(range(steps))
        cells = [(layer.cell, path, prefix)]
        if hasattr(layer.cell, "cells"):
            cells = [
                (c, f"{path}/cell{k}", f"{prefix}:cell{k}") for k, c in enumerate(layer.cell.cells)
            ]
        states = [{} for _ in cells]
        outputs = []
        for t, place in enumerate(places):
            x = at[place]
            if self.present is None or self.present[place]:
                for k, (cell, where, start) in enumerate(cells):
                    run = Cell(self, cell, where, base + start, t, self.present is not None)
                    x, states[k] = run.step(x, states[k])
                output = x
                outputs.append(x)
            else:
                outputs.append({})
        if not layer.return_sequences:
            name = base + prefix
            return [{i: self.one(name, i, n, "copy") for i, n in output.items()}]
        name = base + prefix
        timed = self.present is not None
        if timed and layer.zero_output_for_mask:
            self.masked.add(f"{name}:zeroed")
            outputs = [
                {i: self.one(f"{name}:zeroed", (t, *i), n, "copy") for i, n in d.items()}
                for t, d in enumerate(outputs)
            ]
        if flip:
            outputs.reverse()
        found = []
        for t, d in enumerate(outputs):
            found.append({i: self.one(name, (t, *i), n, "copy") for i, n in d.items()})
        if timed:
            self.masked.add(name)
        return found


class Cell:
    """One time step of a cell."""

    def __init__(self, net, cell, path, base, t, masked):
        self.net, self.cell, self.path, self.base, self.t = net, cell, path, base, t
        self.is_masked = masked

    def step(self, x, states):
        return getattr(self, type(self.cell).__name__)(x, states)

    def name(self, suffix):
        if self.is_masked and not suffix.endswith(":held"):
            self.net.masked.add(self.base + suffix)
        return self.base + suffix

    def reads(self, source, space, i, kernel_name, own):
        """Yield (neuron, kernel index without the column) that output position i reads."""
        cell = self.cell
        if not space:  # a dense cell
            for (c,), n in sorted(source.items()):
                yield n, (c,)
            return
        channels = 1 + max(j[-1] for j in source)
        shape = tuple(1 + max(j[k] for j in source) for k in range(len(space)))
        how = cell
        if own:
            one = (1,) * len(space)
            how = SimpleNamespace(strides=one, dilation_rate=one, padding="same")
        for tap, position in window(how, cell.kernel_size, shape, i):
            for c in range(channels):
                yield source[(*position, c)], (*tap, c)

    def gate(self, suffix, columns, sources, bias, activation, space=()):
        """Add a gate's sums and its activation; sources are (neurons, kernel's name)."""
        linear = activation is None or activation.__name__ == "linear"
        name = self.name(suffix if linear else f"{suffix}:pre")
        result = {}
        for i in itertools.product(*map(range, space)):
            for u, column in enumerate(columns):
                inputs = []
                for source, kernel in sources:
                    weights = np.asarray(getattr(self.cell, kernel), np.float64)
                    if not source:  # the constant state before the first step
                        continue
                    own = kernel == "recurrent_kernel"
                    for n, index in self.reads(source, space, i, kernel, own):
                        place = (*index, column)
                        inputs.append((n, weights[place], (f"{self.path}/{kernel}", place)))
                index = (self.t, *i, u)
                value = 0.0 if bias is None else float(bias[column])
                result[(*i, u)] = self.net.add((name, index), "sum", inputs, value)
        return result if linear else self.each(suffix, result, activation)

    def each(self, suffix, source, activation):
        """Add an activation, or a function of single values."""
        name = getattr(activation, "__name__", "")
        if name == "linear":
            return source
        function = ACTIVATIONS.get(name, activation)
        kind = "rectify" if name == "relu" else "one"
        full = self.name(suffix)
        return {i: self.net.one(full, (self.t, *i), n, kind, function) for i, n in source.items()}

    def both(self, suffix, kind, first, second):
        """Add a product or a sum; a state that is not there is a constant zero."""
        full = self.name(suffix)
        return {
            i: self.net.add(
                (full, (self.t, *i)),
                kind,
                [(first.get(i, ZERO), None, None), (second.get(i, ZERO), None, None)],
            )
            for i in first or second
        }

    def state(self, suffix, neurons):
        """Return what the next step reads: with a mask, a copy."""
        if not self.is_masked:
            return neurons
        full = self.name(f"{suffix}:held")
        return {i: self.net.one(full, (self.t, *i), n, "held") for i, n in neurons.items()}

    @property
    def biases(self):
        bias = self.cell.bias
        return None if bias is None else np.asarray(bias, np.float64)

    def SimpleRNNCell(self, x, states):
        sources = [(x, "kernel"), (states.get("h", {}), "recurrent_kernel")]
        h = self.gate(":h", range(self.cell.units), sources, self.biases, self.cell.activation)
        held = self.state(":h", h)
        return held, {"h": held}

    def LSTMCell(self, x, states, space=()):
        cell = self.cell
        units = cell.filters if space else cell.units
        h, c = states.get("h", {}), states.get("c", {})
        sources = [(x, "kernel"), (h, "recurrent_kernel")]
        gates = {}
        for k, name in enumerate("ifgo"):
            columns = range(k * units, (k + 1) * units)
            activation = cell.activation if name == "g" else cell.recurrent_activation
            gates[name] = self.gate(f":{name}", columns, sources, self.biases, activation, space)
        kept = self.both(":kept", "multiply", gates["f"], c)
        added = self.both(":added", "multiply", gates["i"], gates["g"])
        new = self.both(":c", "add", kept, added)
        out = self.each(":c:out", new, cell.activation)
        held = self.state(":h", self.both(":h", "multiply", gates["o"], out))
        return held, {"h": held, "c": self.state(":c", new)}

    def ConvLSTMCell(self, x, states):
        space = tuple(1 + max(i[k] for i in x) for k in range(self.cell.rank))
        if self.cell.padding == "valid":
            space = tuple(
                (n - k) // s + 1
                for n, k, s in zip(space, self.cell.kernel_size, self.cell.strides, strict=True)
            )
        return self.LSTMCell(x, states, space)

    def GRUCell(self, x, states):
        cell, units, bias = self.cell, self.cell.units, self.biases
        h = states.get("h", {})
        sources = [(x, "kernel"), (h, "recurrent_kernel")]
        summed = bias.sum(axis=0) if bias is not None and bias.ndim == 2 else bias
        z, r = (
            self.gate(
                name,
                range(k * units, (k + 1) * units),
                sources,
                summed,
                cell.recurrent_activation,
            )
            for k, name in enumerate((":z", ":r"))
        )
        columns = range(2 * units, 3 * units)
        if cell.reset_after:
            rows = (None, None) if bias is None else bias
            of_h = self.gate(":g:recurrent", columns, [(h, "recurrent_kernel")], rows[1], None)
            of_x = self.gate(":g:input", columns, [(x, "kernel")], rows[0], None)
            reset = self.both(":g:reset", "multiply", r, of_h)
            linear = cell.activation.__name__ == "linear"
            pre = self.both(":g" if linear else ":g:pre", "add", of_x, reset)
            g = self.each(":g", pre, cell.activation)
        else:
            reset = self.both(":reset", "multiply", r, h)
            both = [(x, "kernel"), (reset, "recurrent_kernel")]
            g = self.gate(":g", columns, both, bias, cell.activation)
        opened = self.each(":open", z, lambda v: 1 - v)
        kept = self.both(":kept", "multiply", z, h)
        added = self.both(":added", "multiply", opened, g)
        held = self.state(":h", self.both(":h", "add", kept, added))
        return held, {"h": held}
