"""Transformers compiled by Tracr (Lindner et al., NeurIPS 2023), as Keras models with known edges.

The residual stream of a compiled model is taken apart: every reader (queries, keys and values of a
head, an MLP, the output) adds up what the writers before it (input, heads, MLPs) give, each through
a layer of its own. An *edge* is a writer, a reader and a dimension of the stream. The program uses
an edge if the writer's weights write to the dimension, the reader's weights read from it, what
the reader computes reaches the output, and the writer differs between inputs at the positions that
are read. Dimensions in which a writer is constant, such as positions, carry no information and are
no candidates.

The programs are in RASP (Weiss et al., ICML 2021), each with its answer in Python. Needs Tracr,
which is not a dependency: `pip install tracr-pypi`; functions take its module `rasp` as `r`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import keras
import numpy as np
from keras import layers

from nnslicer_tf.errors import MissingPackageError

LETTERS = ("a", "b", "c")
DIGITS = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Program:
    """A program.

    `answer` maps the tokens (without BOS) to the values at all positions; None where the program
    leaves the value open.
    """

    build: Callable[[Any], Any]  # the RASP expression from the module `rasp`
    answer: Callable[[Sequence[Any]], list[Any]]
    vocabulary: tuple[Any, ...] = LETTERS
    distinct: bool = False  # the tokens of a sequence have to differ


def _count(r: Any, comparison: str) -> Any:
    """Count the tokens that compare so with the token at each position."""
    return r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison[comparison]))


def _at_distance(r: Any, distance: int) -> Any:
    """Select the position that is so far before each position."""
    return r.Select(r.indices, r.indices, lambda key, query: key == query - distance)


def _shifted(r: Any, distance: int) -> Any:
    return r.Aggregate(_at_distance(r, distance), r.tokens, default=None)


def _reversed(r: Any) -> Any:
    mirrored = r.SequenceMap(lambda n, i: n - 1 - i, _count(r, "TRUE"), r.indices)
    return r.Aggregate(r.Select(r.indices, mirrored, r.Comparison.EQ), r.tokens)


def _first(r: Any) -> Any:
    start = r.Select(r.indices, r.indices, lambda key, query: key == 0)
    return r.Aggregate(start, r.tokens)


def _last(r: Any) -> Any:
    end = r.Map(lambda n: n - 1, _count(r, "TRUE"))
    return r.Aggregate(r.Select(r.indices, end, r.Comparison.EQ), r.tokens)


def _share_of_a(r: Any) -> Any:
    marks = r.numerical(r.Map(lambda t: float(t == "a"), r.tokens))
    everywhere = r.Select(r.tokens, r.tokens, r.Comparison.TRUE)
    return r.numerical(r.Aggregate(everywhere, marks, default=0))


def _seen_before(r: Any) -> Any:
    placed = r.SequenceMap(lambda t, i: (t, i), r.tokens, r.indices)
    return r.SelectorWidth(r.Select(placed, placed, lambda k, q: k[0] == q[0] and k[1] < q[1]))


def _of_histogram(function: Callable[[int], Any]) -> Program:
    return Program(
        lambda r: r.Map(function, _count(r, "EQ")),
        lambda t: [function(list(t).count(x)) for x in t],
    )


def _of_pairs(function: Callable[[Any, Any], Any], vocabulary: tuple[Any, ...]) -> Program:
    """Return a program that maps the token before and the token at each position."""
    return Program(
        lambda r: r.SequenceMap(function, _shifted(r, 1), r.tokens),
        lambda t: [None, *(function(a, b) for a, b in pairwise(t))],
        vocabulary,
    )


def _shift(t: Sequence[Any], distance: int) -> list[Any]:
    return [t[i - distance] if i >= distance else None for i in range(len(t))]


PROGRAMS: dict[str, Program] = {
    "identity": Program(lambda r: r.Map(lambda t: t, r.tokens), list),
    "vowel": Program(
        lambda r: r.Map(lambda t: t == "a", r.tokens), lambda t: [x == "a" for x in t]
    ),
    "reverse": Program(_reversed, lambda t: list(t)[::-1]),
    "histogram": Program(lambda r: _count(r, "EQ"), lambda t: [list(t).count(x) for x in t]),
    "unique": _of_histogram(lambda n: n == 1),
    "odd count": _of_histogram(lambda n: n % 2),
    "previous": Program(lambda r: _shifted(r, 1), lambda t: _shift(t, 1)),
    "two before": Program(lambda r: _shifted(r, 2), lambda t: _shift(t, 2)),
    "repeated": _of_pairs(lambda a, b: a == b, LETTERS),
    "pair": _of_pairs(lambda a, b: f"{a}{b}", LETTERS),
    "rising": _of_pairs(lambda a, b: a < b, DIGITS),
    "difference": _of_pairs(lambda a, b: b - a, DIGITS),
    "rank": Program(
        lambda r: _count(r, "LT"), lambda t: [sum(y < x for y in t) for x in t], DIGITS, True
    ),
    "sort": Program(
        lambda r: r.Aggregate(r.Select(_count(r, "LT"), r.indices, r.Comparison.EQ), r.tokens),
        sorted,
        DIGITS,
        True,
    ),
    "is smallest": Program(
        lambda r: r.Map(lambda n: n == 0, _count(r, "LT")),
        lambda t: [x == min(t) for x in t],
        DIGITS,
    ),
    "share of a": Program(_share_of_a, lambda t: [list(t).count("a") / len(t)] * len(t)),
    "last": Program(_last, lambda t: [t[-1]] * len(t)),
    "first": Program(_first, lambda t: [t[0]] * len(t)),
    "first is here": Program(
        lambda r: r.SequenceMap(lambda a, b: a == b, _first(r), r.tokens),
        lambda t: [x == t[0] for x in t],
    ),
    "mirrored": Program(
        lambda r: r.SequenceMap(lambda a, b: a == b, _reversed(r), r.tokens),
        lambda t: [a == b for a, b in zip(t, t[::-1], strict=True)],
    ),
    "seen before": Program(_seen_before, lambda t: [list(t[:i]).count(x) for i, x in enumerate(t)]),
    "new": Program(
        lambda r: r.Map(lambda n: n == 0, _seen_before(r)),
        lambda t: [x not in t[:i] for i, x in enumerate(t)],
    ),
    "smaller or equal": Program(
        lambda r: _count(r, "LEQ"), lambda t: [sum(y <= x for y in t) for x in t], DIGITS
    ),
    "rank of the previous": Program(
        lambda r: r.Aggregate(_at_distance(r, 1), _count(r, "LT"), default=None),
        lambda t: _shift([sum(y < x for y in t) for x in t], 1),
        DIGITS,
        True,
    ),
}


BOS = "BOS"
LENGTH = 6  # with the BOS
POSITION = 3  # at which the output is read
MARGINS = POSITION, LENGTH - 1 - POSITION

EdgeFunction = Callable[[str, str, Any], Any]
"""Maps writer, reader and what the writer gives to what the reader gets."""


@dataclass(eq=False)
class CompiledProgram:
    """A compiled program as a network.

    Its weights are matrices: "input" `(codes, dimensions)` and "positions" `(LENGTH, dimensions)`;
    one for each reader, such as "head0.0/query" or "mlp1/read", `(dimensions, width)`; and one for
    each writer, such as "mlp1/write", `(width, dimensions)`. `edges` are pairs of a writer and a
    reader, with an edge for every dimension.
    """

    program: Program
    weights: dict[str, np.ndarray]
    modules: list[str]  # the heads and MLPs that are not empty, in order, and "output"
    values: tuple[str, ...]  # meaning of the output's values: of a one-hot code, or one number
    encoding: dict[object, int]  # token → its code

    def __post_init__(self) -> None:
        self._layers: dict[str, keras.Layer] = {}
        self.edges: list[tuple[str, str]] = []
        for place, module in enumerate(self.modules):
            for reader in self._readers(module):
                self.edges += [(writer, reader) for writer in ["input", *self.modules[:place]]]

    def draw(self, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, list[object]]:
        """Return codes of random tokens `(samples, LENGTH)` int32, and the program's answers."""
        words, count = self.program.vocabulary, LENGTH - 1
        places = rng.integers(0, len(words), (samples, count))
        if self.program.distinct:
            places = np.array([rng.permutation(len(words))[:count] for _ in range(samples)])
        sequences = [[words[i] for i in row] for row in places]
        codes = [[self.encoding[token] for token in (BOS, *row)] for row in sequences]
        answers = [self.program.answer(row)[POSITION - 1] for row in sequences]
        return np.array(codes, np.int32), answers

    def embed(self, codes: Any) -> Any:
        """Return what the input writes, `(batch, LENGTH, dimensions)`."""
        table = self.weights["input"]
        tokens = self._layer(layers.Embedding, "tokens", *table.shape, matrix=table)
        return tokens(codes) + self.weights["positions"][None]

    def outputs(self, embedded: Any, edge: EdgeFunction) -> Any:
        """Return the output `(batch, values)` for the input's part of the stream, from `embed`."""
        written = {"input": embedded}
        for module in self.modules:
            read = []
            for reader in self._readers(module):
                parts = [edge(w, r, written[w]) for w, r in self.edges if r == reader]
                total = parts[0]
                if len(parts) > 1:
                    total = self._layer(layers.Add, f"{reader}/sum")(parts)
                read.append(self._dense(reader)(total))
            if module == "output":
                crop = self._layer(layers.Cropping1D, "place", MARGINS)
                return self._layer(layers.Flatten, "values")(crop(read[0]))
            if module.startswith("mlp"):
                relu = self._layer(layers.ReLU, f"{module}/relu")
                written[module] = self._dense(f"{module}/write")(relu(read[0]))
                continue
            query, key, value = read
            scores = self._layer(layers.Dot, f"{module}/scores", (2, 2))([query, key])
            shares = self._layer(layers.Softmax, f"{module}/shares")(scores)
            mixed = self._layer(layers.Dot, f"{module}/mixed", (2, 1))([shares, value])
            written[module] = self._dense(f"{module}/write")(mixed)
        raise AssertionError("the last module is the output")

    def model(self) -> keras.Model:
        """Return the Keras model: codes `(batch, LENGTH)` to the output's `(batch, values)`."""
        codes = keras.Input((LENGTH,), dtype="int32", name="codes")

        def edge(writer: str, reader: str, values: Any) -> Any:
            return layers.Identity(name=layer_of(writer, reader))(values)

        return keras.Model(codes, self.outputs(self.embed(codes), edge))

    def used(self, varies: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return which edges the program uses for its output, `(edges, dimensions)` bool.

        A head reads a dimension of its keys if its scores weigh it by a dimension of the queries
        that is not always 0 where the queries are read, and the other way round. `varies` and
        `active` are those of `tracr.AblatedProgram`.
        """
        writes = {"input": np.ones(varies.shape[2], bool)}
        for module in self.modules[:-1]:
            writes[module] = (self.weights[f"{module}/write"] != 0).any(axis=0)
        # The positions at which each module is needed: keys and values are read at all of them.
        needed = {module: np.zeros(LENGTH, bool) for module in ("input", *self.modules)}
        needed["output"][POSITION] = True
        used = np.zeros((len(self.edges), varies.shape[2]), bool)
        for place in reversed(range(len(self.edges))):  # readers of later modules first
            writer, reader = self.edges[place]
            at = needed[reader.split("/")[0]]
            if reader.endswith(("/key", "/value")):
                at = np.full(LENGTH, at.any())
            reads = self.weights[reader]
            if reader.endswith(("/query", "/key")):
                other = reader.replace("query", "KEY").replace("key", "query").replace("KEY", "key")
                ends = [i for i, (_, r) in enumerate(self.edges) if r == other]
                there = needed[reader.split("/")[0]] if other.endswith("query") else slice(None)
                met = active[ends].any(axis=0)[there].any(axis=0)
                reads = reads @ self.weights[other][met].T
            reads = (np.abs(reads) > 1e-6).any(axis=1)
            used[place] = reads & writes[writer] & varies[place][at].any(axis=0)
            if used[place].any():
                needed[writer] = needed[writer] | at
        return used

    def _readers(self, module: str) -> list[str]:
        parts = ("query", "key", "value") if module.startswith("head") else ("read",)
        return [f"{module}/{part}" for part in parts]

    def _dense(self, name: str) -> keras.Layer:
        matrix = self.weights[name]
        return self._layer(layers.Dense, name, matrix.shape[1], use_bias=False, matrix=matrix)

    def _layer(
        self,
        kind: Callable[..., keras.Layer],
        name: str,
        *args: Any,
        matrix: np.ndarray | None = None,
        **options: Any,
    ) -> keras.Layer:
        """Return the layer of a name; make it, with a matrix as its weights, the first time."""
        name = name.replace("/", "_")
        if name not in self._layers:
            layer = self._layers[name] = kind(*args, name=name, **options)
            if matrix is not None:
                layer.build((None, LENGTH, len(matrix)))
                layer.set_weights([matrix])
        return self._layers[name]


def layer_of(writer: str, reader: str) -> str:
    """Return the name of the layer that holds the values of an edge."""
    return f"{writer}_to_{reader.replace('/', '_')}"


def check_tracr() -> None:
    """Raise `MissingPackageError` unless Tracr is installed."""
    if find_spec("tracr") is None:
        raise MissingPackageError(
            "Compiling RASP programs needs Tracr, which is not installed: pip install tracr-pypi"
        )


def compile_program(name: str) -> CompiledProgram:
    """Compile a program of `PROGRAMS`."""
    check_tracr()
    from tracr.compiler import compiling, rasp_to_graph
    from tracr.rasp import rasp

    program = PROGRAMS[name]
    expression = program.build(rasp)
    words = set(program.vocabulary)
    assembled = compiling.compile_rasp_to_model(expression, words, LENGTH, compiler_bos=BOS)
    raw = {}
    for key, value in assembled.params.items():
        matrix = np.asarray(value.get("w", value.get("embeddings")))
        raw[key.removeprefix("transformer/")] = matrix
    config = assembled.model_config
    weights = {"input": raw["token_embed"], "positions": raw["pos_embed"][:LENGTH]}
    modules = []
    for layer in range(config.num_layers):
        for head in range(config.num_heads):
            columns = slice(head * config.key_size, (head + 1) * config.key_size)
            module, attention = f"head{layer}.{head}", f"layer_{layer}/attn"
            parts = {part: raw[f"{attention}/{part}"][:, columns] for part in ("key", "value")}
            parts["query"] = raw[f"{attention}/query"][:, columns] / np.sqrt(config.key_size)
            parts["write"] = raw[f"{attention}/linear"][columns]
            if parts["write"].any():
                modules.append(module)
                weights |= {f"{module}/{part}": matrix for part, matrix in parts.items()}
        mlp = raw[f"layer_{layer}/mlp/linear_1"], raw[f"layer_{layer}/mlp/linear_2"]
        if mlp[1].any():
            modules.append(f"mlp{layer}")
            weights[f"mlp{layer}/read"], weights[f"mlp{layer}/write"] = mlp

    # The output reads the dimensions of the expression, in the order of its values.
    sink = rasp_to_graph.extract_rasp_graph(expression).sink["EXPR"].label
    labels = [label.partition(":")[::2] for label in assembled.residual_labels]
    places = [place for place, (of, _) in enumerate(labels) if of == sink]
    weights["output/read"] = np.eye(len(labels), dtype=np.float32)[:, places]
    values = tuple(labels[place][1] for place in places)
    weights = {key: matrix.astype(np.float32) for key, matrix in weights.items()}
    codes = dict(assembled.input_encoder.encoding_map)
    return CompiledProgram(program, weights, [*modules, "output"], values, codes)
