"""Slicing of sequence models by brute force: one neuron at a time, in plain Python.

It covers what `sequence_models.py` builds. Where a value is a neuron, what it is the sum of, and
through which synapse, is written out here from the layers' weights. The values themselves are
computed here too, in float64, and compared with those captured; the walk then starts from the
captured ones, as a softmax of dyadic numbers is not dyadic. Δ and local values are rounded to
float32, so that equal ones are equal here and there.
"""

import itertools
import math
from collections import defaultdict

import keras
import numpy as np
from keras import layers

from support.slicing_oracle import indices, keep, sign

EXCLUSIVE = ("weighted_sum", "average", "add", "product_sum", "softmax")


class SequenceOracle:
    """The definitions for one model.

    Args:
        im: The instrumented model; its names and inputs of operations are used, nothing else.
        profile_data: Tokens `(samples, positions)`.
        positions: "each" or "pooled".
        relative_to: "output" or "sum".
        product: "value" or "midpoint".

    Attributes:
        rounding: {operation: array of the largest |Δ| that are rounding, and thus 0}.
    """

    def __init__(self, im, profile_data, positions="pooled", relative_to="output", product="value"):
        self.product = product
        self.rounding = {o.name: np.zeros(o.shape) for o in im.operations}
        self.im = im
        self.ops = {o.name: o for o in im.operations}
        self.relative_to = relative_to
        captured = im.capture(profile_data)
        self.mean = {name: {} for name in self.ops}
        for op in im.operations:
            pools = defaultdict(list)
            for n, i in itertools.product(range(len(profile_data)), indices(op.shape)):
                if self.present(op.name, i, profile_data[n]):
                    pools[i].append(float(captured[op.name][(n, *i)]))
            pooled = defaultdict(list)
            for i, found in pools.items():
                pooled[self.pool(op.name, i)].extend(found)
            for i in indices(op.shape):
                found = pools.get(i, [])
                # A causal mask makes positions unequal, so that each has its own mean.
                pair = self.is_pair(op.name) and self.im.model.get_layer(op.layer).causal
                together = positions == "pooled" and not pair
                together = together and not self.is_constant(op, i, pools, len(profile_data))
                if (together or not found) and self.can_be_padding(op.name):
                    found = pooled[self.pool(op.name, i)]
                self.mean[op.name][i] = math.fsum(found) / len(found) if found else 0.0

    # --- which elements are neurons ---------------------------------------------------

    def masked(self, name):
        """The layers of an embedding with mask_zero that an operation's positions come from."""
        op = self.ops[name]
        layer = op.keras_layer
        if op.kind == "mask" or layer is None:
            return False
        if isinstance(layer, layers.Embedding):
            return layer.mask_zero
        if isinstance(layer, (layers.GlobalAveragePooling1D, layers.Flatten)):
            return False
        if isinstance(layer, (layers.Activation, keras.Operation)) and not op.inputs:
            return False
        if name.endswith(("/key", "/key:heads", "/value", "/value:heads")):
            return self.masked(op.inputs[0])
        if "/" in name or name.endswith(":in"):
            return self.masked_queries(op)
        sources = [s for s in op.inputs if self.ops[s].kind != "mask"]
        if isinstance(layer, layers.MultiHeadAttention | layers.GroupQueryAttention):
            return self.masked_queries(op)
        return all(self.masked(s) for s in sources)

    def masked_queries(self, op):
        """Whether the queries of an attention layer have padding."""
        query = self.ops[f"{op.layer}/query"]
        return self.masked(query.inputs[0])

    def is_pair(self, name):
        return name.endswith(("/scores", "/probabilities"))

    def pair_counts(self, layer_name, q, k, x):
        """Whether a query attends to a key."""
        op = self.ops[f"{layer_name}/scores"]
        call = self.im.model.get_layer(layer_name)
        counts = True
        if self.masked_queries(op):
            counts &= x[q] != 0
        if self.masked(self.ops[f"{layer_name}/value"].inputs[0]):
            counts &= x[k] != 0
        if call.causal:
            counts &= k <= q
        return bool(counts)

    def can_be_padding(self, name):
        if self.is_pair(name):
            op = self.ops[name]
            value = self.ops[f"{op.layer}/value"].inputs[0]
            causal = self.im.model.get_layer(op.layer).causal
            return causal or self.masked_queries(op) or self.masked(value)
        return self.masked(name)

    def present(self, name, i, x):
        if self.is_pair(name):
            return self.pair_counts(self.ops[name].layer, i[1], i[2], x)
        return not self.masked(name) or x[i[0]] != 0

    def pool(self, name, i):
        """The part of the index that neurons with a common mean share."""
        if not self.can_be_padding(name):
            return i
        return i[:1] if self.is_pair(name) else i[1:]

    def is_constant(self, op, i, pools, samples):
        """Whether all samples have the same values at the position of index i."""
        place = slice(1, None) if self.is_pair(op.name) else slice(1)
        here = [pools.get(j, []) for j in indices(op.shape) if j[place] == i[place]]
        return samples > 1 and all(
            len(v) == samples and max(v) - min(v) <= 1e-6 * abs(max(v)) for v in here
        )

    # --- what each operation computes --------------------------------------------------

    def summands(self, op, n):
        """Yield (place of the input, index, weight, synapse) of the summands of a neuron."""
        layer = op.keras_layer
        if op.kind == "weighted_sum":
            *at, o = n
            if isinstance(layer, layers.Dense):
                w = np.asarray(layer.kernel)
                return [(0, (*at, i), w[i, o], (layer.name, (i, o))) for i in range(len(w))]
            part = op.name.rpartition("/")[2] if "/" in op.name else "output"
            w = np.asarray(getattr(layer, f"_{part}_dense").kernel)
            kernel = f"{layer.name}/{part}"
            if part == "output":
                pairs = list(np.ndindex(w.shape[:2]))
                return [(0, (*at, i), w[(*p, o)], (kernel, (*p, o))) for i, p in enumerate(pairs)]
            h, e = divmod(o, w.shape[2])
            return [(0, (*at, c), w[c, h, e], (kernel, (c, h, e))) for c in range(len(w))]
        return [(k, stretched(n, op.input_shapes[k]), 1.0, None) for k in range(len(op.inputs))]

    def source(self, op, n):
        """Return the index that a routing operation moves to `n`."""
        shape = op.input_shapes[0]
        layer = op.keras_layer
        if op.name.endswith(":heads"):
            t, h, e = n
            if isinstance(layer, layers.GroupQueryAttention) and "query" not in op.name:
                h //= layer.num_query_heads // layer.num_key_value_heads
            return (t, h * op.shape[-1] + e)
        assert op.name.endswith(":in") or isinstance(layer, layers.Flatten), op
        flat = 0
        for i, extent in zip(n, op.shape):
            flat = flat * extent + i
        return tuple(int(i) for i in np.unravel_index(flat, shape))

    def products(self, op, n):
        """Return the pairs of indices (of a, of b) whose products a neuron sums."""
        if op.name.endswith("/scores"):
            h, q, k = n
            features = op.input_shapes[0][-1]
            return [((k, h, e), (q, h, e)) for e in range(features)]
        q, h, e = n
        return [((h, q, k), (k, h, e)) for k in range(op.input_shapes[1][0])]

    def forward(self, x, captured):
        """Return the values of one sample in float64: {operation: {index: value}}.

        Of what was captured it takes the masks alone, which a test compares with Keras.
        """
        y = {}
        for op in self.im.operations:
            if op.kind == "mask":
                y[op.name] = {i: captured[op.name][i] for i in indices(op.shape)}
            else:
                y[op.name] = {i: self.value(op, i, y, x) for i in indices(op.shape)}
        return y

    def value(self, op, i, y, x):
        layer = op.keras_layer
        given = [y[name] for name in op.inputs]
        if op.kind == "input":
            return float(x[i])
        if op.kind == "lookup":
            return float(np.asarray(layer.embeddings)[int(x[i[0]]), i[1]])
        if op.kind == "weighted_sum":
            bias = layer.bias[i[-1]] if isinstance(layer, layers.Dense) else 0.0
            if not isinstance(layer, layers.Dense):
                part = op.name.rpartition("/")[2] if "/" in op.name else "output"
                bias = np.asarray(getattr(layer, f"_{part}_dense").bias).ravel()[i[-1]]
            return math.fsum(w * given[0][j] for _, j, w, _ in self.summands(op, i)) + float(bias)
        if op.kind == "routing":
            return given[0][self.source(op, i)]
        if op.kind == "product_sum":
            return math.fsum(given[0][a] * given[1][b] for a, b in self.products(op, i))
        if op.kind == "softmax":
            row = self.row(op, i)
            if len(given) > 1:
                row = [j for j in row if given[1][(0, *j[1:])] > 0]
            if i not in row:
                return 0.0
            total = math.fsum(math.exp(given[0][j]) for j in row)
            return math.exp(given[0][i]) / total
        if op.kind == "average":
            found = [given[0][j] for j in self.averaged(op, i, x)]
            return math.fsum(found) / len(found)
        if op.kind == "add":
            return math.fsum(g[i] for g in given)
        if op.kind == "rectify":
            return max(given[0][i], 0.0)
        if op.name.endswith(":scaled"):
            return given[0][i] / math.sqrt(
                layer.head_dim if hasattr(layer, "head_dim") else layer.key_dim
            )
        assert isinstance(layer, layers.LayerNormalization), op
        row = [given[0][(*i[:-1], c)] for c in range(op.shape[-1])]
        middle = math.fsum(row) / len(row)
        variance = math.fsum((r - middle) ** 2 for r in row) / len(row)
        normal = (given[0][i] - middle) / math.sqrt(variance + layer.epsilon)
        return normal * float(layer.gamma[i[-1]]) + float(layer.beta[i[-1]])

    def row(self, op, i):
        return [(*i[:-1], j) for j in range(op.shape[-1])]

    def averaged(self, op, i, x):
        source = op.inputs[0]
        positions = range(op.input_shapes[0][0])
        return [(t, *i) for t in positions if self.present(source, (t, *i), x)]

    # --- the walk ------------------------------------------------------------------------

    def slice(self, x, captured, starts, theta):
        """Return (neurons, synapses) of one sample.

        Args:
            x: The sample's tokens.
            captured: Its values: {operation: array}.
            starts: {operation: indices of neurons with CONTRIB 1}.
            theta: The threshold.
        """
        y = {name: {i: float(v[i]) for i in indices(v.shape)} for name, v in captured.items()}
        delta = {
            name: {
                i: self.deviation(name, i, v) if self.present(name, i, x) else 0.0
                for i, v in values.items()
            }
            for name, values in y.items()
        }
        contrib = {name: dict.fromkeys(values, 0) for name, values in y.items()}
        synapses = defaultdict(lambda: defaultdict(int))
        for name, chosen in starts.items():
            for i in chosen:
                contrib[name][i] += 1
        last = max(list(self.ops).index(name) for name in starts)
        for op in reversed(self.im.operations[1 : last + 1]):
            if op.kind == "mask":
                continue
            for n, total in contrib[op.name].items():
                if total != 0 and (op.kind == "routing" or delta[op.name][n] != 0):
                    self.expand(op, n, total, x, y, delta, theta, contrib, synapses)
        return contrib, synapses

    def deviation(self, name, i, value):
        mean, bound = self.mean[name][i], self.rounding[name][i]
        return 0.0 if mean - bound <= value <= mean + bound else single(value - mean)

    def expand(self, op, n, total, x, y, delta, theta, contrib, synapses):
        if op.kind == "routing":
            source = self.source(op, n)
            if self.present(op.inputs[0], source, x):
                contrib[op.inputs[0]][source] += total
            return
        if op.kind == "lookup":
            contrib[op.inputs[0]][n[:1]] += sign(total)
            synapses[op.layer][(int(x[n[0]]), n[1])] += sign(total)
            return
        local = self.local_values(op, n, x, y, delta)
        values = [v for _, _, v, _ in local]
        kept = range(len(local))
        if op.kind in EXCLUSIVE:
            own = y[op.name][n] if self.relative_to == "output" else math.fsum(values)
            kept = keep(values, theta * abs(own))
        for k in kept:
            place, index, v, synapse = local[k]
            g = sign(total) * sign(delta[op.name][n]) * sign(v)
            contrib[op.inputs[place]][index] += g
            if synapse is not None:
                synapses[synapse[0]][synapse[1]] += g

    def factors(self, name, values, x):
        """Return what the Δ of the other factors are multiplied by: {index: number}."""
        if self.product == "value":
            return values
        return {
            i: single((v + self.mean[name][i]) / 2) if self.present(name, i, x) else v
            for i, v in values.items()
        }

    def local_values(self, op, n, x, y, delta):
        """Return (place of the input, index, local value, synapse) in the order of ties."""
        first, dfirst = y[op.inputs[0]], delta[op.inputs[0]]
        if op.kind == "product_sum":
            dsecond = delta[op.inputs[1]]
            pairs = self.products(op, n)
            first, second = (self.factors(name, y[name], x) for name in op.inputs)
            return [
                *((0, a, single(dfirst[a] * second[b]), None) for a, b in pairs),
                *((1, b, single(first[a] * dsecond[b]), None) for a, b in pairs),
            ]
        if op.kind == "softmax":
            own = y[op.name]
            factors = {j: single(-own[n] * own[j]) for j in self.row(op, n)}
            others = math.fsum(own[j] for j in self.row(op, n) if j != n)  # 1 - own[n], but exact
            factors[n] = single(own[n] * single(others))
            return [(0, j, single(f * dfirst[j]), None) for j, f in factors.items()]
        if op.kind == "average":
            read = self.averaged(op, n, x)
            return [(0, j, dfirst[j] / len(read), None) for j in read]
        if op.kind == "rectify":
            return [(0, n, dfirst[n] if first[n] > 0 else 0.0, None)]
        return [
            (k, j, single(float(w) * delta[op.inputs[k]][j]), synapse)
            for k, j, w, synapse in self.summands(op, n)
        ]


def single(value):
    """Return a number as float32 holds it."""
    return float(np.float32(value))


def stretched(index, shape):
    """Return the index into a tensor that was broadcast to where `index` is."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if n == 1 else i for i, n in zip(tail, shape))
