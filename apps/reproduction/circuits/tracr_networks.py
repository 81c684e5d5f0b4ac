"""Transformers compiled by Tracr (Lindner et al., NeurIPS 2023), as Keras models with known edges.

The residual stream of a compiled model is taken apart: every reader (queries, keys and values of a
head, an MLP, the output) adds up what the writers before it (input, heads, MLPs) give, each through
a layer of its own. An *edge* is a writer, a reader and a dimension of the stream. The program uses
an edge if the writer's weights write to the dimension, the reader's weights read from it, what
the reader computes reaches the output, and the writer differs between inputs at the positions that
are read. Dimensions in which a writer is constant, such as positions, carry no information and are
no candidates.

Needs Tracr, which is not a dependency: `pip install tracr-pypi`.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import keras
import numpy as np
from keras import layers

from nnslicer_tf.errors import MissingPackageError
from reproduction.circuits.tracr_programs import PROGRAMS, Program

BOS = "BOS"
LENGTH = 6  # with the BOS
POSITION = 3  # at which the output is read
MARGINS = POSITION, LENGTH - 1 - POSITION

EdgeFunction = Callable[[str, str, Any], Any]
"""Maps writer, reader and what the writer gives to what the reader gets."""


class CompiledProgram:
    """A compiled program as a network.

    Args:
        program: The program.
        weights: Its matrices: "input" `(codes, dimensions)`, "positions" `(LENGTH, dimensions)`;
            by reader, such as "head0.0/query" or "mlp1/read", `(dimensions, width)`; what a module
            writes, such as "mlp1/write", `(width, dimensions)`.
        modules: The heads and MLPs that are not empty, in order, and "output".
        values: Meaning of the output's values: of a one-hot code, or one number.
        encoding: Token → its code.

    Attributes:
        edges: Writer and reader; each pair has an edge for every dimension.
    """

    def __init__(
        self,
        program: Program,
        weights: dict[str, np.ndarray],
        modules: list[str],
        values: tuple[str, ...],
        encoding: dict[object, int],
    ) -> None:
        self.program, self.values = program, values
        self._weights, self._modules, self._encoding = weights, modules, encoding
        self._layers: dict[str, keras.Layer] = {}
        self.edges: list[tuple[str, str]] = []
        for place, module in enumerate(modules):
            for reader in self._readers(module):
                self.edges += [(writer, reader) for writer in ["input", *modules[:place]]]

    def draw(self, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, list[object]]:
        """Return codes of random tokens `(samples, LENGTH)` int32, and the program's answers."""
        words, count = self.program.vocabulary, LENGTH - 1
        places = rng.integers(0, len(words), (samples, count))
        if self.program.distinct:
            places = np.array([rng.permutation(len(words))[:count] for _ in range(samples)])
        sequences = [[words[i] for i in row] for row in places]
        codes = [[self._encoding[token] for token in (BOS, *row)] for row in sequences]
        answers = [self.program.answer(row)[POSITION - 1] for row in sequences]
        return np.array(codes, np.int32), answers

    def embed(self, codes: Any) -> Any:
        """Return what the input writes, `(batch, LENGTH, dimensions)`."""
        table = self._weights["input"]
        tokens = self._layer(layers.Embedding, "tokens", *table.shape, matrix=table)
        return tokens(codes) + self._weights["positions"][None]

    def outputs(self, embedded: Any, edge: EdgeFunction) -> Any:
        """Return the output `(batch, values)` for the input's part of the stream.

        Args:
            embedded: As `embed` returns it, a tensor or a Keras tensor.
            edge: Called for each pair in `edges`.
        """
        written = {"input": embedded}
        for module in self._modules:
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
        """Return the Keras model: codes `(batch, LENGTH)` to the output's `(batch, values)`.

        `layer_of` names the layers that hold the values of the edges.
        """
        codes = keras.Input((LENGTH,), dtype="int32", name="codes")

        def edge(writer: str, reader: str, values: Any) -> Any:
            return layers.Identity(name=layer_of(writer, reader))(values)

        return keras.Model(codes, self.outputs(self.embed(codes), edge))

    def used(self, varies: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return which edges the program uses for its output, `(edges, dimensions)` bool.

        A head reads a dimension of its keys if its scores weigh it by a dimension of the queries
        that is not always 0 where the queries are read, and the other way round.

        Args:
            varies: Whether what the writer gives differs between inputs, `(edges, LENGTH,
                dimensions)` bool.
            active: Whether it is ever another number than 0, of the same shape.
        """
        writes = {"input": np.ones(varies.shape[2], bool)}
        for module in self._modules[:-1]:
            writes[module] = (self._weights[f"{module}/write"] != 0).any(axis=0)
        # The positions at which each module is needed: keys and values are read at all of them.
        needed = {module: np.zeros(LENGTH, bool) for module in ("input", *self._modules)}
        needed["output"][POSITION] = True
        used = np.zeros((len(self.edges), varies.shape[2]), bool)
        for place in reversed(range(len(self.edges))):  # readers of later modules first
            writer, reader = self.edges[place]
            at = needed[reader.split("/")[0]]
            if reader.endswith(("/key", "/value")):
                at = np.full(LENGTH, at.any())
            reads = self._weights[reader]
            if reader.endswith(("/query", "/key")):
                other = reader.replace("query", "KEY").replace("key", "query").replace("KEY", "key")
                ends = [i for i, (_, r) in enumerate(self.edges) if r == other]
                there = needed[reader.split("/")[0]] if other.endswith("query") else slice(None)
                met = active[ends].any(axis=0)[there].any(axis=0)
                reads = reads @ self._weights[other][met].T
            reads = (np.abs(reads) > 1e-6).any(axis=1)
            used[place] = reads & writes[writer] & varies[place][at].any(axis=0)
            if used[place].any():
                needed[writer] = needed[writer] | at
        return used

    def _readers(self, module: str) -> list[str]:
        parts = ("query", "key", "value") if module.startswith("head") else ("read",)
        return [f"{module}/{part}" for part in parts]

    def _dense(self, name: str) -> keras.Layer:
        matrix = self._weights[name]
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
    """Compile a program of `PROGRAMS`.

    Raises:
        MissingPackageError: if Tracr is not installed.
    """
    check_tracr()
    from tracr.compiler import compiling, rasp_to_graph
    from tracr.rasp import rasp

    program = PROGRAMS[name]
    expression = program.build(rasp)
    assembled = compiling.compile_rasp_to_model(
        expression, set(program.vocabulary), LENGTH, compiler_bos=BOS
    )
    raw = {
        key.removeprefix("transformer/"): np.asarray(value.get("w", value.get("embeddings")))
        for key, value in assembled.params.items()
    }
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
